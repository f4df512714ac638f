/* Which rung of the ladder (layers/ladder.h) the next step is played on: a function of what the steps so far needed,
 * the same on all ranks and after a resume. */
#ifndef PHALANX_ENGINE_TRAIN_RUNG_H
#define PHALANX_ENGINE_TRAIN_RUNG_H

#include <stdint.h>

#include "kernels/op.h"

/* Where the ladder stands. */
typedef struct rung_state {
    int64_t at;    /* the rung of the next step */
    int64_t quiet; /* steps in a row that would have had room on a lower one */
    int64_t most;  /* the highest rung that these needed */
} rung_state;

/* The lowest of `rungs` that had room, by what a program has counted in values.over: of rungs above its own that is a
 * guess, for behind a layer without room tokens choose otherwise. */
int rung_needed(const float over[LADDER_RUNGS], int rungs);
/* After a step that needed this rung, whichever it was played on. Up at once; down to what was needed after
 * RUNG_QUIET steps that needed less. */
enum { RUNG_QUIET = 16 };
void rung_after(rung_state *s, int needed);

#endif
