/* Follows a run's metrics.jsonl and sends what it says to an MLflow server, while the run trains.
 *
 * The file is the queue: a thread of its own reads what is new once a second and sends it in batches, so that neither a
 * slow server nor one that is away holds a step up or takes memory. What could not be sent is sent when the server is
 * back, or by the next start, from the file. FOLDER/mlflow.json holds an id that the run in MLflow has as its tag: all
 * starts of a run are one run there. What the server has already is not sent again: it knows the last step of each
 * kind of line, and a step that is done again with the same result is the same.
 *
 * Opaque; owned by the caller until tracker_close. The training thread calls these functions.
 */
#pragma once

#include <stdint.h>

#include "engine/tracking/mlflow_rest.h"

#define TRACKER_FILE "mlflow.json"

typedef struct tracker tracker;

/* What a number of a step's line is called: "loss", "train/loss". */
typedef struct tracker_name {
    const char *key, *name; /* name NULL: it is not sent */
} tracker_name;

typedef struct tracker_options {
    const char *folder;            /* of the run */
    const char *id;                /* of this start, 32 hexadecimal digits: that of a run that begins */
    const char *address;           /* of the server */
    const char *experiment, *name; /* of the experiment, of the run */
    const mlflow_login *login;     /* outlives the tracker */
    const tracker_name *names;     /* [name_count], static */
    int name_count;
    const tracker_name *tags; /* [tag_count]: facts of this start, copied */
    int tag_count;
    int64_t began; /* milliseconds since 1970 */
} tracker_options;

/* Finds or draws the run's id. Nothing is sent yet. */
status tracker_open(tracker **out, const tracker_options *options);
/* A value of the configuration, before the first tracker_go_on. The signature of config_each's function. */
status tracker_parameter(void *t, const char *key, const char *value);

/* Between the two, lines of steps after `step` are dropped from metrics.jsonl, and nothing reads it. The first
 * tracker_go_on starts the thread. */
status tracker_hold(tracker *t, int64_t step);
status tracker_go_on(tracker *t);

/* The run has ended: sends what is left and says so to the server, for so many seconds at most. Then the thread
 * rests. `ended`: milliseconds since 1970, for people. */
void tracker_end(tracker *t, mlflow_rest_state state, int64_t ended, double seconds);
/* NULL is accepted. What has not been sent stays in the file. */
void tracker_close(tracker *t);
AUTO_CLOSES(tracker, tracker_close)

typedef struct tracker_counts {
    int64_t sent;     /* numbers that the server has taken from this start */
    int64_t refused;  /* lines that it has refused for good */
    int64_t behind;   /* bytes of metrics.jsonl that it has yet to get */
    int64_t failures; /* times that it could not be reached, or did not take something */
} tracker_counts;

tracker_counts tracker_counted(tracker *t);
