/* Rank 0's MLflow tracking, which follows metrics.jsonl. */
#include <stdlib.h>
#include <string.h>

#include "engine/system/lock.h"
#include "engine/tracking/tracker.h"
#include "engine/train/report/training_report.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/parts.h"

/* Seconds that the end of a run waits for the server. */
static const double AFTER_DONE = 20, AFTER_FAILURE = 5;

static const tracker_name names[] = {
#define METRIC(kind, name, when, tag, ...) {#name, tag},
#include "engine/train/report/metrics.def"
};

status training_tracking_login(training *t)
{
    if (!t->config->run.mlflow)
        return STATUS_OK;
    TRY(mlflow_login_take(&t->report->login));
    return mlflow_login_check(&t->report->login, t->config->run.mlflow);
}

status training_tracking_open(training *t)
{
    const config *c = t->config;
    if (!c->run.mlflow)
        return STATUS_OK;
    AUTO_FREE char *parameters = must_format("%lld", (long long)parts_parameters(&c->model.shape));
    AUTO_FREE char *ranks = must_format("%d", comm_ranks(t->world));
    const tracker_name tags[] = {{"mlflow.source.name", "phalanx train"},
                                 {"mlflow.source.type", "JOB"},
                                 {"phalanx.start", t->run},
                                 {"phalanx.host", watchdog_host(t->watchdog)},
                                 {"phalanx.folder", t->folder},
                                 {"phalanx.parameters", parameters},
                                 {"phalanx.ranks", ranks}};
    const char *slash = strrchr(t->folder, '/'), *name = slash && slash[1] ? slash + 1 : t->folder;
    const tracker_options o = {.folder = t->folder,
                               .id = t->run,
                               .address = c->run.mlflow,
                               .experiment = c->run.mlflow_experiment,
                               .name = c->run.mlflow_name ? c->run.mlflow_name : name,
                               .login = &t->report->login,
                               .names = names,
                               .name_count = sizeof names / sizeof *names,
                               .tags = tags,
                               .tag_count = sizeof tags / sizeof *tags,
                               .began = (int64_t)(1000 * report_time()),
                               .owner = t->lock};
    TRY(tracker_open(&t->report->tracker, &o));
    return config_each(c, tracker_parameter, t->report->tracker);
}

void training_tracking_end(training *t, training_ending how)
{
    static const mlflow_rest_state states[] = {[TRAINING_DONE] = MLFLOW_REST_FINISHED,
                                               [TRAINING_STOPPED] = MLFLOW_REST_KILLED,
                                               [TRAINING_FAILED] = MLFLOW_REST_FAILED};
    if (t->report->tracker && !t->evicted &&
        !lock_lost(t->lock)) /* else the folder and the MLflow run are another start's */
        tracker_end(t->report->tracker, states[how], (int64_t)(1000 * report_time()),
                    how == TRAINING_FAILED ? AFTER_FAILURE : AFTER_DONE);
}

status training_tracking_catch_up(training *t)
{
    if (!t->config->run.mlflow)
        return STATUS_OK;
    TRY(training_tracking_open(t));
    TRY(tracker_hold(t->report->tracker, t->at.step));
    TRY(tracker_go_on(t->report->tracker));
    training_tracking_end(t, TRAINING_DONE);
    return STATUS_OK;
}
