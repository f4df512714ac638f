/* What a run tells a person and other programs: the header, a line a step, metrics and events, the summary at its end;
 * copies of them to MLflow. */
#pragma once

#include "engine/files/tensorboard.h"
#include "engine/guard/loads.h"
#include "engine/host/resources.h"
#include "engine/system/lines.h"
#include "engine/tracking/tracker.h"
#include "engine/train/rank/training.h"
#include "engine/train/report/report.h"

/* The report: rank 0's files, what it counts, and what it has said already. */
struct training_report {
    lines *metrics, *events;
    loads *loads;      /* NULL: the model has no experts */
    lines *load_lines; /* loads.jsonl; NULL: it is not written */
    tensorboard *board;
    tracker *tracker;     /* NULL: run.mlflow is not set */
    mlflow_login login;   /* the tracker's */
    resources *resources; /* of this host, kept by its first rank; NULL: nobody asks */
    double flops_per_token, peak_flops;
    double best_loss;       /* of the evaluations of this process */
    int64_t best_step;      /* 0: there was none */
    bool metrics_failing;   /* metrics cannot be written at the moment */
    bool resources_failing; /* nor the host's resources */
    bool stdout_failed;     /* standard output cannot be written any more */
};

/* train_report.c */
/* Fails, with what has become of it, where the run's folder is its own no more: another run has taken the lock, or
 * another folder has its name. Before the run's files are open, a folder that was only moved is not its own either:
 * what was looked for in it may be in the other. Without `look`, as it was seen last. By rank 0, any thread. */
status training_check_folder(const training *t, bool look);
status training_report_open(training *t);
/* Its files, and the threads that serve them; but not what looks at the host. */
void training_report_close(training *t);
void training_header(const training *t);
/* A line in events.jsonl; `words` may be NULL. */
void training_event(training *t, const char *event, int64_t step, const char *words);
/* That a checkpoint is in the run's folder, if it is there still: training_find believes it. */
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

/* train_data.c: the header's lines about the data, and warnings. */
void training_say_data(const training *t);
/* Rank 0: what a step has waited for and fetched; it is said once where training waits for data. */
void training_report_fetched(report_step *out, training *t);
void training_sum_fetched(report_summary_values *out, const training *t);

/* train_tracking.c: nothing, where run.mlflow does not ask for it. */
/* Takes who the run is from the environment, which does not show it any more. On every rank. */
status training_tracking_login(training *t);
/* By rank 0: the server, which is told by a thread. */
status training_tracking_open(training *t);
/* Of a run that is complete: what its server has yet to get. */
status training_tracking_catch_up(training *t);
/* What the run has come to; waits some seconds for the server, if it must. */
typedef enum training_ending { TRAINING_DONE, TRAINING_STOPPED, TRAINING_FAILED } training_ending;
void training_tracking_end(training *t, training_ending how);
