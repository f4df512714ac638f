/* The schedules that have a name: pure functions of (kind, stages, chunks, micro-batches). */
#pragma once

#include "parallel/schedule/schedule.h"

/* In every schedule the micro-batches of one chunk go forward in ascending order, and backward in ascending order, so
 * that each parameter's gradient is accumulated in the same order whatever the schedule.
 *
 * With several chunks that are not folded, micro-batches travel in rounds: a round passes through all chunks before the
 * next one starts. There are max(1, floor(microbatches / stages)) rounds, of sizes that differ by at most one, the
 * larger first: `stages` each where that divides, between `stages` and 2 stages - 1 otherwise, and all micro-batches at
 * once if they are fewer than the stages. A round shorter than the number of stages would stall at every change of
 * chunk; a longer one costs only activations, (chunks - 1) for each micro-batch above `stages`.
 *
 * Some kinds need a number of chunks (schedule_kind_chunks). `kind`: not SCHEDULE_AUTO. */
status schedule_make(schedule *out, schedule_kind kind, int stages, int chunks, int microbatches);

/* Two orders to weave the gradients of weights into (weave.h). `out` has room for them.
 *
 * So many forwards first on each stage, then an input gradient and a forward in turns. */
void schedule_make_warmed(schedule *out, const int *warmup);

/* Folded: one micro-batch's four actions on every stage, repeated each SCHEDULE_MAKE_PERIOD units of time. */
enum { SCHEDULE_MAKE_PERIOD = 6 }; /* two each of F, I and W, a unit long */
typedef struct schedule_block {
    int step[4]; /* time from stage to stage: of the first chunk's forward, the second's, and their input gradients */
    int turn[3]; /* from the end of one such path to the beginning of the next */
} schedule_block;
/* False: two actions of a stage would be at the same time. */
bool schedule_make_repeated(schedule *out, schedule_block block);
