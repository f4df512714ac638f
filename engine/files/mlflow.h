/* A run in MLflow's file store, which `mlflow ui --backend-store-uri FOLDER` shows while it grows.
 *
 * FOLDER/0 is the default experiment, FOLDER/0/ID a run: meta.yaml, params/KEY with a value, metrics/NAME with a line
 * "milliseconds value step" each. A run is gone on with where the folder has one. Opaque; owned by the caller until
 * mlflow_close.
 */
#pragma once

#include <stdint.h>

#include "engine/files/tensorboard.h"
#include "memory/status.h"

typedef struct mlflow mlflow;

typedef enum mlflow_state {
    MLFLOW_RUNNING = 1,
    MLFLOW_FINISHED = 3,
    MLFLOW_KILLED = 5
} mlflow_state; /* MLflow's numbers */

/* `id`: 32 hexadecimal digits, of a run that is begun; `name` is shown for it. Lines of steps from `first_step` on,
 * which a run that was set back will write again, are dropped. Times are seconds since 1970. */
status mlflow_open(mlflow **out, const char *folder, const char *id, const char *name, int64_t first_step, double time);
status mlflow_parameter(mlflow *m, const char *key, const char *value);
status mlflow_write(mlflow *m, const tensorboard_value *values, int count, int64_t step, double time);
status mlflow_end(mlflow *m, mlflow_state state, double time);
void mlflow_close(mlflow *m);
