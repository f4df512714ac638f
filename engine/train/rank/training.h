/* The state of a training run on one rank, and what all files of the loop ask of it. What they do is declared in
 * training_report.h, training_saves.h and training_loop.h. */
#pragma once

#include "engine/checkpoint/manifest.h"
#include "engine/guard/pace.h"
#include "engine/host/incident_log.h"
#include "engine/run/batch.h"
#include "engine/train/rank/train_meta.h"

typedef struct islands islands;           /* engine/islands/islands.h */
typedef struct lock lock;                 /* engine/system/lock.h */
typedef struct mirror_facts mirror_facts; /* engine/mirror/mirror.h */
typedef struct tokenizer tokenizer;       /* engine/tokenizer/tokenizer.h */
typedef struct trace trace;               /* engine/run/trace.h */
typedef struct verify verify;             /* engine/guard/verify.h */

/* What the run reads. */
typedef struct training_data {
    samples *train, *validation;
    samples **sets; /* the data sets of validation, each by itself; with one that one */
    int set_count;
    stored *remote;       /* what those in an object store share */
    tokenizer *tokenizer; /* rank 0's, to go with the checkpoints; NULL: none is known */
} training_data;

/* What is fetched ahead of data sets in an object store. */
typedef struct training_fetched {
    bool known;
    int64_t step, samples;           /* the first step that has not been asked for, and its first sample */
    int64_t next_step, next_samples; /* where the run is by the next time, if nothing is undone */
    blocks_counts told;              /* what this rank has told the others of */
    double stall, window_stall, window_seconds;
    int64_t misses, fetched; /* stall: the most of a rank; these: of all ranks; since the step before */
    int window_steps;
    bool warned;
} training_fetched;

/* The step that is being made. */
typedef struct training_now {
    int64_t ahead;                     /* the first sample of the batch that has been read ahead; -1: none has */
    batch_facts batch, ahead_batch;    /* of this batch, and of that one */
    int64_t told_left_out;             /* samples that this rank has found bad, in training and evaluations */
    double began, data_seconds;        /* when it began, and how long its batch took */
    double waited_before;              /* comm_waited() when it began */
    double stalled_before;             /* seconds that it could not begin, for a checkpoint */
    double router_loss, router_z_loss; /* with their coefficients; 0: there is none */
    double attention_logit_max;        /* the largest score of attention, where QK-clip watches it */
    double mtp_loss;                   /* mean over its labels, without its coefficient; 0: there is none */
    double dropped_share;              /* of the assignments to experts */
    int rung, replays; /* of experts: the rung that it was played on, and how often it was played again */
} training_now;

/* What watches the run, and what has been undone. */
typedef struct training_guards {
    pace *pace;        /* NULL: one rank, or ops that are not timed */
    pace_judge *judge; /* rank 0's */
    verify *verify;    /* NULL: run.verify_every is 0 */
    comm_sums *pairs;  /* [ranks]: what was sent to and received from each, at the last verification */
    int unverified;    /* verifications in a row that have failed */
    double verify_seconds, verify_trained;
    bool price_reported;
    int64_t times_back;
} training_guards;

/* What has become of a step. */
typedef enum training_outcome {
    TRAINING_UPDATED,
    TRAINING_NOT_FINITE, /* skipped: a gradient is not finite */
    TRAINING_NO_SAMPLE,  /* skipped: every sample of its batch is left out */
} training_outcome;

/* What a step has come to: the mean loss over its tokens, the gradient's norm before clipping. */
typedef struct training_figures {
    double loss, norm, rate, seconds;
    double stalled; /* seconds that it has waited for a checkpoint */
    training_outcome outcome;
} training_figures;

/* What the loop counts of this process's steps, for the report. */
typedef struct training_counts {
    double first_step_seconds, trained_seconds; /* until the first step has ended; since then */
    int64_t trained_steps;                      /* that were played */
    double stall_seconds;                       /* that training has waited for blocks of data */
    int64_t cache_misses, fetched_bytes;        /* blocks that it has waited for, of all ranks; what they fetched */
    int64_t plays[LADDER_RUNGS];                /* of training programs by rung, steps played again each time */
} training_counts;

/* What saves have come to, for the report. */
typedef struct training_saving {
    bool beside;                /* training continues while checkpoints are written */
    int64_t copy_bytes;         /* host memory that that takes */
    int64_t memory_bytes;       /* of copies in the memory of nodes; 0: there are none */
    int64_t published, lost;    /* saves; lost ones were given up */
    int64_t in_memory;          /* saves there */
    double seconds;             /* that training has waited for them */
    const mirror_facts *mirror; /* at the last look; NULL: there is none */
} training_saving;

typedef struct training_report training_report; /* report/training_report.h */
typedef struct training_saves training_saves;   /* saves/training_saves.h */

typedef struct training {
    const config *config;
    comm *world;
    grid grid;
    const device_interface *device;
    compiled compiled;
    executor *executor;
    choices choices;         /* made by timing; the same on all ranks */
    int64_t expected_beside; /* bytes of the GPU, beside the arena */
    watchdog *watchdog;
    learning_rate schedule;
    trace *trace;                 /* NULL: run.trace is not set */
    char (*hosts)[INCIDENT_HOST]; /* [ranks] */
    islands *islands;             /* NULL: this job is no island */
    int slot;                     /* of the island, 0 without */

    training_position at;
    training_data data;
    training_now now;
    training_fetched fetched;
    training_guards guards;
    training_counts counts;
    training_saves *saves;
    training_saving saving;
    training_report *report;

    double began;
    int64_t saved;          /* the step that was saved last, or begun from */
    lock *lock;             /* rank 0's, of the run's folder; NULL: run.lock is off */
    char run[MANIFEST_RUN]; /* this start's id, the same on all ranks */
    char *folder, *checkpoints;
    char *resume;             /* checkpoint.resume: "auto", "never" or a folder of the disk */
    incident_log_held ending; /* what ends the run, if this rank knows it */
    bool new_stage;           /* this process begins a stage, from another run's checkpoint */
    char *stage;              /* in words; NULL: it does not */
    char *fell_back;          /* rank 0: why the run does not go on from the latest checkpoint; NULL: it does */
    int place;                /* rank 0: a descriptor of the folder in which the run begins; -1: none */
    bool evicted;             /* another run may be at work in the folder, or another folder has its name */
} training;

/* How many samples an evaluation takes of a data set: evaluate.batches global batches, or all there are. */
int64_t training_evaluation_samples(const training *t, int set);
/* Of step number `step`, from 0: samples over all ranks, and micro-batches of a rank. */
int training_batch(const training *t, int64_t step);
int training_microbatches(const training *t, int64_t step);
/* How many samples have been consumed when `step` steps are done. */
int64_t training_samples_at(const training *t, int64_t step);

/* The run ends with these words, which all ranks have found alike: kept as an incident, and returned as a failure. */
status training_end_for(training *t, incident_verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* An incident about another rank than this one, or, with -1, about none; `text` outlives it. */
incident training_incident_of(const training *t, watchdog_text *text, incident_verdict verdict, const char *words,
                              int rank);
