/* The parts of the planner, of no use elsewhere: the occupied addresses, the problem, the orders tried, the repair. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/planner_check.h"

/* ---- planner_tree.c ---------------------------------------------------------------------------------------------- */

/* The occupied addresses of an arena over time: answers "what is the lowest (or highest) range of `bytes` that is free
 * at all times first..last?" and marks such a range as taken. Time is the small integers 0..times-1. A tree owns its
 * nodes and lists. */
typedef struct planner_tree planner_tree;

planner_tree *planner_tree_open(int32_t times);
void planner_tree_close(planner_tree *tree); /* NULL is nothing to close */
void planner_tree_clear(planner_tree *tree); /* nothing is taken any more; keeps its memory */

int64_t planner_tree_lowest(planner_tree *tree, int32_t first, int32_t last, int64_t bytes);
/* Entirely below `ceiling`; -1 if there is no such place. */
int64_t planner_tree_highest(planner_tree *tree, int32_t first, int32_t last, int64_t bytes, int64_t ceiling);
void planner_tree_take(planner_tree *tree, int32_t first, int32_t last, int64_t offset, int64_t bytes);

/* ---- planner_core.c ---------------------------------------------------------------------------------------------- */

/* One planning problem while it is being solved. Blocks without bytes are gone, bytes are rounded to the alignment,
 * blocks are in order of their first op, and time is the number of distinct first ops: two lifetimes meet exactly if
 * one of them is alive at the other's first op, so that the ops between do not matter. The core owns its arrays; the
 * caller's blocks receive only the offsets, at the end. */
typedef struct planner_core {
    int32_t count, times;
    int32_t *source;       /* [count] index into the caller's blocks */
    int32_t *first, *last; /* [count] compressed lifetimes */
    int64_t *bytes;        /* [count] rounded */
    int64_t *live;         /* [times] sum of bytes alive */
    int64_t *contention;   /* [count] the largest live sum during the block's life; NULL until asked for */
    int64_t alignment;
    int64_t bound;  /* largest live sum */
    int64_t target; /* an arena of this many bytes is good enough */

    int64_t ceiling; /* top of the arena for the blocks placed from the top */

    planner_tree *tree;
    int64_t *offset;     /* [count] of the order being placed */
    int64_t *best;       /* [count] of the smallest arena found, best_arena bytes */
    int64_t best_arena;  /* INT64_MAX before the first */
    int64_t effort_left; /* block placements */
    int tries;
} planner_core;

void planner_core_open(planner_core *core, const planner_block *blocks, int64_t count, int64_t alignment);
void planner_core_close(planner_core *core);

/* Fill core->contention. */
void planner_core_contend(planner_core *core);

/* Place the blocks in this order one after the other, each at the lowest free offset, or, where from_top[block] is set
 * (NULL: nowhere), at the highest below `ceiling` (the lowest if there is no room). Gives up as soon as the arena
 * reaches the best; an improvement becomes the best. Returns whether that is good enough or the effort is used up: true
 * means stop. */
bool planner_core_try(planner_core *core, const int32_t *order, const bool *from_top, int64_t ceiling);

/* Stable sort of order[0..count) by key[order[i]], ascending. `spare` is as long as `order`. */
void planner_core_sort(int32_t *order, int32_t *spare, int32_t count, const uint64_t *key);

/* ---- planner_order.c --------------------------------------------------------------------------------------------- */

/* Try the orders, one row each, cheapest success first, until planner_core_try says stop; returns whether it did. */
bool planner_order_try_all(planner_core *core);

/* ---- planner_repair.c -------------------------------------------------------------------------------------------- */

enum { PLANNER_REPAIR_BLOCKS = 5000 }; /* programs of more are left alone */

/* Repair core->best, block by block, until it is good enough or `effort` block placements are used up. Programs in
 * which too many blocks meet are left alone too. */
void planner_repair(planner_core *core, int64_t effort);
