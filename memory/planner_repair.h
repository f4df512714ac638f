/* The repair of a small program's plan, and the problem that the planner hands over; only these two use it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* One planning problem while it is being solved. Blocks without bytes are gone, bytes are rounded to the alignment,
 * blocks are in order of their first op, and time is the number of distinct first ops: two lifetimes meet exactly if
 * one of them is alive at the other's first op, so that the ops between do not matter. The core owns its arrays; the
 * caller's blocks receive only the offsets, at the end. */
typedef struct planner_problem {
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

    struct planner_tree *tree; /* the occupied addresses */
    int64_t *offset;           /* [count] offsets of the order being placed */
    int64_t *best;             /* [count] offsets of the smallest arena found, best_arena bytes */
    int64_t best_arena;        /* INT64_MAX before the first */
    int64_t effort_left;       /* block placements */
    int tries;
} planner_problem;

/* Sorts order[0..count), stably, by key[order[i]], ascending. `spare` is as long as `order`. */
void planner_repair_sort(int32_t *order, int32_t *spare, int32_t count, const uint64_t *key);

enum { PLANNER_REPAIR_BLOCKS = 5000 }; /* programs of more are left alone */

/* Repairs core->best, block by block, until it is good enough or `effort` block placements are used up. Programs in
 * which too many blocks meet are left alone too. */
void planner_repair(planner_problem *core, int64_t effort);
