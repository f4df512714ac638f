/* The blocks of a plan, and whether a plan of them is sound. The caller owns the blocks. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct planner_block {
    int64_t bytes;
    int32_t first, last; /* alive from op `first` to op `last`, both included */
    int64_t offset;      /* out; 0 for a block of no bytes, which occupies nothing */
} planner_block;

/* Is the plan sound: no two blocks share a byte at one time, and all lie within the arena? Written independently of the
 * placement and shares nothing with it. If not, the two indices name a pair that collides, or twice the same block if
 * that lies outside the arena or is malformed. */
bool planner_check(const planner_block *blocks, int64_t count, int64_t arena_bytes, int64_t *first_bad,
                   int64_t *second_bad);
