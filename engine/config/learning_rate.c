#include "engine/config/config.h"

#include <math.h>

/* Every schedule past warm-up is a factor in [0, 1] between min_lr and lr, except one that has no min_lr. */
static double rate_after_warmup(const learning_rate *s, int64_t step)
{
    const double range = s->peak - s->floor, length = (double)(s->steps - s->warmup);
    /* share of the time from the end of the warm-up to the last step */
    const double progress = length > 0 ? (double)(step - s->warmup) / length : 1;
    const int64_t decay = llround(s->decay_fraction * (double)s->steps), left = s->steps - step;
    switch (s->kind) {
    case LEARNING_RATE_LINEAR:
        return s->floor + range * (1 - progress);
    case LEARNING_RATE_COSINE:
        return s->floor + range * (1 + cos(acos(-1) * progress)) / 2;
    case LEARNING_RATE_WSD: /* warm-up, stable, decay (2404.06395): falls in the last steps only */
        return left >= decay ? s->peak : s->floor + range * (double)left / (double)decay;
    case LEARNING_RATE_INVERSE_SQRT: /* lr sqrt(warmup / t) (1706.03762), with one step of warm-up when there is none */
        return fmax(s->floor, s->peak * sqrt((s->warmup > 0 ? (double)s->warmup : 1) / (double)step));
    default:
        return s->peak;
    }
}

double learning_rate_at(const learning_rate *s, int64_t step)
{
    if (step <= s->warmup)
        return s->peak * (double)step / (double)s->warmup;
    if (s->kind != LEARNING_RATE_INVERSE_SQRT && step > s->steps)
        step = s->steps;
    return rate_after_warmup(s, step);
}
