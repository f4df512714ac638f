/* The state of a training run on one rank, shared by the files that make up the loop (train.c, train_setup.c,
 * train_aside.c, train_mirror.c, train_branch.c, train_upload.c, train_restore.c, train_checkpoint.c, train_report.c,
 * train_tracking.c, train_data.c). */
#ifndef PHALANX_ENGINE_TRAIN_TRAINING_H
#define PHALANX_ENGINE_TRAIN_TRAINING_H

#include "engine/run/choices.h"
#include "engine/config/config.h"
#include "engine/run/batch.h"
#include "engine/run/executor.h"
#include "engine/files/lines.h"
#include "engine/files/lock.h"
#include "engine/files/mlflow.h"
#include "engine/files/tensorboard.h"
#include "engine/outer/outer.h"
#include "engine/checkpoint/checkpoint_find.h"
#include "engine/checkpoint/checkpoint_place.h"
#include "engine/mirror/mirror.h"
#include "engine/guard/pace.h"
#include "engine/train/report.h"
#include "engine/host/incidents.h"
#include "engine/host/resources.h"
#include "engine/data/samples.h"
#include "engine/state/exporter.h"
#include "engine/state/node_copies.h"
#include "engine/state/saver.h"
#include "engine/run/trace.h"
#include "engine/train/loads.h"
#include "engine/train/train_meta.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tracking/tracker.h"
#include "engine/guard/verify.h"
#include "parallel/watch/watchdog.h"

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
    char *origin, *back; /* folders of checkpoints: which this process began from, and which it goes back to; or NULL */
    int64_t times_back;
} training_guards;

/* Checkpoints, on the disk and in the memory of nodes. */
typedef struct training_saves {
    saver *saver;                     /* NULL before training_save_open */
    bool beside;                      /* training continues while it writes */
    int64_t copy_bytes;               /* host memory that it takes */
    int64_t published, lost;          /* saves; lost ones were given up */
    bool refused;                     /* a state: a value of it is not finite */
    int64_t saved;                    /* the step that was saved last, or begun from */
    node_copies *copies;              /* in the memory of nodes; NULL before training_restore */
    int64_t in_memory;                /* saves there */
    double seconds;                   /* that training has waited for the saver */
    exporter *exporter;               /* rank 0's; NULL: checkpoint.export is not set */
    char *extra_name, *extra_choices; /* names of the files that go with a checkpoint */
} training_saves;

/* The mirror of the checkpoints in an object store, under checkpoint.mirror; rank 0's. */
typedef struct training_mirroring {
    mirror *thread;          /* NULL before training_upload_open, and on other ranks */
    char id[MANIFEST_RUN];   /* of the run over all its starts; "": it has none */
    bool held;               /* this start has written that it holds the mirror */
    checkpoint_place newest; /* in the mirror where the run began; step -1: it is not known */
    mirror_facts facts;      /* at the last look */
} training_mirroring;

/* Where the run is in its own history, which it may have gone back in. */
typedef struct training_branch {
    checkpoint_place loaded; /* of the checkpoint that was loaded last */
    checkpoint_place now;    /* rank 0's: its branch, and those before; the step is the one that it began with */
} training_branch;

/* What has become of a step. */
typedef enum training_outcome {
    TRAINING_UPDATED,
    TRAINING_NOT_FINITE, /* skipped: a gradient is not finite */
    TRAINING_NO_SAMPLE,  /* skipped: every sample of its batch is left out */
} training_outcome;

/* What a step has come to: the mean loss over its tokens, the gradient's norm before clipping. */
typedef struct training_figures {
    double loss, norm, rate, seconds;
    training_outcome outcome;
} training_figures;

