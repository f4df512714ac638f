/* One planning problem while it is being solved; the inside of planner.c, of no use elsewhere.
 *
 * Blocks without bytes are gone, bytes are rounded to the alignment, blocks are in order of their first op, and time is
 * the number of distinct first ops: two lifetimes meet exactly if one of them is alive at the other's first op, so that
 * the ops between do not matter. The core owns its arrays; the caller's blocks receive only the offsets, at the end.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/planner_check.h"
#include "memory/planner_tree.h"

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

/* Place the blocks order[0..count) one after the other, each at the lowest free offset, or, where from_top[block] is
 * set, at the highest below core->ceiling (the lowest if there is no room). Gives up as soon as the arena reaches
 * `limit`. Returns the arena's bytes, INT64_MAX if it gave up. `from_top` may be NULL. */
int64_t planner_core_place(planner_core *core, const int32_t *order, const bool *from_top, int32_t count,
                           int64_t limit);

/* planner_core_place of all blocks under `ceiling`, below the best; an improvement becomes the best. Returns whether it
 * is good enough or the effort is used up: true means stop. */
bool planner_core_try(planner_core *core, const int32_t *order, const bool *from_top, int64_t ceiling);

/* Stable sort of order[0..count) by key[order[i]], ascending. `spare` is as long as `order`. */
void planner_core_sort(int32_t *order, int32_t *spare, int32_t count, const uint64_t *key);
