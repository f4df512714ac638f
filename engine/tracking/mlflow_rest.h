/* MLflow's REST API (2.0, as servers of MLflow 2 and 3 have it): experiments, runs, and their logged data.
 *
 * A call is one request, or a few, each of which takes seconds at most and may be given up from outside; an answer is
 * bounded, redirections are not followed, and its words are shown as text only. Opaque; owned by the caller; one thread
 * at a time uses it.
 */
#pragma once

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

/* The login of an MLflow server: a name and a password, or a token, taken from the environment like MLflow's own client
 * does. They are in no configuration and never printed. The caller owns and wipes an open `mlflow_login`. */
#define MLFLOW_LOGIN_USER     "MLFLOW_TRACKING_USERNAME"
#define MLFLOW_LOGIN_PASSWORD "MLFLOW_TRACKING_PASSWORD"
#define MLFLOW_LOGIN_TOKEN    "MLFLOW_TRACKING_TOKEN"
#define MLFLOW_LOGIN_CA       "MLFLOW_TRACKING_SERVER_CERT_PATH"

typedef struct mlflow_login {
    char *header; /* "Authorization: ..."; NULL: there is none */
    char *user, *password, *token;
    char *ca; /* file of certificates to check the server's with; NULL: the system's */
} mlflow_login;

/* Takes the login from the environment. Overwrites and removes the variables of the password and the token: /proc and
 * children do not show them. Refuses a name without a password, or a value of more than a line. */
status mlflow_login_take(mlflow_login *out);
void mlflow_login_wipe(mlflow_login *l);

/* Checks that the login may be sent to this address: not to another machine in the clear. */
status mlflow_login_check(const mlflow_login *l, const char *address);

typedef struct mlflow_rest mlflow_rest;

enum { MLFLOW_REST_ID = 65 }; /* size of a server's id with its final 0, bytes */

typedef enum mlflow_rest_state {
    MLFLOW_REST_RUNNING,
    MLFLOW_REST_FINISHED,
    MLFLOW_REST_FAILED,
    MLFLOW_REST_KILLED,
} mlflow_rest_state;

/* `address`: http[s]://HOST[:PORT][/PATH]; it and the login outlive the client. A request ends soon once *stop is true.
 * Sends no request yet. */
status mlflow_rest_open(mlflow_rest **out, const char *address, const mlflow_login *login, const atomic_bool *stop);
void mlflow_rest_close(mlflow_rest *m);
AUTO_CLOSES(mlflow_rest, mlflow_rest_close)

/* Reason of the last call's failure: the server will never take that request, or there is no such run or experiment.
 * Other failures may be retried. */
bool mlflow_rest_refused(const mlflow_rest *m);
bool mlflow_rest_gone(const mlflow_rest *m);

/* Finds or makes the experiment of that name. */
status mlflow_rest_experiment(char out[MLFLOW_REST_ID], mlflow_rest *m, const char *name);
/* Finds the experiment's run with the tag; *found is false: there is none. */
status mlflow_rest_find(bool *found, char out[MLFLOW_REST_ID], mlflow_rest *m, const char *experiment, const char *tag,
                        const char *value);
/* Makes a run with that tag. `began`: milliseconds since 1970. */
status mlflow_rest_create(char out[MLFLOW_REST_ID], mlflow_rest *m, const char *experiment, const char *name,
                          int64_t began, const char *tag, const char *value);
/* Returns its "data": the latest value of each metric, parameters, tags. The caller decrefs it (json_decref). */
status mlflow_rest_data(json_t **out, mlflow_rest *m, const char *run);
/* Sends log-batch. Takes ownership of the arrays of {"key": ...}; NULL: none. */
status mlflow_rest_log(mlflow_rest *m, const char *run, json_t *metrics, json_t *parameters, json_t *tags);
/* `ended`: milliseconds since 1970; 0: not ended. */
status mlflow_rest_update(mlflow_rest *m, const char *run, mlflow_rest_state state, int64_t ended);
