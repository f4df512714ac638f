/* What train.c's loop calls beside the report and the saves: a rank set up, data fetched ahead, judgements of a step,
 * the calls of an island. */
#pragma once

#include "engine/train/rank/training.h"

/* train_setup.c */
status training_open(training *t, const config *c, comm *world, watchdog *w, double began);
void training_close(training *t);
/* Collective. */
void training_measure_reserve(training *t);

/* train_fetch.c */
/* Before a step's batch is taken: what steps to come read is fetched from the store. */
void training_fetch_ahead(training *t);
/* The same for an evaluation of data set number `set`: samples of this rank from `first` on, every so many. */
void training_fetch_evaluation(const training *t, int set, int64_t end, int64_t together);
/* What this rank has waited for and fetched since it was asked last. */
blocks_counts training_counts_fetched(training *t);

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

/* train_islands.c: nothing, for a job that is no island. Collective. */
status training_islands_join(training *t); /* before the first step */
status training_islands_step(training *t); /* after each */
status training_islands_save(training *t); /* before a checkpoint */
status training_islands_leave(training *t);
