/* A sweep over the program that keeps the set of blocks alive, ordered by offset. As long as all is well the set is
 * disjoint, so a block that comes alive can only collide with its two neighbours. The set is a bitmap over the blocks'
 * ranks by offset, with a bitmap of its non-empty words above it, and so on: finding a neighbour looks at a few words.
 */
#include "memory/planner.h"

#include <stdlib.h>

#include "memory/log.h"
#include "memory/pool.h"
#include "memory/scope.h"

enum {
    LEVELS = 6 /* 64^6 blocks */
};

typedef struct ranks {
    uint64_t *words[LEVELS];
    int levels;
} ranks;

typedef struct moment {
    int64_t key, index;
} moment;

static int compare_moments(const void *a, const void *b)
{
    const moment *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static void ranks_open(ranks *set, pool *memory, int64_t count)
{
    do {
        MUST(set->levels < LEVELS, "too many blocks to check");
        count = count / 64 + 1;
        set->words[set->levels++] = pool_alloc(memory, (size_t)count * sizeof(uint64_t));
    } while (count > 1);
}

static void ranks_add(ranks *set, int64_t rank)
{
    for (int l = 0; l < set->levels; l++, rank /= 64)
        set->words[l][rank / 64] |= (uint64_t)1 << (rank % 64);
}

static void ranks_remove(ranks *set, int64_t rank)
{
    for (int l = 0; l < set->levels; l++, rank /= 64)
        if (set->words[l][rank / 64] &= ~((uint64_t)1 << (rank % 64)))
            return;
}

/* Finds the nearest member above (`up`) or below `rank`; -1 if there is none. */
static int64_t ranks_beside(const ranks *set, int64_t rank, bool up)
{
    for (int l = 0; l < set->levels; l++, rank /= 64) {
        int bit = (int)(rank % 64);
        uint64_t beyond = up ? (bit == 63 ? 0 : ~(uint64_t)0 << (bit + 1)) : ((uint64_t)1 << bit) - 1;
        uint64_t word = set->words[l][rank / 64] & beyond;
        if (!word)
            continue;
        rank = rank / 64 * 64 + (up ? __builtin_ctzll(word) : 63 - __builtin_clzll(word));
        while (l-- > 0) {
            word = set->words[l][rank];
            rank = rank * 64 + (up ? __builtin_ctzll(word) : 63 - __builtin_clzll(word));
        }
        return rank;
    }
    return -1;
}

typedef struct sweep {
    moment *by_offset, *by_first, *by_last;
    int64_t *rank;
    int64_t count; /* number of blocks with bytes */
    ranks alive;
} sweep;

static void sweep_open(sweep *s, pool *memory, const planner_block *blocks, int64_t count)
{
    size_t bytes = (size_t)count * sizeof(moment);
    *s = (sweep){.by_offset = pool_alloc(memory, bytes),
                 .by_first = pool_alloc(memory, bytes),
                 .by_last = pool_alloc(memory, bytes),
                 .rank = pool_alloc(memory, (size_t)count * sizeof(int64_t))};
    for (int64_t i = 0; i < count; i++) {
        if (blocks[i].bytes == 0)
            continue;
        s->by_offset[s->count] = (moment){blocks[i].offset, i};
        s->by_first[s->count] = (moment){blocks[i].first, i};
        s->by_last[s->count++] = (moment){blocks[i].last, i};
    }
    qsort(s->by_offset, (size_t)s->count, sizeof(moment), compare_moments);
    qsort(s->by_first, (size_t)s->count, sizeof(moment), compare_moments);
    qsort(s->by_last, (size_t)s->count, sizeof(moment), compare_moments);
    for (int64_t r = 0; r < s->count; r++)
        s->rank[s->by_offset[r].index] = r;
    ranks_open(&s->alive, memory, s->count);
}

/* Finds a live block that shares bytes with block i; -1 if there is none. */
static int64_t collision(const sweep *s, const planner_block *blocks, int64_t i)
{
    int64_t below = ranks_beside(&s->alive, s->rank[i], false), above = ranks_beside(&s->alive, s->rank[i], true);
    if (below >= 0) {
        const planner_block *b = blocks + s->by_offset[below].index;
        if (b->offset + b->bytes > blocks[i].offset)
            return s->by_offset[below].index;
    }
    if (above >= 0 && blocks[s->by_offset[above].index].offset < blocks[i].offset + blocks[i].bytes)
        return s->by_offset[above].index;
    return -1;
}

bool planner_check(const planner_block *blocks, int64_t count, int64_t arena_bytes, int64_t *first_bad,
                   int64_t *second_bad)
{
    for (int64_t i = 0; i < count; i++) {
        const planner_block *b = blocks + i;
        if (b->bytes < 0 || b->first > b->last || b->offset < 0 || b->bytes > arena_bytes ||
            b->offset > arena_bytes - b->bytes) {
            *first_bad = *second_bad = i;
            return false;
        }
    }
    RELEASED_BY(pool_free) pool memory = {0};
    sweep s;
    sweep_open(&s, &memory, blocks, count);
    int64_t other = -1;
    for (int64_t b = 0, e = 0; b < s.count && other < 0; b++) {
        for (; s.by_last[e].key < s.by_first[b].key; e++)
            ranks_remove(&s.alive, s.rank[s.by_last[e].index]);
        int64_t i = s.by_first[b].index;
        other = collision(&s, blocks, i);
        ranks_add(&s.alive, s.rank[i]);
        if (other >= 0) {
            *first_bad = other;
            *second_bad = i;
        }
    }
    return other < 0;
}
