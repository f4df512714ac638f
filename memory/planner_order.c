/* First-fit is as good as its order, and no order is best for all programs: by size leaves little waste among equals, by
 * duration lets long lives settle at the bottom in one piece, by contention serves first those who stand at the peak. Ties
 * go by first op, so that each micro-batch takes the addresses of the one before it.
 */
#include "memory/planner_order.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

/* Larger comes first. */
typedef uint64_t key_function(const planner_core *core, int32_t block);

int planner_order_half_octave(int64_t value)
{
    if (value <= 1)
        return 0;
    int octave = 63 - __builtin_clzll((unsigned long long)value);
    return 2 * octave + (int)((value >> (octave - 1)) & 1);
}

static uint64_t by_size(const planner_core *core, int32_t b)
{
    return (uint64_t)core->bytes[b];
}

static uint64_t by_duration(const planner_core *core, int32_t b)
{
    return (uint64_t)(core->last[b] - core->first[b]);
}

static uint64_t by_size_step(const planner_core *core, int32_t b)
{
    return (uint64_t)planner_order_half_octave(core->bytes[b]);
}

/* in fiftieths of the bound */
static uint64_t by_contention(const planner_core *core, int32_t b)
{
    return (uint64_t)((double)core->contention[b] / (double)core->bound * 50);
}

static uint64_t by_start(const planner_core *core, int32_t b)
{
    return (uint64_t)(core->times - core->first[b]);
}

static uint64_t by_area(const planner_core *core, int32_t b)
{
    return (uint64_t)((double)core->bytes[b] * (double)(core->last[b] - core->first[b] + 1));
}

/* Which blocks go to the top of the arena. */
typedef bool top_function(const planner_core *core, int32_t block, int occurrence);

static bool none(const planner_core *core, int32_t b, int occurrence)
{
    (void)core, (void)b, (void)occurrence;
    return false;
}

static bool temporaries(const planner_core *core, int32_t b, int occurrence)
{
    (void)occurrence;
    return core->last[b] - core->first[b] <= 8;
}

static bool alternate(const planner_core *core, int32_t b, int occurrence)
{
    (void)core, (void)b;
    return occurrence % 2 == 1;
}

static const struct row {
    key_function *major, *minor;
    top_function *from_top;
} rows[] = {
    {by_size, by_duration, none},        {by_duration, by_size, none},          {by_size_step, by_duration, none},
    {by_contention, by_size, none},      {by_contention, by_duration, none},    {by_area, by_size, none},
    {by_start, by_size, none},           {by_contention, by_size, temporaries}, {by_size, by_duration, temporaries},
    {by_duration, by_size, temporaries}, {by_size, by_duration, alternate},     {by_contention, by_size, alternate},
};

static void sort_by(const planner_core *core, key_function *key, int32_t *order, int32_t *spare, uint64_t *keys)
{
    for (int32_t i = 0; i < core->count; i++)
        keys[i] = ~key(core, i);
    planner_core_sort(order, spare, core->count, keys);
}

/* The occurrence of a block is how many before it in the order follow each other with the same size. */
static void choose_tops(const planner_core *core, const struct row *row, const int32_t *order, bool *from_top)
{
    int occurrence = 0;
    for (int32_t i = 0; i < core->count; i++) {
        occurrence = i && core->bytes[order[i]] == core->bytes[order[i - 1]] ? occurrence + 1 : 0;
        from_top[order[i]] = row->from_top(core, order[i], occurrence);
    }
}

bool planner_order_try_all(planner_core *core, int32_t *best_order)
{
    unsigned long n = (unsigned long)core->count;
    int32_t *order = must_alloc(n * sizeof *order), *spare = must_alloc(n * sizeof *spare);
    uint64_t *keys = must_alloc(n * sizeof *keys);
    bool *from_top = must_alloc(n * sizeof *from_top);
    bool stop = false;
    for (size_t r = 0; r < sizeof rows / sizeof *rows && !stop; r++) {
        if (rows[r].major == by_contention)
            planner_core_contend(core);
        for (int32_t i = 0; i < core->count; i++)
            order[i] = i;
        sort_by(core, rows[r].minor, order, spare, keys);
        sort_by(core, rows[r].major, order, spare, keys);
        choose_tops(core, rows + r, order, from_top);
        int64_t before = core->best_arena;
        stop = planner_core_try(core, order, rows[r].from_top == none ? NULL : from_top);
        if (core->best_arena < before)
            memcpy(best_order, order, n * sizeof *order);
    }
    free(from_top);
    free(keys);
    free(spare);
    free(order);
    return stop;
}
