/* Handles numbers with which a run cannot continue: spikes, and too many steps without finite gradients. */
#include <math.h>
#include <stdlib.h>

#include "engine/guard/loads.h"
#include "engine/guard/verify.h"
#include "engine/host/incident_log.h"
#include "engine/islands/islands.h"
#include "engine/train/training_loop.h"
#include "engine/train/report/training_report.h"
#include "engine/train/saves/training_saves.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Most rewinds to the same step in a row: each leaves out twice as many samples. */
enum { MOST_TIMES = 8 };

typedef struct finding {
    double loss, norm;
    spike_scores scores;
    bool skipped; /* too many skipped steps in a row */
} finding;

static char *describe_finding(const training_position *at, const finding *f)
{
    if (f->skipped)
        return must_format("step %lld: gradients were not finite for %lld steps in a row (train.max_skipped)",
                           (long long)at->step, (long long)at->skipped);
    return must_format(
        "step %lld: a spike: loss %.6g (%.1f deviations above the steps before), gradient norm %.6g (%.1f)",
        (long long)at->step, f->loss, f->scores.loss, f->norm, f->scores.norm);
}

/* Rank 0: logs the message and writes it to incidents.jsonl. */
static void log_numbers(training *t, const char *words)
{
    if (comm_rank(t->world) > 0)
        return;
    log_warn("%s", words);
    incident_log_say(t->folder, t->watchdog, INCIDENT_NUMBERS, false, words);
}

static report_event event_of(const training_position *at, const finding *f, const char *kind)
{
    return (report_event){.kind = kind,
                          .step = at->step,
                          .loss = f->loss,
                          .norm = f->norm,
                          .loss_zscore = f->scores.loss,
                          .norm_zscore = f->scores.norm};
}

/* Leaves out the samples up to `end`, which led to the spike. The run is back at an earlier step; `before` counts its
 * previous rewinds there. */
static status leave_out(training_position *at, const train_past *before, int64_t end, const char *words)
{
    train_past *now = &at->past;
    const train_omission *last = before->omissions > now->omissions ? &before->omission[before->omissions - 1] : NULL;
    train_omission o = {.after = at->step, .first = at->samples, .count = end - at->samples, .times = 1};
    if (last && last->after == at->step) {
        o.times = last->times + 1;
        o.count *= 2; /* the bad range is longer than the one left out */
    }
    if (o.times > MOST_TIMES || now->omissions == TRAIN_OMISSIONS)
        return status_fail(STATUS_FAILED,
                           "%s; the run has gone back to step %lld %d times, and left out %lld samples: lower "
                           "optimizer.lr, or look at the data from sample %lld on",
                           words, (long long)at->step, MOST_TIMES, (long long)o.count / 2, (long long)o.first);
    now->omission[now->omissions++] = o;
    at->samples += o.count;
    return STATUS_OK;
}

static status undo_steps(training *t, const finding *f)
{
    const train_past before = t->at.past;
    int64_t from = t->at.step, end = t->at.samples;
    AUTO_FREE char *words = describe_finding(&t->at, f);
    report_event event = event_of(&t->at, f, "undone");
    log_numbers(t, words);
    status s = training_go_back(t);
    if (s == STATUS_OK && t->guards.verify)
        verify_begin(t->guards.verify);
    if (s == STATUS_OK)
        s = leave_out(&t->at, &before, end, words);
    TRY(s);
    const train_omission *o = &t->at.past.omission[t->at.past.omissions - 1];
    event.step = t->at.step;
    event.from = from;
    event.first_sample = o->first;
    event.samples = o->count;
    log_info("going on after step %lld, without samples %lld to %lld", (long long)t->at.step, (long long)o->first,
             (long long)(o->first + o->count - 1));
    return training_report_undone(t, &event);
}

