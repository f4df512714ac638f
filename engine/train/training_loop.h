/* What train.c's loop calls beside the report and the saves: a rank set up, judgements of a step. */
#pragma once

#include "engine/train/rank/training.h"

/* train_setup.c */
status training_open(training *t, const config *c, comm *world, watchdog *w, double began);
void training_close(training *t);
/* Collective. */
void training_measure_reserve(training *t);

/* train_numbers.c */
/* What the numbers of the step just done mean: all is well; or a spike, which is said; or, under run.spike.rewind, one
 * that has been undone (*undone): the run goes on from an earlier step, behind the data that led to it. Collective. */
status training_judge(bool *undone, training *t, double loss, double norm, bool skipped);

/* What all ranks have said of the pace of the step before. */
void training_judge_pace(training *t, const pace_share *shares, int64_t stride);

/* train_verify.c */
status training_open_verify(training *t);
/* Is the state after this step what it must be, on all ranks? *undone: it was not, and the run has gone back to a step
 * that is verified. Collective. */
status training_verify(bool *undone, training *t);
