/* Pictures that `phalanx timeline` draws: predicted or measured steps, a row for each stage or rank. Times are
 * microseconds since the start of the step. */
#pragma once

#include <jansson.h>

#include "engine/compile/compile.h"
#include "engine/compile/plan/plan.h"
#include "engine/run/trace.h"

/* A transfer goes along an axis, or between a device and its host's memory. */
enum { PICTURE_HOST = AXIS_COUNT, PICTURE_ALONG };
const char *picture_along(int along);

/* Each moment of a row is of one kind; the kinds' shares sum to the step. */
typedef enum picture_kind {
    PICTURE_FORWARD,
    PICTURE_BACKWARD,
    PICTURE_WEIGHT,
    PICTURE_UPDATE,
    PICTURE_WAIT,    /* exposed wait for a transfer */
    PICTURE_BUBBLE,  /* wait for other stages, or for the last rank to end its step */
    PICTURE_CORES,   /* wait for a core of the host, which the ranks share */
    PICTURE_LAUNCH,  /* measured: a host passes messages to MPI */
    PICTURE_BETWEEN, /* measured: MPI moves messages, or another process has the core */
    PICTURE_KINDS
} picture_kind;
/* Names the bubble at a step's end. */
#define PICTURE_LAST "until the last rank is done"
/* Returns the kind in words, for a legend. */
const char *picture_kind_words(picture_kind kind);

/* A span of a row: an op, or a wait for a transfer along an axis. */
typedef struct picture_span {
    double begin, end;
    picture_kind kind;
    int name, microbatch, chunk, op; /* index of picture_name; microbatch -1: none */
    int along;                       /* axis of a wait; else PICTURE_ALONG */
} picture_span;

typedef struct picture_transfer {
    double begin, end;
    int along;
    int name;
} picture_transfer;

/* One end of a message from a row to another. */
typedef struct picture_flow {
    double at;
    int64_t id; /* common to both ends */
    bool arrives;
} picture_flow;

typedef struct picture_row {
    char *name;
    int rank;
    picture_span *spans;
    picture_transfer *transfers;
    picture_flow *flows;
    int span_count, transfer_count, flow_count;
    double *ends; /* [ops] of the rank's program */
    trace_marks marks;
    int64_t class_bytes[CLASS_COUNT], arena;
    int ops;
    double kinds[PICTURE_KINDS]; /* microseconds */
} picture_row;

typedef struct picture {
    char *name;       /* "predicted", "measured, step 12" */
    const char *each; /* unit of a row: "stage", "rank" */
    char *note;       /* or NULL */
    double length;
    double kinds[PICTURE_KINDS];   /* shares of the step, the mean over the rows: they sum to 1 */
    double exposed[PICTURE_ALONG]; /* kinds[PICTURE_WAIT] by the axis that was waited for */
    json_t *causes;                /* [[words, share], ...], or NULL */
    int chunks;
    picture_row *rows;
    int count;
} picture;

/* Names of ops, each once; a picture stores their indices. */
typedef struct picture_names {
    json_t *place, *list; /* indices by name; names in order */
} picture_names;

int picture_name(picture_names *n, const char *name);

void picture_add_span(picture_row *r, picture_span s);
/* Adds a span without an op, unless it is empty. */
void picture_fill(picture_row *r, double begin, double end, picture_kind kind, int name);
void picture_add_transfer(picture_row *r, picture_transfer t);
void picture_add_flow(picture_row *r, picture_flow f);
/* Takes the memory of a rank's program; `c` is compiled for it. */
void picture_take_memory(picture_row *r, const compiled *c);
/* Bytes of transient tensors alive from `begin` on. */
typedef struct picture_moment {
    double begin; /* microseconds */
    int64_t kept, rest;
} picture_moment;
enum { PICTURE_MOMENTS = 400 };
/* Samples a row's memory: the moment with most bytes alive in each of PICTURE_MOMENTS parts of a step of `length`
 * microseconds. Returns how many of out[PICTURE_MOMENTS] were set; a part in which no op ends has none. */
int picture_sample_memory(picture_moment *out, const picture_row *r, double length);
picture_kind picture_kind_of(phase p);
/* Sorts spans by time, fills gaps between and after them, and sums the kinds; called after all spans are added. */
void picture_complete(picture *p, picture_names *names);
void picture_free(picture *p);

/* Returns the page's JSON: spans in order of time; if there are too many, one for each action. */
json_t *picture_json(const picture *p, const picture_names *names, int most_spans);
/* Adds the picture as events of the Trace Event Format, with processes numbered from `first`. */
void picture_events(json_t *into, const picture *p, const picture_names *names, int first);

/* The memory of a step, drawn as SVG: a band for each row, in which the tensor classes are stacked. */

/* Writes `picture`. All rows have one scale, so that stages can be compared. */
void timeline_memory_svg(FILE *out, const void *picture);

/* Sources of `phalanx timeline`'s pictures. */

/* Predicts the step by simulation: a row for one rank of each stage. */
status timeline_predict(picture *out, picture_names *names, const plan *p);
/* Reads step `step` (-1: the last) of a traced run: a row for each rank, or, in a very large run, for the first rank of
 * each stage. *traced: false (and `out` empty) if the run has no trace. `o`: the run's options, for its ranks'
 * memory. */
status timeline_measure(picture *out, bool *traced, picture_names *names, const char *run, int64_t step,
                        const compile_options *o);
