/* A server with as much of MLflow's REST API as a run uses, in a thread of the test: it keeps what it is sent, and can
 * be away, slow, failing or hostile. Opaque; the caller's until mlflow_standin_close.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

typedef struct mlflow_standin mlflow_standin;

typedef enum mlflow_standin_mode {
    MLFLOW_STANDIN_WELL,
    MLFLOW_STANDIN_AWAY,     /* connections are closed without a word */
    MLFLOW_STANDIN_SILENT,   /* a request is read and not answered */
    MLFLOW_STANDIN_BUSY,     /* 503 */
    MLFLOW_STANDIN_FULL,     /* 400 for each batch of metrics */
    MLFLOW_STANDIN_GARBAGE,  /* 200 with bytes that are no JSON */
    MLFLOW_STANDIN_ENDLESS,  /* 200 with 3 MiB of JSON */
    MLFLOW_STANDIN_DEEP,     /* 200 with arrays in arrays */
    MLFLOW_STANDIN_STRANGE,  /* 200 with ids and lists of other types, and ids that are paths */
    MLFLOW_STANDIN_REDIRECT, /* 302 to another address */
    MLFLOW_STANDIN_ECHO,     /* 403, whose message repeats the Authorization header */
    MLFLOW_STANDIN_MODES,
} mlflow_standin_mode;

/* On a free port of this machine. */
mlflow_standin *mlflow_standin_open(void);
void mlflow_standin_close(mlflow_standin *m);
const char *mlflow_standin_address(const mlflow_standin *m);
void mlflow_standin_set(mlflow_standin *m, mlflow_standin_mode mode);

/* How many requests have come so far. */
int mlflow_standin_requests(mlflow_standin *m);
/* The last Authorization header's value, or "". The caller's to free. */
char *mlflow_standin_login(mlflow_standin *m);

/* The one run: {"count": of runs made, "status", "params": {}, "tags": {}, "metrics": [{key, value, timestamp, step}]},
 * in which equal metrics are one. The caller's to json_decref. */
json_t *mlflow_standin_run(mlflow_standin *m);
