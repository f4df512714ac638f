/* What a person sees of a run, and the same facts for programs: the header, a line a step, the bar of long work,
 * metrics.jsonl and summary.json. Plain values in, text out: nothing here measures, owns or remembers anything except
 * the progress bar, which knows when it was last drawn.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/system/lines.h"
#include "engine/tracking/tracker.h"
#include "kernels/table/axis.h"
#include "memory/status.h"
#include "memory/units.h"

typedef struct islands_counts islands_counts; /* engine/islands/islands.h */
typedef struct mirror_facts mirror_facts;     /* engine/mirror/mirror.h */

/* Seconds since 1970, for people. */
double report_time(void);

typedef struct report_run {
    const char *model;     /* "llama-160m: 12 layers, hidden 768, ..." */
    const char *device;    /* "cpu (2 threads, AVX512-BF16)" */
    const char *precision; /* "bf16" */
    const char *layout;    /* "tensor 2 x data 1 x pipeline 2, 1f1b, ZeRO 1"; NULL on one rank */
    const char *folder;
    int64_t parameters;
    int64_t steps, tokens_per_step;
    int64_t tokens;         /* of all steps */
    int64_t expert_room;    /* rows of a rank, layer and micro-batch; 0: none is dropped */
    double flops_per_token; /* forward and backward, causal attention counted as half */
    double peak_flops;      /* of all ranks together, for the MFU; 0: unknown */
    struct {
        int64_t weights, gradients, optimizer, kept, temporary;
    } memory;                               /* bytes of the largest rank */
    int64_t arena_bytes, lower_bound_bytes; /* the lower bound of its transient part and all persistent tensors */
} report_run;

void report_header(FILE *out, const report_run *run);

typedef struct report_step {
    int64_t step, steps; /* from 1 */
    double left_seconds;
    double time; /* seconds since 1970 */
#define report_real             double
#define report_integer          int64_t
#define METRIC(kind, name, ...) report_##kind name;
#include "engine/train/report/metrics.def"
#undef report_real
#undef report_integer
    const char *skipped; /* why nothing changed; NULL: the weights were updated */
    int rungs;           /* of training programs (layers/ladder.h) */
    bool drops;          /* rows of experts that there is no room for */
    bool mirrors;        /* checkpoints, to an object store */
    bool remote;         /* data lie in an object store */
} report_step;

/* An evaluation: the mean over `sets` data sets by their weights, and each one's. */
typedef struct report_result {
    int64_t step;
    double loss, seconds, time;
    int sets;
    const char *const *name;
    const double *losses;
} report_result;

/* The names of the columns, then one line a step under them. With `json`, for a screen whose lines are objects
 * (run.log_format), the objects of metrics.jsonl without their time. */
void report_columns(FILE *out);
void report_line(FILE *out, const report_step *step, bool json);
void report_evaluation(FILE *out, const report_result *result, bool json);

/* One line of metrics.jsonl each. Values that are not finite become null: JSON has no word for them. */
status report_metrics(lines *out, const report_step *step);
status report_metrics_evaluation(lines *out, const report_result *result);

/* One line of events.jsonl: what happened to the start `run`, beside its steps. */
typedef struct report_happening {
    const char *run, *event;
    int64_t step;
    const char *words;  /* or NULL */
    const char *device; /* started, resumed: where, as a profile is named ("h100"); NULL: not known */
    int ranks;          /* and on how many; 0: not said */
    bool here;          /* it is about what is in the folder: the events of one that was moved do not say it */
} report_happening;

status report_happened(lines *out, const report_happening *what, double time);

/* Something that happened to a run between two steps: {"step": S, KIND: {...}}. */
typedef struct report_event {
    const char *kind; /* "spike"; "undone": the run has gone back */
    int64_t step;     /* the last that is done, and counts */
    int64_t from;     /* undone: the last that was done */
    double loss, norm, loss_zscore, norm_zscore;
    int64_t first_sample, samples; /* left out; 0 samples: none */
    const char *words;             /* NULL: the numbers say it */
} report_event;

/* {"step": S, "islands_disagreement": X} */
status report_metrics_disagreement(lines *out, int64_t step, double apart, double time);
status report_metrics_event(lines *out, const report_event *e, double time);

typedef struct report_rank {
    char host[64];
    int rank, at[AXIS_COORDINATES]; /* in the grid */
    int64_t arena_bytes, arena_used_bytes, peak_resident_bytes;
    int64_t copy_bytes;                                        /* of host memory, for checkpoints */
    int64_t memory_copy_bytes;                                 /* of shared memory, for checkpoints there */
    int64_t bytes_sent[AXIS_COUNT], messages_sent[AXIS_COUNT]; /* of NCCL, calls count as messages */
} report_rank;

typedef struct report_summary_values {
    const char *run; /* the id of this start */
    int64_t parameters, steps;
    bool stopped;                       /* by a signal, before its last step */
    double start_to_first_step_seconds; /* without: */
    double tuning_seconds;              /* choices by timing, once a run */
    int rungs;                          /* of training programs (layers/ladder.h) */
    const int64_t *plays;               /* [rungs]: how often each was played */
    int64_t metrics_lost;               /* lines that could not be written */
    const tracker_counts *tracked;      /* by an MLflow server; NULL: there is none */
    int64_t output_dropped;             /* bytes for a reader of standard output or error that did not read */
    int64_t saves, saves_lost;          /* checkpoints */
    int64_t saves_in_memory;            /* copies in the memory of nodes */
    double save_seconds;                /* that training has waited for them */
    bool remote;                        /* data lie in an object store: */
    double stall_seconds;               /* that training has waited for their blocks */
    int64_t cache_misses, fetched_bytes;
    const islands_counts *islands; /* NULL: the job is no island */
    const mirror_facts *mirror;    /* NULL: there is none */
    double verify_seconds;         /* that verification has taken, on the rank where it took longest */
    int64_t times_back, omitted;   /* steps undone, samples left out for it */
    const char *fell_back;         /* why the run did not go on from the latest checkpoint; NULL: it did */
    int ranks;
    const report_rank *rank;
} report_summary_values;

/* The share of the time in which an island has not stood still for merges. */
double report_computing(const islands_counts *c);

/* How the start `run` has ended, by its summary.json: one of another start says nothing. */
typedef enum report_end { REPORT_UNKNOWN, REPORT_DONE, REPORT_STOPPED } report_end;
report_end report_ending(const char *folder, const char *run);

/* summary.json at `path`, whole or not at all. */
status report_summary(const char *path, const report_summary_values *values);

/* A bar for work of a known (or, with total 0, unknown) amount; with total -1 only the time that it takes is shown.
 * Drawn over itself on a terminal, at most ten times a second; elsewhere a line every 30 s. */
typedef struct report_progress {
    FILE *out;
    const char *title;
    bool bytes; /* amounts are bytes, otherwise counts */
    bool terminal, drawn;
    double total, begun, last; /* times in seconds */
} report_progress;

report_progress report_progress_begin(FILE *out, const char *title, double total, bool bytes);
void report_progress_update(report_progress *p, double done);
/* Removes the bar. */
void report_progress_end(report_progress *p);

/* The text of the bar at a time, without the terminal: what update draws. `width` is that of the terminal. */
void report_progress_text(char *out, int bytes, const report_progress *p, double done, double now, int width);
