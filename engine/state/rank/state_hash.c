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

#define SUM_ELEMENTS(bits)                                                                                             \
    for (int64_t i = 0; i < r->count; i++)                                                                             \
        sum += mix((key + (uint64_t)(r->index + i * r->step) * 0x9e3779b97f4a7c15u) ^                                  \
                   (uint64_t)((const bits *)data)[i * r->stride] * 0xd6e8feb86659fd93u);

__attribute__((target_clones("avx512f", "avx2", "default"))) static uint64_t sum_run(const void *data, int bytes,
                                                                                     uint64_t key, const box_run *r)
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

uint64_t state_hash(const compiled *c, executor *e)
{
    AUTO_FREE checkpoint_piece *pieces = NULL;
    int count = 0;
    uint64_t sum = 0;
    state_pieces(&pieces, &count, c, e, STATE_MODEL, true);
    state_pieces(&pieces, &count, c, e, STATE_MASTER, true);
    for (int k = 0; k < count; k++) {
        const checkpoint_piece *p = &pieces[k];
        const int64_t extent = checkpoint_extent(p), runs = extent > 0 ? box_runs(&p->of, &p->at) : 0;
        const int bytes = (int)dtype_bytes(p->at.type);
        const uint64_t key = mix(philox_stream(p->of.name) ^ philox_stream(p->section) << 16);
        char *data = extent > 0 ? p->source.borrow(p->source.context, p->at.data, extent) : NULL;
#pragma omp parallel for num_threads(executor_context(e)->threads) reduction(+ : sum) schedule(static)
        for (int64_t i = 0; i < runs; i++) {
            box_run r = box_run_at(&p->of, &p->at, i);
            sum += sum_run(data + r.at * bytes, bytes, key, &r);
        }
        if (data)
            p->source.give_back(p->source.context, data, p->at.data, extent);
    }
    return sum;
}
