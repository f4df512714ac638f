/* The global batch of every step: a pure function of the step, so that resuming needs no state.
 *
 * train.batch_ramp lists [step, batch]: from that step on, counted from 0, so many samples a step; without it every
 * step has train.global_batch, which is also what a ramp ends with.
 */
#pragma once

#include "engine/config/config.h"

/* How many batches there are, at least one; which of them step number `step` has; how many samples number `stage`
 * has. */
int batch_ramp_stages(const config *c);
int batch_ramp_stage_of(const config *c, int64_t step);
int batch_ramp_samples(const config *c, int stage);
/* Samples of the steps from `first` up to `end`, which is left out; -1 if they are more than an int64_t holds. */
int64_t batch_ramp_total(const config *c, int64_t first, int64_t end);

/* A ramp begins at step 0, rises, and ends with train.global_batch. */
status batch_ramp_check(const config *c);
