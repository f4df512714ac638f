#include "engine/train/loss_scale.h"

static const double FACTOR = 2.0;

void loss_scale_after(double *scale, int64_t *good_steps, bool skipped, int window)
{
    *good_steps = skipped ? 0 : *good_steps + 1;
    if (skipped && *scale > LOSS_SCALE_SMALLEST)
        *scale /= FACTOR;
    if (*good_steps >= window && *scale < LOSS_SCALE_LARGEST) {
        *scale *= FACTOR;
        *good_steps = 0;
    }
}
