/* The output of a run for people and programs: the header, a line per step, metrics and events, the final summary, and
 * copies of them in MLflow. */
#pragma once

#include "engine/files/tensorboard.h"
#include "engine/guard/loads.h"
#include "engine/host/resources.h"
#include "engine/system/lines.h"
#include "engine/tracking/tracker.h"
#include "engine/train/rank/training.h"
#include "engine/train/report/report.h"

/* The report's state: rank 0's files, its counts, and the failures it has reported. */
struct training_report {
    lines *metrics, *events;
    loads *loads;      /* NULL: the model has no experts */
    lines *load_lines; /* loads.jsonl; NULL: not written */
    tensorboard *board;
    tracker *tracker;     /* NULL: run.mlflow is off */
    mlflow_login login;   /* credentials of the tracker */
    resources *resources; /* resources of this host, on its first rank; NULL: not tracked */
    double flops_per_token, peak_flops;
    double best_loss;       /* lowest loss of this process's evaluations */
    int64_t best_step;      /* 0: no evaluation */
    bool metrics_failing;   /* writing metrics fails at the moment */
    bool resources_failing; /* reading the host's resources fails at the moment */
    bool stdout_failed;     /* standard output has failed for good */
};

/* train_report.c */
/* Fails, with the reason, if the run has lost its folder: another run took the lock (STATUS_LOST), or another folder
 * has its name. Until the run's files are open a moved folder counts as lost: earlier look-ups may have read another
 * one. Without `look` a folder's last known place counts. Rank 0 only, any thread. */
status training_check_folder(const training *t, bool look);
status training_report_open(training *t);
/* Closes its files and their threads, but not the reader of the host's resources. */
void training_report_close(training *t);
void training_header(const training *t);
/* Appends a line to events.jsonl; `words` may be NULL. */
void training_event(training *t, const char *event, int64_t step, const char *words);
/* Records that a checkpoint is in the run's folder, if it still exists: training_find relies on it. */
void training_event_saved(training *t, int64_t step, const char *name);
/* Reports a step. The first failure to print or write is reported, and the run continues. */
void training_report_step(training *t, const training_figures *f);
/* `losses`: one per data set of validation; `seconds`: their total. */
void training_report_evaluation(training *t, const double *losses, double seconds);
/* Removes the lines of undone steps after the present one, and appends one with the reason. */
status training_report_undone(training *t, const report_event *what);
void training_report_disagreement(training *t, double apart); /* distance of gossiping islands */
void training_report_event(training *t, const report_event *what);
status training_summary(training *t, bool stopped);
/* Prints the closing line: how much was trained, the result, and the next command. */
void training_say_done(const training *t);

/* train_data.c: the header's lines about the data, and warnings. */
void training_say_data(const training *t);
/* Rank 0: fills in a step's waits and fetches of data; warns once if training waits for data. */
void training_report_fetched(report_step *out, training *t);
bool training_has_remote(const training *t); /* data lie in an object store */

/* train_tracking.c: no-ops unless run.mlflow is set. */
/* Takes the credentials from the environment and removes them there. Every rank calls it. */
status training_tracking_login(training *t);
/* Rank 0: opens the connection to the server, which a thread serves. */
status training_tracking_open(training *t);
/* Uploads remaining metrics of a finished run. */
status training_tracking_catch_up(training *t);
/* Sends the run's outcome; waits some seconds for the server if needed. */
typedef enum training_ending { TRAINING_DONE, TRAINING_STOPPED, TRAINING_FAILED } training_ending;
void training_tracking_end(training *t, training_ending how);
