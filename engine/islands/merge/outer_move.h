/* A unit's weights between the ranks of an island that train with them and the one that keeps its outer state.
 *
 * Which ranks hold what of a unit follows from the pieces of the training state (state.h), as in a checkpoint: each
 * element is given by one rank, and written by all that hold it, masters and compute weights. The calls are collective,
 * and every rank makes them for the same units in the same order. Nothing is allocated after outer_move_open.
 */
#pragma once

#include "engine/islands/merge/outer_internal.h"
#include "engine/run/executor.h"

typedef struct outer_move outer_move;

/* Collective; the core outlives it. */
status outer_move_open(outer_move **out, const compiled *k, executor *e, const outer *core);
void outer_move_close(outer_move *m); /* NULL is accepted */
AUTO_CLOSES(outer_move, outer_move_close)

/* At the unit's owner: values[elements] as fp32. */
void outer_move_gather(outer_move *m, float *values, int unit);
/* From the owner's values[elements] to wherever they are. */
void outer_move_scatter(outer_move *m, int unit, const float *values);
/* The optimizer's states of all parameters become zero. Not collective. */
void outer_move_clear_states(outer_move *m);
