/* Follows a run's metrics.jsonl and sends its values to an MLflow server while the run trains.
 *
 * The file is the queue: a thread of its own reads new lines once a second and sends them in batches, so that neither a
 * slow server nor one that is away delays a step or takes memory. Unsent lines are sent from the file once the server
 * is back, or by the next start. FOLDER/mlflow.json holds an id that the run in MLflow has as its tag: all starts of a
 * run are one run there. Lines that the server has are not sent again: it knows the last step of each kind, and a
 * repeated step with the same result counts as the same.
 *
 * Opaque; owned by the caller until tracker_close. The training thread calls these functions.
 */
#pragma once

#include <stdint.h>

#include "engine/tracking/mlflow_rest.h"

#define TRACKER_FILE "mlflow.json"

typedef struct lock lock; /* engine/system/lock.h */
typedef struct tracker tracker;

/* The server's name of a number in a step's line: "loss", "train/loss". */
typedef struct tracker_name {
    const char *key, *name; /* name NULL: not sent */
} tracker_name;

typedef struct tracker_options {
    const char *folder;            /* run's folder */
    const char *id;                /* this start's id, 32 hexadecimal digits; a new run adopts it */
    const char *address;           /* server's address */
    const char *experiment, *name; /* names of the experiment and the run */
    const mlflow_login *login;     /* outlives the tracker */
    const tracker_name *names;     /* [name_count], static */
    int name_count;
    const tracker_name *tags; /* [tag_count]: facts of this start, copied */
    int tag_count;
    int64_t began; /* milliseconds since 1970 */
    lock *owner;   /* lock of the run's folder; a run that has lost it stops sending; NULL: none */
} tracker_options;

/* Finds or draws the run's id. Sends no request yet. */
status tracker_open(tracker **out, const tracker_options *options);
/* Adds a value of the configuration, before the first tracker_go_on. Has the signature of config_each's function. */
status tracker_parameter(void *t, const char *key, const char *value);

/* Stops reading metrics.jsonl until tracker_go_on, while lines after `step` are dropped from it. The first
 * tracker_go_on starts the thread. */
status tracker_hold(tracker *t, int64_t step);
status tracker_go_on(tracker *t);

/* Ends the run: sends the rest and tells the server, within `seconds`. Then the thread rests. `ended`: milliseconds
 * since 1970, for people. */
void tracker_end(tracker *t, mlflow_rest_state state, int64_t ended, double seconds);
/* NULL is accepted. Unsent lines stay in the file. */
void tracker_close(tracker *t);
AUTO_CLOSES(tracker, tracker_close)

typedef struct tracker_counts {
    int64_t sent;     /* numbers that the server took from this start */
    int64_t refused;  /* lines that it refused for good */
    int64_t behind;   /* bytes of metrics.jsonl not yet sent */
    int64_t failures; /* times that it could not be reached, or refused data */
} tracker_counts;

tracker_counts tracker_counted(tracker *t);
