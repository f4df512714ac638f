/* The planner gives each tensor of a program an offset in one arena.
 *
 * A block is a tensor's bytes and the range of ops (indices in the program) during which they must stay untouched.
 * Blocks alive at one time may not overlap; all others may share addresses. The least possible arena is at least the
 * largest sum of bytes alive at once, the lower bound. The planner only writes the offsets of the caller's blocks.
 *
 * The same blocks in the same order give the same offsets, on any machine: no clock, no address and no hash decides.
 *
 * Effort. Placing one block is one unit, 1-4 us. The first order is always placed to its end; after that the planner
 * stops at the first result within goal x bound, or with the try in which the effort is used up: the caller's, or by
 * default
 *     200 x blocks, at least 40,000, at most the larger of 2,000,000 and 4 x blocks.
 * Up to 5,000 blocks, 5,000 + 20 x blocks of it (at most 30,000, at most a third of the effort that the orders left) go
 * to repairing the best arena; such a unit is one moved block, 3-8 us.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct planner_block {
    int64_t bytes;
    int32_t first, last; /* alive from op `first` to op `last`, both included */
    int64_t offset;      /* out; 0 for an empty block */
} planner_block;

typedef struct planner_result {
    int64_t arena_bytes; /* end of the highest block, a multiple of the alignment */
    int64_t lower_bound; /* no plan can be smaller */
    int tries;           /* orders placed, wholly or until they could no longer win */
} planner_result;

/* Gives each block an offset. `alignment` is a power of two: bytes are rounded up to it, offsets are multiples of it.
 * `goal` >= 1: good enough is an arena of goal x lower bound. `effort`: the most block placements; 0 is the default. */
void planner_place(planner_block *blocks, planner_result *result, int64_t count, int64_t alignment, double goal,
                   int64_t effort);

/* True if the plan is sound: no two blocks share a byte at one time, and all lie within the arena. It shares no code
 * with the placement. If not, the two indices name a pair that collides, or twice the same block if that lies outside
 * the arena or is malformed. */
bool planner_check(const planner_block *blocks, int64_t count, int64_t arena_bytes, int64_t *first_bad,
                   int64_t *second_bad);
