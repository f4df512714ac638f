/* What the header says of the data, and what a run asks for that it will not get. */
#include <stdlib.h>

#include "engine/config/batch_ramp.h"
#include "engine/train/training.h"
#include "memory/log.h"
#include "memory/units.h"

/* Up to about four epochs repeated text is worth almost as much as new text (2305.16264). */
static const double MANY_EPOCHS = 4;

static int64_t tokens_of(const samples *s, int source)
{
    indexed_identity x;
    samples_identify(&x, s, source);
    return x.tokens;
}

static void say_sources(const char *title, const config_sources *sources, const samples *s, double taken)
{
    double weights = 0;
    for (int i = 0; i < sources->count; i++)
        weights += sources->item[i].weight;
    for (int i = 0; i < sources->count; i++) {
        char tokens[UNITS_TEXT];
        units_count(tokens, (double)tokens_of(s, i));
        printf("  %-11s %s: %s tokens", i ? "" : title, sources->item[i].path, tokens);
        if (sources->count > 1)
            printf(", weight %g (%.3g%%)", sources->item[i].weight, 100 * sources->item[i].weight / weights);
        if (taken > 0)
            printf(", %.3g epochs", samples_epochs(s, i, taken));
        putchar('\n');
    }
}

static void warn_of_epochs(const training *t, double taken)
{
    const config_sources *sources = &t->config->data.train;
    for (int i = 0; i < sources->count; i++)
        if (samples_epochs(t->data.train, i, taken) > MANY_EPOCHS)
            printf("              warning: %s is seen more than %g times; after that repeated text teaches little\n"
                   "              (2305.16264): add data, or lower train.steps\n",
                   sources->item[i].path, MANY_EPOCHS);
}

void training_say_data(const training *t)
{
    const config *c = t->config;
    double taken = (double)training_samples_at(t, c->train.steps);
    if (t->stage)
        printf("  stage       %s\n", t->stage);
    say_sources("data", &c->data.train, t->data.train, taken);
    warn_of_epochs(t, taken);
    if (t->data.validation)
        say_sources("validation", &c->data.validation, t->data.validation, 0);
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
