/* The ladder of programs for experts that ranks divide: each rung is a capacity bucket, with room for a number of rows.
 *
 * The number of tokens that choose a rank's experts is known only when the step runs. A first pass has room for
 * `capacity` times a rank's mean; smaller overflow passes (waves) reuse its memory for more. Higher rungs have more
 * passes, and the last has room for any choice of tokens. A step without enough room leaves the model unchanged and is
 * repeated on a higher rung.
 *
 * Or rows are dropped (2006.16668), where the configuration asks for it: the assignments to a rank's experts, in the
 * order of (expert, token, choice), that exceed the first rung's room. Their tokens' residual stream goes on without
 * them; the weights of a token's other experts stay as they are. Evaluation never drops rows.
 */
#pragma once

#include "kernels/table/op.h"

/* Sizes that decide the rungs, the same on all ranks. */
typedef struct ladder_shape {
    int64_t tokens;      /* a micro-batch's tokens on all ranks that divide experts; where they travel in slots of as
                            many rows as a pass, on one rank */
    int ranks;           /* ranks that divide experts */
    int experts, active; /* experts of a layer; experts of a token */
    double capacity;     /* rows of the first pass, as a multiple of a rank's mean */
    int spill;           /* overflow passes on the first rung */
    bool drop;           /* the first rung is the only one: rows that it has no room for are dropped */
} ladder_shape;

/* A first pass of `rows`, and `count` overflow passes of `behind` rows. */
typedef struct ladder_waves {
    int64_t rows, behind;
    int count;
} ladder_waves;

/* Returns the passes of a rung, from 0 on; rungs above the last have the last one's. */
ladder_waves ladder_waves_of(const ladder_shape *s, int rung);
/* Returns the number of rungs, from 1 to LADDER_RUNGS. */
int ladder_rungs(const ladder_shape *s);
/* Returns the rows that it has room for. */
int64_t ladder_room(const ladder_waves *w);
