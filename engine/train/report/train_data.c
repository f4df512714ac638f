/* The data section of the header, warnings about data, and the time spent waiting for it. */
#include <stdio.h>

#include "engine/config/config.h"
#include "engine/train/report/training_report.h"
#include "memory/log.h"
#include "memory/units.h"

/* Repeated text is worth almost as much as new text up to about four epochs (2305.16264). */
static const double MANY_EPOCHS = 4;

/* A wait for blocks is worth a warning if it exceeds this share of the time over STALL_STEPS steps. */
static const double STALL_SHARE = 0.01;
enum { STALL_STEPS = 10 };

static void say_sources(const char *title, const config_sources *sources, const samples *s, double taken)
{
    double weights = 0;
    for (int i = 0; i < sources->count; i++)
        weights += sources->item[i].weight;
    for (int i = 0; i < sources->count; i++) {
        indexed_identity x;
        samples_identify(&x, s, i);
        printf("  %-11s %s: %s tokens", i ? "" : title, sources->item[i].path, COUNT_TEXT(x.tokens));
        if (sources->count > 1)
            printf(", weight %g (%.3g%%)", sources->item[i].weight, 100 * sources->item[i].weight / weights);
        if (taken > 0)
            printf(", %.3g epochs", samples_epochs(s, i, taken));
        putchar('\n');
    }
}

bool training_has_remote(const training *t)
{
    return samples_are_remote(t->data.train) || (t->data.validation && samples_are_remote(t->data.validation));
}

void training_say_data(const training *t)
{
    const config *c = t->config;
    double taken = (double)training_samples_at(t, c->train.steps);
    if (t->stage)
        printf("  stage       %s\n", t->stage);
    say_sources("data", &c->data.train, t->data.train, taken);
    const config_sources *sources = &t->config->data.train;
    for (int i = 0; i < sources->count; i++)
        if (samples_epochs(t->data.train, i, taken) > MANY_EPOCHS)
            printf("              warning: %s is seen more than %g times; after that repeated text teaches little\n"
                   "              (2305.16264): add data, or lower train.steps\n",
                   sources->item[i].path, MANY_EPOCHS);
    if (t->data.validation)
        say_sources("validation", &c->data.validation, t->data.validation, 0);
    if (training_has_remote(t)) {
        const char *folder = stored_folder(t->data.remote);
        printf("  cache       %s, at most %s\n", folder ? folder : "none", BYTES_TEXT(c->data.cache_size));
    }
    if (c->train.batch_ramp.count) {
        fputs("  batch       ", stdout);
        for (int i = 0; i < batch_ramp_stages(c); i++)
            printf("%s%d from step %lld on", i ? ", " : "", batch_ramp_samples(c, i),
                   (long long)t->at.ramp_step + c->train.batch_ramp.item[2 * i]);
        putchar('\n');
    }
    if (c->profile.start > 0 && t->device == &device_cpu)
        log_warn("profile.start: there is no profiler to start on the CPU, and the run is not profiled");
}

static void judge_stall(training *t, double seconds)
{
    training_fetched *f = &t->fetched;
    if (f->warned || t->counts.trained_steps < 2) /* the first step's data cannot be prefetched */
        return;
    f->window_stall += f->stall;
    f->window_seconds += seconds;
    if (++f->window_steps < STALL_STEPS)
        return;
    f->warned = f->window_stall > STALL_SHARE * f->window_seconds;
    if (f->warned)
        log_warn(
            "step %lld: training has waited for blocks of data in %.1f%% of the time of the last %d steps: the store "
            "or the network is slower than training reads (stall_seconds in metrics.jsonl)",
            (long long)t->at.step, 100 * f->window_stall / f->window_seconds, f->window_steps);
    f->window_stall = f->window_seconds = 0;
    f->window_steps = 0;
}

void training_report_fetched(report_step *out, training *t)
{
    out->remote = training_has_remote(t);
    if (!out->remote)
        return;
    out->stall_seconds = t->fetched.stall;
    out->cache_misses = t->fetched.misses;
    out->fetched_bytes = t->fetched.fetched;
    judge_stall(t, out->step_seconds);
}
