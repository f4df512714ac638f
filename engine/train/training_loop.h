/* Functions that train.c's loop calls besides the report and the saves: setting up a rank, judging a step. */
#pragma once

#include "engine/train/rank/training.h"

/* train_setup.c */
status training_open(training *t, const config *c, comm *world, watchdog *w, double began);
void training_close(training *t);
/* Collective. */
void training_measure_reserve(training *t);

/* train_numbers.c */
/* Judges the loss and norm of the last step: normal; a spike, which is reported; or, under run.spike.rewind, a spike
 * that was undone (*undone): the run continues from an earlier step and skips the data that led to it. Collective. */
status training_judge(bool *undone, training *t, double loss, double norm, bool skipped);

/* Judges the pace of the previous step on all ranks. */
void training_judge_pace(training *t, const pace_figures *shares, int64_t stride);

/* train_first.c */
/* Notes weights after the second update of fresh optimizer states, and after the third warns of those that nothing
 * trains; `rate`: the update's learning rate. Collective in these two steps. */
void training_watch_first(training *t, double rate, bool skipped);
void training_first_close(training *t);

/* train_verify.c */
status training_open_verify(training *t);
/* Verifies the state after this step on all ranks. *undone: it was wrong, and the run went back to a verified step.
 * Collective. */
status training_verify(bool *undone, training *t);
