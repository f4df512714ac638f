#include "engine/config/config.h"

#include <limits.h>

static int64_t first_of(const config *c, int stage)
{
    return c->train.batch_ramp.count ? c->train.batch_ramp.item[2 * stage] : 0;
}

int batch_ramp_stages(const config *c)
{
    return c->train.batch_ramp.count ? c->train.batch_ramp.count / 2 : 1;
}

int batch_ramp_samples(const config *c, int stage)
{
    return c->train.batch_ramp.count ? c->train.batch_ramp.item[2 * stage + 1] : c->train.global_batch;
}

int batch_ramp_stage_of(const config *c, int64_t step)
{
    int stage = batch_ramp_stages(c) - 1;
    while (stage > 0 && step < first_of(c, stage))
        stage--;
    return stage;
}

int64_t batch_ramp_total(const config *c, int64_t first, int64_t end)
{
    int64_t total = 0;
    int stages = batch_ramp_stages(c);
    for (int i = 0; i < stages; i++) {
        int64_t from = first_of(c, i), until = i + 1 < stages ? first_of(c, i + 1) : INT64_MAX, samples;
        from = from < first ? first : from;
        until = until > end ? end : until;
        if (until > from && (__builtin_mul_overflow(until - from, (int64_t)batch_ramp_samples(c, i), &samples) ||
                             __builtin_add_overflow(total, samples, &total)))
            return -1;
    }
    return total;
}

status batch_ramp_check(const config *c)
{
    int stages = batch_ramp_stages(c);
    if (first_of(c, 0) != 0)
        return status_fail(STATUS_USAGE, "train.batch_ramp begins at step %d: its first pair is of step 0",
                           c->train.batch_ramp.item[0]);
    for (int i = 0; i < stages; i++) {
        if (batch_ramp_samples(c, i) < 1 || batch_ramp_samples(c, i) % c->train.micro_batch)
            return status_fail(STATUS_USAGE, "train.batch_ramp: %d is not a multiple of train.micro_batch %d",
                               batch_ramp_samples(c, i), c->train.micro_batch);
        if (i && (first_of(c, i) <= first_of(c, i - 1) || batch_ramp_samples(c, i) <= batch_ramp_samples(c, i - 1)))
            return status_fail(STATUS_USAGE, "train.batch_ramp: [%lld, %d] does not rise above [%lld, %d]",
                               (long long)first_of(c, i), batch_ramp_samples(c, i), (long long)first_of(c, i - 1),
                               batch_ramp_samples(c, i - 1));
    }
    if (batch_ramp_samples(c, stages - 1) != c->train.global_batch)
        return status_fail(STATUS_USAGE,
                           "train.batch_ramp ends with %d, and train.global_batch is %d: leave out one, or make them "
                           "the same",
                           batch_ramp_samples(c, stages - 1), c->train.global_batch);
    return STATUS_OK;
}