/* Describes a rank's most loaded expert in the last step, if the pipeline does not split the layers. */
static char *hottest_of(const training *t, int rank)
{
    grid of = grid_for_rank(&t->grid, rank);
    int64_t first, count;
    const loads *spread = t->report->loads;
    if (!spread || t->grid.size[GRID_PIPELINE] > 1)
        return NULL;
    shard_rows(&first, &count, t->config->model.shape.experts, grid_group_size(&of, AXIS_EXPERT),
               grid_index(&of, AXIS_EXPERT));
    return loads_hottest(spread, executor_at(t->executor, t->compiled.values.choices), first, count);
}

static void say_pace(training *t, int rank, bool recovered)
{
    double ratio = pace_ratio(t->guards.judge, rank);
    if (recovered) {
        log_info("step %lld: rank %d on %s computes as fast as the others again (%.2f x their median)",
                 (long long)t->at.step, rank, t->hosts[rank], ratio);
        return;
    }
    AUTO_FREE char *hottest = hottest_of(t, rank);
    AUTO_FREE char *words = must_format(
        "step %lld: rank %d on %s is slow: over %d steps it has computed %.2f x as long as the "
        "median of the ranks that have the same work%s%s",
        (long long)t->at.step, rank, t->hosts[rank], PACE_WINDOW, ratio, hottest ? "; " : "", hottest ? hottest : "");
    watchdog_text text;
    incident what = training_make_incident(t, &text, INCIDENT_SLOW, words, rank);
    what.host = t->hosts[rank];
    log_warn("%s", words);
    (void)incident_log_append(t->folder, &what);
}

void training_judge_pace(training *t, const pace_figures *shares, int64_t stride)
{
    bool recovered;
    if (!t->guards.judge)
        return;
    pace_judge_add(t->guards.judge, shares, stride);
    for (int rank; (rank = pace_change(t->guards.judge, t->config->run.slow_ratio, &recovered)) >= 0;)
        say_pace(t, rank, recovered);
}

status training_judge(bool *undone, training *t, double loss, double norm, bool skipped)
{
    const config *c = t->config;
    finding f = {
        .loss = loss, .norm = norm, .skipped = c->train.max_skipped > 0 && t->at.skipped >= c->train.max_skipped};
    *undone = false;
    if (f.skipped && !c->run.spike.rewind)
        return training_fail(t, INCIDENT_NUMBERS,
                             "step %lld: gradients were not finite for %lld steps in a row (train.max_skipped): "
                             "lower optimizer.lr, or look at the data of these steps",
                             (long long)t->at.step, (long long)t->at.skipped);
    if (c->run.spike.zscore > 0 && skipped && t->islands)
        islands_found_spike(t->islands, t->at.step);
    if (c->run.spike.zscore <= 0 || (skipped && !f.skipped))
        return STATUS_OK;
    /* All ranks should have the same numbers: rank 0's decide. */
    double numbers[] = {loss, norm};
    comm_broadcast_bytes(comm_world(t->world), numbers, sizeof numbers, 0);
    f.loss = numbers[0];
    f.norm = numbers[1];
    f.scores = spike_judge(&t->at.past.window, f.loss, f.norm);
    if (t->islands && !(f.scores.loss < c->run.spike.zscore))
        islands_found_spike(t->islands, t->at.step);
    bool spike = f.skipped || !(f.scores.loss < c->run.spike.zscore && f.scores.norm < c->run.spike.zscore);
    if (spike) { /* the machine may be the cause */
        TRY(training_verify(undone, t));
        if (*undone)
            return STATUS_OK;
    }
    if (c->run.spike.rewind && spike) {
        *undone = true;
        return undo_steps(t, &f);
    }
    if (spike) {
        AUTO_FREE char *words = describe_finding(&t->at, &f);
        report_event event = event_of(&t->at, &f, "spike");
        log_numbers(t, words);
        training_report_event(t, &event);
    }
    if (isfinite(f.loss) && isfinite(f.norm))
        spike_add(&t->at.past.window, f.loss, f.norm);
    return STATUS_OK;
}
