/* The ladder of programs for experts that ranks divide: how many rows of tokens a program has room for.
 *
 * How many tokens choose the experts of a rank is known when the step runs. A first wave of rows has room for
 * `capacity` times a rank's mean; smaller waves behind it use the same memory for more. Higher rungs have more waves,
 * and the last has room for whatever tokens choose. A step that has not room enough changes nothing and is played again
 * on a higher rung.
 *
 * Or rows are dropped (2006.16668), where that is asked for: of the assignments to a rank's experts, in the order of
 * (expert, token, choice), those that the first rung has no room for. They add nothing to their tokens, whose residual
 * stream goes on without them; the weights of a token's other experts stay as they are. Evaluation drops nothing.
 */
#pragma once

#include "kernels/table/op.h"

/* What decides the rungs, the same on all ranks. */
typedef struct ladder_shape {
    int64_t tokens;      /* of all ranks that divide experts, of a micro-batch; where they travel in slots of as many
                            rows as a wave, of one rank */
    int ranks;           /* that divide experts */
    int experts, active; /* of a layer; of a token */
    double capacity;     /* rows of the first wave, in a rank's mean */
    int spill;           /* waves behind it, on the first rung */
    bool drop;           /* the first rung is the only one: rows that it has no room for are dropped */
} ladder_shape;

/* A first wave of `rows`, and `count` of `behind` rows after it. */
typedef struct ladder_waves {
    int64_t rows, behind;
    int count;
} ladder_waves;

/* The waves of a rung from 0 on; of any above the last, those of the last. */
ladder_waves ladder_waves_of(const ladder_shape *s, int rung);
/* How many rungs there are, from 1 to LADDER_RUNGS. */
int ladder_rungs(const ladder_shape *s);
/* Rows that it has room for. */
int64_t ladder_room(const ladder_waves *w);
