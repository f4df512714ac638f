/* The state of a training run on one rank, and functions that all files of the loop use. Their own functions are
 * declared in training_report.h, training_saves.h and training_loop.h. */
#pragma once

#include "engine/checkpoint/manifest.h"
#include "engine/guard/pace.h"
#include "engine/host/incident_log.h"
#include "engine/run/batch.h"
#include "engine/train/rank/train_meta.h"

typedef struct islands islands;           /* engine/islands/islands.h */
typedef struct lock lock;                 /* engine/system/lock.h */
typedef struct mirror_facts mirror_facts; /* engine/mirror/mirror.h */
typedef struct trace trace;               /* engine/run/trace.h */
typedef struct verify verify;             /* engine/guard/verify.h */

/* The data sets of the run. */
typedef struct training_data {
    samples *train, *validation;
    samples **sets; /* validation data sets one by one; of one set, that one */
    int set_count;
    stored *remote;        /* shared state of data sets in an object store */
    tokenizer *tokenizer;  /* rank 0's, saved in checkpoints; NULL: unknown */
    tokenizer_begin begin; /* rank 0's: the beginning of documents that data.train records */
} training_data;

/* Prefetches of data sets in an object store. */
typedef struct training_fetched {
    bool known;
    int64_t step, samples;           /* first step not yet requested, and its first sample */
    int64_t next_step, next_samples; /* expected position at the next request if no step is undone */
    blocks_counts told;              /* counts that this rank has already reported */
    double stall, window_stall, window_seconds;
    int64_t misses, fetched; /* slowest rank's stall, all ranks' counts since the previous step */
    int window_steps;
    bool warned;
} training_fetched;

/* The current step. */
typedef struct training_now {
    int64_t ahead;                     /* first sample of the batch that was read ahead; -1: none */
    batch_facts batch, ahead_batch;    /* facts of this batch, and of the one read ahead */
    int64_t told_left_out;             /* invalid samples found by this rank, in training and evaluations */
    double began, data_seconds;        /* start of the step, and seconds spent on its batch */
    double waited_before;              /* comm_waited() at its start */
    double stalled_before;             /* seconds that a checkpoint delayed its start */
    double router_loss, router_z_loss; /* including their coefficients; 0: none */
    double attention_logit_max;        /* largest attention logit, if QK-clip tracks it */
    double mtp_loss;                   /* mean over its labels, excluding its coefficient; 0: none */
    double dropped_share;              /* share of expert assignments that were dropped */
    char hash[17];                     /* hash of all weights in hexadecimal; "": not taken */
    int bucket, replays;               /* capacity bucket of the experts, and how often it was rerun */
} training_now;

/* Monitors of the run, and counts of undone steps. */
typedef struct training_guards {
    pace *pace;        /* NULL: one rank, or ops are not timed */
    pace_judge *judge; /* used by rank 0 */
    verify *verify;    /* NULL: run.verify_every is 0 */
    comm_sums *pairs;  /* [ranks] checksums of messages sent to and received from each, at the last verification */
    int unverified;    /* failed verifications in a row */
    double verify_seconds, verify_trained;
    bool price_reported;
    int64_t times_back;
} training_guards;

/* Outcome of a step. */
typedef enum training_outcome {
    TRAINING_UPDATED,
    TRAINING_NOT_FINITE, /* skipped: a gradient is not finite */
    TRAINING_NO_SAMPLE,  /* skipped: every sample of its batch is left out */
} training_outcome;

/* Results of a step: the mean loss over its tokens, the gradient's norm before clipping. */
typedef struct training_figures {
    double loss, norm, rate, seconds;
    double stalled; /* seconds spent waiting for a checkpoint */
    training_outcome outcome;
} training_figures;

/* The loop's counts over this process's steps, for the report. */
typedef struct training_counts {
    double first_step_seconds, trained_seconds; /* seconds until the end of the first step; since then */
    int64_t trained_steps;                      /* number of steps run */
    double stall_seconds;                       /* seconds that training waited for blocks of data */
    int64_t cache_misses, fetched_bytes;        /* blocks waited for on all ranks; bytes that all ranks fetched */
    int64_t plays[CAPACITY_BUCKETS];            /* runs of training programs per capacity bucket, reruns included */
} training_counts;

/* Counts of saves, for the report. */
typedef struct training_saving {
    bool beside;                /* training continues while checkpoints are written */
    int64_t copy_bytes;         /* bytes of host memory for that */
    int64_t memory_bytes;       /* bytes of copies in the memory of nodes; 0: no copies */
    int64_t published, lost;    /* saves; lost ones were given up */
    int64_t in_memory;          /* saves in the memory of nodes */
    double seconds;             /* seconds that training waited for saves */
    const mirror_facts *mirror; /* facts as last polled; NULL: no mirror */
} training_saving;

typedef struct training_report training_report; /* report/training_report.h */
typedef struct training_first training_first;   /* train_first.c */
typedef struct training_saves training_saves;   /* saves/training_saves.h */

typedef struct training {
    const config *config;
    comm *world;
    grid grid;
    const device_interface *device;
    compiled compiled;
    executor *executor;
    choices choices;         /* autotuning table, the same on all ranks */
    int64_t expected_beside; /* bytes of the GPU outside the arena */
    watchdog *watchdog;
    learning_rate schedule;
    trace *trace;                 /* NULL: run.trace is off */
    char (*hosts)[INCIDENT_HOST]; /* [ranks] */
    islands *islands;             /* NULL: this job is not an island */
    int slot;                     /* slot of the island, 0 without islands */

    training_position at;
    training_data data;
    training_now now;
    training_fetched fetched;
    training_guards guards;
    training_first *first; /* weights noted in the first steps; NULL: none */
    training_counts counts;
    training_saves *saves;
    training_saving saving;
    training_report *report;

    double began;
    int64_t saved;          /* step of the last save, or of the start */
    lock *lock;             /* lock of the run's folder, held by rank 0; NULL: run.lock is off */
    char run[MANIFEST_RUN]; /* id of this start, the same on all ranks */
    char *folder, *checkpoints;
    char *resume;             /* checkpoint.resume: "auto", "never" or a local folder */
    incident_log_held ending; /* the incident that ends the run, if this rank knows it */
    bool new_stage;           /* this process begins a stage, from another run's checkpoint */
    char *stage;              /* description of the new stage; NULL: no new stage */
    char *fell_back;          /* rank 0: why the run skips the latest checkpoint; NULL: it does not */
    int place;                /* rank 0: a descriptor of the folder in which the run begins; -1: none */
    bool evicted;             /* another run may use the folder, or its name now belongs to another folder */
} training;

/* Returns the number of samples of a data set that an evaluation uses: evaluate.batches global batches, or all
 * samples. */
int64_t training_evaluation_samples(const training *t, int set);
/* Return the samples over all ranks and the micro-batches per rank of step number `step`, from 0. */
int training_batch(const training *t, int64_t step);
int training_microbatches(const training *t, int64_t step);
/* Returns the number of samples consumed by the first `step` steps. */
int64_t training_samples_at(const training *t, int64_t step);

/* Ends the run with this message, the same on all ranks: records an incident and returns a failure. */
status training_fail(training *t, incident_verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Makes an incident about rank `rank`, not this one, or with -1 about no rank; `text` outlives it. */
incident training_make_incident(const training *t, watchdog_text *text, incident_verdict verdict, const char *words,
                                int rank);
