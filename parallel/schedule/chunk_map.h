/* Where the chunks of a pipelined model are: which stage holds the i-th run of layers, and as which of its chunks.
 *
 * Round and round: stage s holds the chunks s, s + stages, s + 2 stages, ... of the model. Folded (the V of
 * 2405.15362): every second round runs backwards, so that of two chunks a stage the first stage holds the first and the
 * last one. Where the path turns, neighbouring chunks are on the same stage and no message passes between them.
 */
#pragma once

#include <stdbool.h>

typedef struct chunk_map {
    int stages, chunks; /* chunks of one stage */
    bool folded;
} chunk_map;

static inline int chunk_map_global(chunk_map m, int stage, int chunk)
{
    return chunk * m.stages + (m.folded && chunk % 2 ? m.stages - 1 - stage : stage);
}

static inline int chunk_map_chunk(chunk_map m, int global)
{
    return global / m.stages;
}

static inline int chunk_map_stage(chunk_map m, int global)
{
    int along = global % m.stages;
    return m.folded && chunk_map_chunk(m, global) % 2 ? m.stages - 1 - along : along;
}
