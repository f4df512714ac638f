/* A hash of the weights that no layout changes: a sum over elements, so that their order and owners do not matter. */
#include "engine/state/rank/state.h"

#include <stdlib.h>

#include "kernels/philox.h"
#include "memory/scope.h"

/* The finaliser of SplitMix64 (Steele, Lea and Flood, 2014). */
static inline uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Sums the hashes of `count` elements, `stride` apart in memory and `step` apart in the tensor. */
#define SUM_ELEMENTS(bits)                                                                                             \
    for (int64_t i = 0; i < count; i++)                                                                                \
        sum += mix((key + (uint64_t)(first + i * step) * 0x9e3779b97f4a7c15u) ^                                        \
                   (uint64_t)((const bits *)data)[i * stride] * 0xd6e8feb86659fd93u);

__attribute__((target_clones("avx512f", "avx2", "default"))) static uint64_t
sum_run(const void *data, int bytes, int64_t count, int64_t stride, uint64_t key, int64_t first, int64_t step)
{
    uint64_t sum = 0;
    if (bytes == 4)
        SUM_ELEMENTS(uint32_t)
    else if (bytes == 2)
        SUM_ELEMENTS(uint16_t)
    else
        SUM_ELEMENTS(uint8_t)
    return sum;
}

/* Sums a piece in runs along the dimension that is the most contiguous in memory. */
static uint64_t piece_hash(const checkpoint_piece *p, const char *data, int threads)
{
    const box *part = &p->of.part;
    int64_t weight[BOX_DIMS], runs = 1;
    int dims = p->of.dims, along = dims - 1, bytes = (int)dtype_bytes(p->at.type);
    uint64_t key = mix(philox_stream(p->of.name) ^ philox_stream(p->section) << 16), sum = 0;
    box_row_major(weight, dims, p->of.global);
    for (int d = 0; d < dims; d++)
        along = p->at.stride[d] < p->at.stride[along] ? d : along;
    for (int d = 0; d < dims; d++)
        runs *= d == along ? 1 : part->size[d];
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
    for (int64_t run = 0; run < runs; run++) {
        int64_t left = run, at = 0, index = 0;
        for (int d = dims - 1; d >= 0; d--) {
            int64_t here = d == along ? 0 : left % part->size[d];
            left = d == along ? left : left / part->size[d];
            at += here * p->at.stride[d];
            index += (part->start[d] + here) * weight[d];
        }
        sum += sum_run(data + at * bytes, bytes, part->size[along], p->at.stride[along], key, index, weight[along]);
    }
    return sum;
}

uint64_t state_hash(const compiled *c, executor *e)
{
    AUTO_FREE checkpoint_piece *pieces = NULL;
    int count = 0;
    uint64_t sum = 0;
    state_pieces(&pieces, &count, c, e, STATE_MODEL, true);
    state_pieces(&pieces, &count, c, e, STATE_MASTER, true);
    for (int i = 0; i < count; i++) {
        const checkpoint_piece *p = &pieces[i];
        int64_t bytes = checkpoint_extent(p);
        if (bytes == 0)
            continue;
        void *data = p->source.borrow(p->source.context, p->at.data, bytes);
        sum += piece_hash(p, data, executor_context(e)->threads);
        p->source.give_back(p->source.context, data, p->at.data, bytes);
    }
    return sum;
}
