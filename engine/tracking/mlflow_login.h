/* Who a run is to an MLflow server: a name and a password, or a token, as MLflow's own client takes them from the
 * environment. They are in no configuration, and nothing prints them. An open `mlflow_login` is the caller's, who wipes
 * it.
 */
#pragma once

#include <stdbool.h>

#include "memory/status.h"

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

/* Is a secret in the text, as it is or as it travels? */
bool mlflow_login_in(const mlflow_login *l, const char *text);
