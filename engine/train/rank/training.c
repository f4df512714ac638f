#include "engine/train/rank/training.h"

#include <stdarg.h>
#include <stdio.h>

#include "engine/config/config.h"

int64_t training_evaluation_samples(const training *t, int set)
{
    int64_t wanted = (int64_t)t->config->evaluate.batches * t->config->train.global_batch;
    int64_t there = samples_count(t->data.sets[set]);
    return there < wanted ? there : wanted;
}

int training_batch(const training *t, int64_t step)
{
    return batch_ramp_samples(t->config, batch_ramp_stage_of(t->config, step - t->at.ramp_step));
}

int training_microbatches(const training *t, int64_t step)
{
    return config_microbatches(&t->grid, t->config->train.micro_batch, training_batch(t, step));
}

int64_t training_samples_at(const training *t, int64_t step)
{
    int64_t ramp = t->at.ramp_step;
    return t->at.stage_samples + batch_ramp_total(t->config, t->at.stage_step - ramp, step - ramp);
}

status training_fail(training *t, incident_verdict verdict, const char *format, ...)
{
    char words[INCIDENT_WORDS];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    watchdog_text text;
    incident what = watchdog_incident(t->watchdog, &text, verdict, words);
    if (comm_rank(t->world) == 0)
        incident_log_hold(&t->ending, &what);
    return status_fail(STATUS_FAILED, "%s", words);
}

incident training_make_incident(const training *t, watchdog_text *text, incident_verdict verdict, const char *words,
                                int rank)
{
    incident what = watchdog_incident(t->watchdog, text, verdict, words);
    what.rank = rank;
    what.waiting_for = -1;
    what.device = what.action = what.op = NULL; /* these describe this rank */
    return what;
}
