#include "engine/config/learning_rate.h"

#include <math.h>

/* After warm-up a schedule is a factor in [0, 1] between min_lr and lr, except where it knows no min_lr. */

static double constant(const learning_rate *s, int64_t step)
{
    (void)step;
    return s->peak;
}

/* Share of the time from the end of the warm-up to the last step. */
static double progress(const learning_rate *s, int64_t step)
{
    int64_t length = s->steps - s->warmup;
    return length > 0 ? (double)(step - s->warmup) / (double)length : 1;
}

static double linear(const learning_rate *s, int64_t step)
{
    return s->floor + (s->peak - s->floor) * (1 - progress(s, step));
}

/* min_lr + (lr - min_lr) (1 + cos(pi (t - warmup) / (steps - warmup))) / 2 */
static double cosine(const learning_rate *s, int64_t step)
{
    return s->floor + (s->peak - s->floor) * (1 + cos(acos(-1) * progress(s, step))) / 2;
}

/* Warm-up, stable, decay (2404.06395): lr until the last decay_fraction * steps steps, then linearly to min_lr. */
static double wsd(const learning_rate *s, int64_t step)
{
    int64_t decay = llround(s->decay_fraction * (double)s->steps);
    int64_t left = s->steps - step;
    return left >= decay ? s->peak : s->floor + (s->peak - s->floor) * (double)left / (double)decay;
}

/* lr sqrt(warmup / t) (1706.03762), with one step of warm-up when there is none; not below min_lr. */
static double inverse_sqrt(const learning_rate *s, int64_t step)
{
    double warmup = s->warmup > 0 ? (double)s->warmup : 1;
    return fmax(s->floor, s->peak * sqrt(warmup / (double)step));
}

static double (*const kinds[])(const learning_rate *, int64_t) = {
    [LEARNING_RATE_CONSTANT] = constant,
    [LEARNING_RATE_LINEAR] = linear,
    [LEARNING_RATE_COSINE] = cosine,
    [LEARNING_RATE_WSD] = wsd,
    [LEARNING_RATE_INVERSE_SQRT] = inverse_sqrt,
};

double learning_rate_at(const learning_rate *schedule, int64_t step)
{
    if (step <= schedule->warmup)
        return schedule->peak * (double)step / (double)schedule->warmup;
    if (schedule->kind != LEARNING_RATE_INVERSE_SQRT && step > schedule->steps)
        step = schedule->steps;
    return kinds[schedule->kind](schedule, step);
}
