/* Lines of metrics.jsonl as metrics of MLflow. Plain values in, values out. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

/* What a number of a step's line is called: "loss", "train/loss". */
typedef struct tracker_lines_name {
    const char *key, *name; /* name NULL: it is not sent */
} tracker_lines_name;

/* Lines of the same kind come once a step, in ascending order. */
typedef enum tracker_kind { TRACKER_STEP, TRACKER_EVALUATION, TRACKER_ISLANDS, TRACKER_KINDS } tracker_kind;

/* What a line is about; its value tells whether the same step has come to the same. */
typedef struct tracker_point {
    tracker_kind kind;
    int64_t step;
    double value; /* NAN: null, or none */
} tracker_point;

/* false: the line is of no kind that is sent. */
bool tracker_lines_point(tracker_point *out, const json_t *line);

/* Appends {"key": NAME, "value": V, "timestamp": ms, "step": S} of each number of the line to `metrics`. */
void tracker_lines_add(json_t *metrics, const json_t *line, const tracker_point *at, const tracker_lines_name *names,
                       int count);

/* The last step of each kind that a run on the server has, by the answer of mlflow_rest_data; -1: none. */
void tracker_lines_last(int64_t last[TRACKER_KINDS], const json_t *data);

/* Points of lines that were dropped from metrics.jsonl: a run may do them again. */
typedef struct tracker_points {
    tracker_point *item;
    int count, room;
} tracker_points;

/* Adds those of the lines of `path` whose steps are after `step`; what is there of such steps is replaced. */
status tracker_points_read(tracker_points *out, const char *path, int64_t step);
/* Is a point of that kind, step and value among them? */
bool tracker_points_have(const tracker_points *all, const tracker_point *wanted);
void tracker_points_free(tracker_points *all);
