/* The ladder of a model's training programs (layers/ladder.h): how many rungs its options make, and which of them the
 * next step is played on: a function of what the steps so far needed, the same on all ranks and after a resume. */
#pragma once

#include "engine/compile/model/compiled.h"

/* The ladder of these options; of a model without experts all 0. */
ladder_shape rungs_ladder(const compile_options *o);
/* How many rungs there are: 1 where no ranks divide experts. */
int compile_rungs(const compile_options *o);
/* Rows of a layer and micro-batch that a rank has room for where others are dropped; 0: none is. */
int64_t compile_room(const compile_options *o);

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
