/* The dynamic loss scale of fp16 (1710.03740): halved by a step whose gradients are not finite, doubled after a window
 * of steps in a row whose gradients are. A pure function of what came before; the two numbers go with a checkpoint. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Limits of the scale: it is not halved below the first, nor doubled from the second on. */
#define LOSS_SCALE_SMALLEST 1.0
#define LOSS_SCALE_LARGEST  16777216.0

/* After a step: `good_steps` counts steps since the scale last changed. */
void loss_scale_after(double *scale, int64_t *good_steps, bool skipped, int window);