/* The report: rank 0's files, what it counts, and what it has said already. */
typedef struct training_report {
    lines *metrics, *events;
    loads *loads;      /* NULL: the model has no experts */
    lines *load_lines; /* loads.jsonl; NULL: it is not written */
    tensorboard *board;
    mlflow *mlflow;                             /* NULL: not exported to */
    tracker *tracker;                           /* NULL: run.mlflow is not set */
    mlflow_login login;                         /* the tracker's */
    resources *resources;                       /* of this host, kept by its first rank; NULL: nobody asks */
    double first_step_seconds, trained_seconds; /* since the first step of this process ended */
    int64_t trained_steps;                      /* that were played, by this process */
    double stall_seconds;                       /* that training has waited for blocks of data */
    int64_t cache_misses, fetched_bytes;        /* blocks that it has waited for, of all ranks; what they fetched */
    int64_t plays[LADDER_RUNGS];                /* of training programs by rung, steps played again each time */
    double flops_per_token, peak_flops;
    double best_loss;       /* of the evaluations of this process */
    int64_t best_step;      /* 0: there was none */
    bool metrics_failing;   /* metrics cannot be written at the moment */
    bool resources_failing; /* nor the host's resources */
    bool stdout_failed;     /* standard output cannot be written any more */
} training_report;

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
    outer *outer;                 /* NULL: this job is no island */
    int slot;                     /* of the island, 0 without */

    training_position at;
    training_data data;
    training_now now;
    training_fetched fetched;
    training_guards guards;
    training_saves saves;
    training_mirroring mirroring;
    training_branch branch;
    training_report report;

    double began;
    lock *lock;             /* rank 0's, of the run's folder; NULL: run.lock is off */
    char run[MANIFEST_RUN]; /* this start's id, the same on all ranks */
    char *folder, *checkpoints, *exports;
    char *resume;          /* checkpoint.resume: "auto", "never" or a folder of the disk */
    incidents_held ending; /* what ends the run, if this rank knows it */
    bool new_stage;        /* this process begins a stage, from another run's checkpoint */
    char *stage;           /* in words; NULL: it does not */
    char *fell_back;       /* rank 0: why the run does not go on from the latest checkpoint; NULL: it does */
    int place;             /* rank 0: a descriptor of the folder in which the run begins; -1: none */
    bool evicted;          /* another run may be at work in the folder, or another folder has its name */
} training;

/* train_setup.c */
status training_open(training *t, const config *c, comm *world, watchdog *w, double began);
void training_close(training *t);
/* Collective. */
void training_measure_reserve(training *t);
/* Rank 0, while the run begins: is the folder that has its name the one in which it took the lock? If not, what was
 * looked for in it may be in the other. */
status training_check_place(const training *t);

/* train_aside.c: with checkpoint.resume=never, what an earlier run has left in the folder goes to FOLDER/earlier-N. By
 * rank 0. */
status training_move_aside(const training *t);

/* train_mirror.c: nothing, without checkpoint.mirror or an s3:// path in checkpoint.resume. Collective.
 *
 * While the run begins, in its folder; again, with `aside`, when an earlier run has been moved aside. Whose the mirror
 * is is settled, and what is newer in it is fetched. */
status training_mirror_begin(training *t, bool aside);
void training_mirror_report(report_step *out, const training *t);
/* `out`, filled, or NULL. */
const report_mirror *training_mirror_summary(report_mirror *out, const training *t);

/* train_branch.c: by rank 0, while the run begins. */
/* events.jsonl says which checkpoints a run has saved: the name of the last one, the caller's; NULL: none. */
status training_find_saved(char **out, const training *t);
/* The checkpoint of the folder that the run would go on from; step -1: none. *went_back: a person has let it name an
 * earlier one than the run has saved last. */
status training_branch_look(checkpoint_place *out, bool *went_back, const training *t);
/* Leaves out what is no part of the history of the first of them: it has been undone. */
void training_branch_sift(checkpoint_offers *offers);
/* What has been loaded may be an earlier state than the last one: then a branch begins. */
status training_branch_begin(training *t);

/* train_upload.c: nothing, without checkpoint.mirror. */
/* After training_save_open. Not collective. */
status training_upload_open(training *t);
/* Between steps: what has become of uploads. */
void training_upload_look(training *t);
/* Waits for the last upload, so long at most as a save may take, a minute where the run was asked to stop. */
void training_upload_finish(training *t, bool stopped);

/* How many samples an evaluation takes of a data set: evaluate.batches global batches, or all there are. */
int64_t training_evaluation_samples(const training *t, int set);
/* Of step number `step`, from 0: samples over all ranks, and micro-batches of a rank. */
int training_batch(const training *t, int64_t step);
int training_microbatches(const training *t, int64_t step);
/* How many samples have been consumed when `step` steps are done. */
int64_t training_samples_at(const training *t, int64_t step);

/* train_restore.c */
/* The latest checkpoint that is whole, or the one checkpoint.resume names, or initial weights (drawn, or
 * model.from's). */
status training_restore(training *t);

/* Undoes the steps since the checkpoint `back`, or since the run began. Collective, between steps. */
status training_go_back(training *t);

/* train_numbers.c */
/* What the numbers of the step just done mean: all is well; or a spike, which is said; or, under run.spike.rewind, one
 * that has been undone (*undone): the run goes on from an earlier step, behind the data that led to it. Collective. */
status training_judge(bool *undone, training *t, double loss, double norm, bool skipped);

