#include "memory/planner_internal.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"

static const int64_t MOST_BYTES = (int64_t)1 << 60;

/* Radix sort, least significant byte first; bytes in which all keys agree cost one look. */
void planner_core_sort(int32_t *order, int32_t *spare, int32_t count, const uint64_t *key)
{
    uint64_t all = ~(uint64_t)0, any = 0;
    for (int32_t i = 0; i < count; i++) {
        all &= key[order[i]];
        any |= key[order[i]];
    }
    int32_t *from = order, *to = spare;
    for (int shift = 0; shift < 64; shift += 8) {
        if ((((all ^ any) >> shift) & 255) == 0)
            continue;
        int32_t place[257] = {0};
        for (int32_t i = 0; i < count; i++)
            place[((key[from[i]] >> shift) & 255) + 1]++;
        for (int digit = 0; digit < 256; digit++)
            place[digit + 1] += place[digit];
        for (int32_t i = 0; i < count; i++)
            to[place[(key[from[i]] >> shift) & 255]++] = from[i];
        int32_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != order)
        memcpy(order, from, (size_t)count * sizeof *order);
}

/* core->source: the blocks that have bytes, by first op */
static void select_blocks(planner_core *core, const planner_block *blocks, int64_t count)
{
    MUST(count >= 0 && count < INT32_MAX / 2, "%lld blocks to plan", (long long)count);
    core->source = must_alloc((unsigned long)count * sizeof *core->source);
    AUTO_FREE uint64_t *key = must_alloc((unsigned long)count * sizeof *key);
    AUTO_FREE int32_t *spare = must_alloc((unsigned long)count * sizeof *spare);
    for (int32_t i = 0; i < (int32_t)count; i++) {
        const planner_block *b = blocks + i;
        MUST(b->bytes >= 0 && b->bytes <= MOST_BYTES && b->first <= b->last, "block %d: %lld bytes from op %d to op %d",
             i, (long long)b->bytes, b->first, b->last);
        key[i] = (uint32_t)b->first ^ 0x80000000u;
        if (b->bytes > 0)
            core->source[core->count++] = i;
    }
    planner_core_sort(core->source, spare, core->count, key);
}

/* Lifetimes become [index of the first op, index of the last distinct first op not after the last op]. */
static void compress_time(planner_core *core, const planner_block *blocks)
{
    AUTO_FREE int32_t *moments = must_alloc((unsigned long)core->count * sizeof *moments);
    for (int32_t i = 0; i < core->count; i++) {
        int32_t op = blocks[core->source[i]].first;
        if (i == 0 || op != moments[core->times - 1])
            moments[core->times++] = op;
        core->first[i] = core->times - 1;
    }
    for (int32_t i = 0; i < core->count; i++) {
        int32_t low = core->first[i], high = core->times - 1; /* moments[low] <= last op holds throughout */
        while (low < high) {
            int32_t middle = low + (high - low + 1) / 2;
            if (moments[middle] <= blocks[core->source[i]].last)
                low = middle;
            else
                high = middle - 1;
        }
        core->last[i] = low;
    }
}

static void sum_live(planner_core *core)
{
    core->live = must_calloc((unsigned long)core->times + 1, sizeof *core->live);
    for (int32_t i = 0; i < core->count; i++) {
        core->live[core->first[i]] += core->bytes[i];
        core->live[core->last[i] + 1] -= core->bytes[i];
    }
    int64_t sum = 0;
    for (int32_t t = 0; t < core->times; t++) {
        sum += core->live[t];
        MUST(sum <= MOST_BYTES, "more than 2^60 bytes alive at once");
        core->live[t] = sum;
        core->bound = sum > core->bound ? sum : core->bound;
    }
}

void planner_core_open(planner_core *core, const planner_block *blocks, int64_t count, int64_t alignment)
{
    MUST(alignment > 0 && (alignment & (alignment - 1)) == 0, "alignment %lld is no power of two",
         (long long)alignment);
    *core = (planner_core){.alignment = alignment, .best_arena = INT64_MAX};
    select_blocks(core, blocks, count);
    unsigned long n = (unsigned long)core->count;
    core->first = must_alloc(n * sizeof *core->first);
    core->last = must_alloc(n * sizeof *core->last);
    core->bytes = must_alloc(n * sizeof *core->bytes);
    for (int32_t i = 0; i < core->count; i++)
        core->bytes[i] = (blocks[core->source[i]].bytes + alignment - 1) & -alignment;
    compress_time(core, blocks);
    sum_live(core);
    if (core->count == 0)
        return;
    core->offset = must_alloc(n * sizeof *core->offset);
    core->best = must_alloc(n * sizeof *core->best);
    core->tree = planner_tree_open(core->times);
}

void planner_core_close(planner_core *core)
{
    planner_tree_close(core->tree);
    free(core->best);
    free(core->offset);
    free(core->contention);
    free(core->live);
    free(core->bytes);
    free(core->last);
    free(core->first);
    free(core->source);
}

/* A tree of maxima over time (leaves at times..2 times - 1), asked once for each block. */
void planner_core_contend(planner_core *core)
{
    if (core->contention)
        return;
    core->contention = must_alloc((unsigned long)core->count * sizeof *core->contention);
    AUTO_FREE int64_t *most = must_alloc(2 * (unsigned long)core->times * sizeof *most);
    memcpy(most + core->times, core->live, (size_t)core->times * sizeof *most);
    for (int32_t i = core->times - 1; i >= 1; i--)
        most[i] = most[2 * i] > most[2 * i + 1] ? most[2 * i] : most[2 * i + 1];
    for (int32_t b = 0; b < core->count; b++) {
        int64_t highest = 0;
        int32_t low = core->first[b] + core->times, high = core->last[b] + core->times + 1;
        for (; low < high; low /= 2, high /= 2) {
            if (low & 1) {
                highest = most[low] > highest ? most[low] : highest;
                low++;
            }
            if (high & 1) {
                high--;
                highest = most[high] > highest ? most[high] : highest;
            }
        }
        core->contention[b] = highest;
    }
}

/* The arena's bytes; INT64_MAX if it reached `limit`. */
static int64_t place(planner_core *core, const int32_t *order, const bool *from_top, int32_t count, int64_t limit)
{
    int64_t arena = 0;
    planner_tree_clear(core->tree);
    core->tries++;
    for (int32_t i = 0; i < count; i++) {
        int32_t b = order[i];
        int64_t offset = -1;
        if (from_top && from_top[b])
            offset = planner_tree_highest(core->tree, core->first[b], core->last[b], core->bytes[b], core->ceiling);
        if (offset < 0)
            offset = planner_tree_lowest(core->tree, core->first[b], core->last[b], core->bytes[b]);
        core->effort_left--;
        int64_t end = offset + core->bytes[b];
        arena = end > arena ? end : arena;
        if (arena >= limit)
            return INT64_MAX;
        planner_tree_take(core->tree, core->first[b], core->last[b], offset, core->bytes[b]);
        core->offset[b] = offset;
    }
    return arena;
}

bool planner_core_try(planner_core *core, const int32_t *order, const bool *from_top, int64_t ceiling)
{
    core->ceiling = ceiling;
    int64_t arena = place(core, order, from_top, core->count, core->best_arena);
    if (arena < core->best_arena) {
        int64_t *swap = core->best;
        core->best = core->offset;
        core->offset = swap;
        core->best_arena = arena;
    }
    return core->best_arena <= core->target || core->effort_left <= 0;
}
