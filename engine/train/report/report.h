/* Formats the facts of a run for people and for programs: the header, a line per step, the progress bar, metrics.jsonl
 * and summary.json. Plain values in, text out: it measures, owns and remembers no state except the progress bar's time
 * of the last drawing.
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

/* Returns seconds since 1970. */
double report_time(void);

typedef struct report_run {
    const char *model;     /* "llama-160m: 12 layers, hidden 768, ..." */
    const char *device;    /* "cpu (2 threads, AVX512-BF16)" */
    const char *precision; /* "bf16" */
    const char *layout;    /* "tensor 2 x data 1 x pipeline 2, 1f1b, ZeRO 1"; NULL on one rank */
    const char *folder;
    int64_t parameters;
    int64_t steps, tokens_per_step;
    int64_t tokens;         /* total over all steps */
    int64_t expert_room;    /* rows per rank, layer and micro-batch; 0: unlimited */
    double flops_per_token; /* forward and backward, causal attention counted as half */
    double peak_flops;      /* sum over all ranks, for the MFU; 0: unknown */
    struct {
        int64_t weights, gradients, optimizer, kept, temporary;
    } memory;                               /* bytes of the largest rank */
    int64_t arena_bytes, lower_bound_bytes; /* lower bound: of its transient part, plus all persistent tensors */
} report_run;

void report_header(FILE *out, const report_run *run);

typedef double report_real;
typedef int64_t report_integer;
typedef const char *report_text;

typedef struct report_step {
    int64_t step, steps; /* counted from 1 */
    double left_seconds;
    double time; /* seconds since 1970 */
#define METRIC(kind, name, ...) report_##kind name;
#include "engine/train/report/metrics.def"
    const char *hash;    /* hash of the weights in hexadecimal; NULL: not taken */
    const char *skipped; /* why the weights did not change; NULL: they were updated */
    int buckets;         /* capacity buckets of training programs (layers/capacity.h) */
    bool drops;          /* experts drop rows beyond their capacity */
    bool mirrors;        /* checkpoints are mirrored to an object store */
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

/* Print the names of the columns, then one line per step. With `json` (run.log_format) a line is the object of
 * metrics.jsonl without its time. */
void report_columns(FILE *out);
void report_line(FILE *out, const report_step *step, bool json);
void report_evaluation(FILE *out, const report_result *result, bool json);

/* Append one line of metrics.jsonl each. Values that are not finite become null, as JSON cannot represent them. */
status report_metrics(lines *out, const report_step *step);
status report_metrics_evaluation(lines *out, const report_result *result);

/* A line of events.jsonl: an event of the start `run`. */
typedef struct report_happening {
    const char *run, *event;
    int64_t step;
    const char *words;  /* or NULL */
    const char *device; /* device of started, resumed: named like a profile ("h100"); NULL: unknown */
    int ranks;          /* ranks of started, resumed; 0: unknown */
    bool here;          /* it concerns the folder's contents: lines about a moved folder omit it */
} report_happening;

status report_happened(lines *out, const report_happening *what, double time);

/* An event between two steps of a run: {"step": S, KIND: {...}}. */
typedef struct report_event {
    const char *kind; /* "spike"; "undone": the run went back */
    int64_t step;     /* last completed step that counts */
    int64_t from;     /* undone: last completed step before going back */
    double loss, norm, loss_zscore, norm_zscore;
    int64_t first_sample, samples; /* samples left out; 0 samples: none */
    const char *words;             /* NULL: the numbers suffice */
} report_event;

/* Appends {"step": S, "islands_disagreement": X}. */
status report_metrics_disagreement(lines *out, int64_t step, double apart, double time);
status report_metrics_event(lines *out, const report_event *e, double time);

typedef struct report_rank {
    char host[64];
    int rank, at[AXIS_COORDINATES]; /* coordinates in the grid */
    int64_t arena_bytes, arena_used_bytes, peak_resident_bytes;
    int64_t copy_bytes;                                        /* bytes of host memory for checkpoints */
    int64_t memory_copy_bytes;                                 /* bytes of shared memory for checkpoints in memory */
    int64_t bytes_sent[AXIS_COUNT], messages_sent[AXIS_COUNT]; /* each NCCL call counts as a message */
} report_rank;

typedef struct report_summary_values {
#define SUMMARY(kind, name, ...) report_##kind name;
#include "engine/train/report/summary.def"
    bool remote;                   /* data lie in an object store */
    int buckets;                   /* capacity buckets of training programs (layers/capacity.h) */
    const int64_t *plays;          /* [buckets] runs of each */
    const tracker_counts *tracked; /* counts of the MLflow server; NULL: none */
    const islands_counts *islands; /* NULL: the job is not an island */
    const mirror_facts *mirror;    /* NULL: no mirror */
    int ranks;
    const report_rank *rank;
} report_summary_values;

/* Returns the share of time in which an island did not wait for merges. */
double report_computing(const islands_counts *c);

/* Tells from summary.json how the start `run` ended; unknown if the file is another start's. */
typedef enum report_end { REPORT_UNKNOWN, REPORT_DONE, REPORT_STOPPED } report_end;
report_end report_ending(const char *folder, const char *run);

/* Writes summary.json at `path`, atomically. */
status report_summary(const char *path, const report_summary_values *values);

/* A progress bar of a known (or, with total 0, unknown) amount of work; with total -1 it shows only elapsed time. A
 * terminal is redrawn at most ten times a second; elsewhere it prints a line every 30 s. */
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

/* Formats the bar at a time, without the terminal: the text that update draws. `width`: of the terminal. */
void report_progress_text(char *out, int bytes, const report_progress *p, double done, double now, int width);