/* What all ranks have said of the pace of the step before. */
void training_judge_pace(training *t, const pace_share *shares, int64_t stride);

/* train_verify.c */
status training_open_verify(training *t);
/* Is the state after this step what it must be, on all ranks? *undone: it was not, and the run has gone back to a step
 * that is verified. Collective. */
status training_verify(bool *undone, training *t);

/* train_checkpoint.c */
/* Once a run, before its first step: refuses where a copy of the state is asked for and does not fit. */
status training_save_open(training *t);
/* Begins to save what this step has left; a save that is still under way is waited for. The last one of a run is waited
 * for and must succeed; any other is looked after by training_save_advance, and if it fails the run goes on. */
status training_save(training *t, bool last);
/* The same into the memory of this node and a neighbour's. */
status training_save_in_memory(training *t);
/* What all ranks have said of their saver_progress; fails where a state was not saved since it is not finite.
 * Collective. */
status training_save_advance(training *t, bool any_working, bool any_failed);
/* Waits for the save under way, if there is one. Collective. */
status training_save_finish(training *t);
/* Every parameter's gradient of the step just played, under debug.gradients. */
status training_dump_gradients(training *t);

/* train_export.c: nothing, where checkpoint.export is not set. By rank 0. */
/* Refuses a model that has no config.json; begins with what an earlier start has not come to. */
status training_export_open(training *t);
/* A checkpoint is published. */
void training_export_saved(training *t, int64_t step, const char *name);
/* Does it wait to be exported? Any thread. */
bool training_export_holds(const training *t, const char *name);
void training_export_finish(training *t); /* waits for all */
void training_export_close(training *t);  /* gives up what is under way */

/* train_islands.c: nothing, for a job that is no island. Collective. */
status training_islands_join(training *t); /* before the first step */
status training_islands_step(training *t); /* after each */
status training_islands_save(training *t); /* before a checkpoint */
status training_islands_leave(training *t);

/* train_data.c: the header's lines about the data, and warnings. */
void training_say_data(const training *t);
/* Before a step's batch is taken: what steps to come read is fetched from the store. */
void training_fetch_ahead(training *t);
/* The same for an evaluation of data set number `set`: samples of this rank from `first` on, every so many. */
void training_fetch_evaluation(const training *t, int set, int64_t end, int64_t together);
/* What this rank has waited for and fetched since it was asked last. */
blocks_counts training_counts_fetched(training *t);
/* Rank 0: what a step has waited for and fetched; it is said once where training waits for data. */
void training_report_fetched(report_step *out, training *t);
void training_sum_fetched(report_summary_values *out, const training *t);

/* train_tracking.c: nothing, where neither run.export nor run.mlflow asks for it. */
/* Takes who the run is from the environment, which does not show it any more. On every rank. */
status training_tracking_login(training *t);
/* By rank 0: the file store that lines are written to; and the server, which is told by a thread. */
status training_open_store(training *t);
status training_tracking_open(training *t);
/* Between the two, lines are dropped from metrics.jsonl. */
status training_tracking_hold(training *t);
status training_tracking_go_on(training *t);
/* Of a run that is complete: what its server has yet to get. */
status training_tracking_catch_up(training *t);
/* What the run has come to; waits some seconds for the server, if it must. */
typedef enum training_ending { TRAINING_DONE, TRAINING_STOPPED, TRAINING_FAILED } training_ending;
void training_tracking_end(training *t, training_ending how);

/* train_report.c */
/* The run ends with these words, which all ranks have found alike: kept as an incident, and returned as a failure. */
status training_end_for(training *t, incident_verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
status training_report_open(training *t);
void training_header(const training *t);
/* A line in events.jsonl; `words` may be NULL. */
void training_event(training *t, const char *event, int64_t step, const char *words);
/* That a checkpoint is in the run's folder, if it is there still: training_find_saved believes it. */
void training_event_saved(training *t, int64_t step, const char *name);
/* What cannot be shown or written is said once, and does not stop the run. */
void training_report_step(training *t, const training_figures *f);
/* `losses`: of each data set of validation; `seconds` of all. */
void training_report_evaluation(training *t, const double *losses, double seconds);
/* Steps after the present one have been undone: their lines go, and one says why. */
status training_report_undone(training *t, const report_event *what);
void training_report_disagreement(training *t, double apart); /* of islands that gossip */
void training_report_event(training *t, const report_event *what);
status training_summary(training *t, bool stopped);
/* A closing line: how much was trained, how well, and what to do with it. */
void training_say_done(const training *t);

#endif
