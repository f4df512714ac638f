/* MLflow's REST API (2.0, as servers of MLflow 2 and 3 have it): experiments, runs, and what is logged in them.
 *
 * A call is one request, or a few, each of which takes seconds at most and may be given up from outside; an answer is
 * bounded, redirections are not followed, and what it says is shown as text only. Opaque, the caller's; one thread at a
 * time uses it.
 */
#pragma once

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

/* Who a run is to an MLflow server: a name and a password, or a token, as MLflow's own client takes them from the
 * environment. They are in no configuration, and nothing prints them. An open `mlflow_login` is the caller's, who wipes
 * it.
 */
#define MLFLOW_LOGIN_USER     "MLFLOW_TRACKING_USERNAME"
#define MLFLOW_LOGIN_PASSWORD "MLFLOW_TRACKING_PASSWORD"
#define MLFLOW_LOGIN_TOKEN    "MLFLOW_TRACKING_TOKEN"
#define MLFLOW_LOGIN_CA       "MLFLOW_TRACKING_SERVER_CERT_PATH"

typedef struct mlflow_login {
    char *header; /* "Authorization: ..."; NULL: there is none */
    char *user, *password, *token;
    char *ca; /* a file of certificates that the server's is checked with; NULL: the system's */
} mlflow_login;

/* From the environment. The variables of the password and the token are overwritten and removed: /proc and children do
 * not show them. A name without a password, or a value of more than a line, is refused. */
status mlflow_login_take(mlflow_login *out);
void mlflow_login_wipe(mlflow_login *l);

/* May it be sent to this address? Not to another machine in the clear. */
status mlflow_login_check(const mlflow_login *l, const char *address);

typedef struct mlflow_rest mlflow_rest;

enum { MLFLOW_REST_ID = 65 }; /* bytes of an id that a server gives, with its end */

typedef enum mlflow_rest_state {
    MLFLOW_REST_RUNNING,
    MLFLOW_REST_FINISHED,
    MLFLOW_REST_FAILED,
    MLFLOW_REST_KILLED,
} mlflow_rest_state;

/* `address`: http[s]://HOST[:PORT][/PATH]; it and the login outlive the client. A request ends soon after *stop becomes
 * true. Nothing is sent yet. */
status mlflow_rest_open(mlflow_rest **out, const char *address, const mlflow_login *login, const atomic_bool *stop);
void mlflow_rest_close(mlflow_rest *m);
AUTO_CLOSES(mlflow_rest, mlflow_rest_close)

/* Why the last call failed: the server will never take that request, or there is no such run or experiment. Else it may
 * be tried again. */
bool mlflow_rest_refused(const mlflow_rest *m);
bool mlflow_rest_gone(const mlflow_rest *m);

/* The experiment of that name, which is made where there is none. */
status mlflow_rest_experiment(char out[MLFLOW_REST_ID], mlflow_rest *m, const char *name);
/* The run of the experiment that has the tag; *found is false: there is none. */
status mlflow_rest_find(bool *found, char out[MLFLOW_REST_ID], mlflow_rest *m, const char *experiment, const char *tag,
                        const char *value);
/* A new one, with that tag. `began`: milliseconds since 1970. */
status mlflow_rest_create(char out[MLFLOW_REST_ID], mlflow_rest *m, const char *experiment, const char *name,
                          int64_t began, const char *tag, const char *value);
/* Its "data": the latest value of each metric, parameters, tags. The caller's to json_decref. */
status mlflow_rest_data(json_t **out, mlflow_rest *m, const char *run);
/* log-batch. Arrays of {"key": ...}, which become the call's; NULL: none. */
status mlflow_rest_log(mlflow_rest *m, const char *run, json_t *metrics, json_t *parameters, json_t *tags);
/* `ended`: milliseconds since 1970; 0: it has not. */
status mlflow_rest_update(mlflow_rest *m, const char *run, mlflow_rest_state state, int64_t ended);
