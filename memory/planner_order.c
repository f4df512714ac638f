/* First-fit is as good as its order, and no order is best for all programs: by size leaves little waste among equals,
 * by duration puts long lives together at the bottom, by contention places those at the peak first. Ties go by first
 * op, so that each micro-batch takes the addresses of the one before it.
 */
#include "memory/planner_internal.h"

#include "memory/log.h"
#include "memory/scope.h"

/* Larger comes first. */
typedef uint64_t key_function(const planner_core *core, int32_t block);

/* floor of 2 log2(value), the halves at 1.5: sizes that differ by less are alike */
static int half_octave(int64_t value)
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
    return (uint64_t)half_octave(core->bytes[b]);
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

/* Where the top is, in bounds: what is placed from the top leaves gaps there that only a little room heals. */
static const double tops[] = {1, 1.02, 1.04, 1.08};

static void sort_by(const planner_core *core, key_function *key, int32_t *order, int32_t *spare, uint64_t *keys)
{
    for (int32_t i = 0; i < core->count; i++)
        keys[i] = ~key(core, i);
    planner_core_sort(order, spare, core->count, keys);
}

typedef struct workspace {
    int32_t *order, *spare; /* [count] */
    uint64_t *keys;         /* [count] */
    bool *from_top;         /* [count] */
} workspace;

static bool try_row(planner_core *core, const struct row *row, const workspace *w, int64_t top)
{
    if (row->major == by_contention)
        planner_core_contend(core);
    for (int32_t i = 0; i < core->count; i++)
        w->order[i] = i;
    sort_by(core, row->minor, w->order, w->spare, w->keys);
    sort_by(core, row->major, w->order, w->spare, w->keys);
    /* The occurrence of a block is how many before it in the order follow each other with the same size. */
    for (int32_t i = 0, occurrence = 0; i < core->count; i++) {
        occurrence = i && core->bytes[w->order[i]] == core->bytes[w->order[i - 1]] ? occurrence + 1 : 0;
        w->from_top[w->order[i]] = row->from_top(core, w->order[i], occurrence);
    }
    return planner_core_try(core, w->order, row->from_top == none ? NULL : w->from_top, top);
}

bool planner_order_try_all(planner_core *core)
{
    unsigned long n = (unsigned long)core->count;
    AUTO_FREE int32_t *order = must_alloc(n * sizeof *order), *spare = must_alloc(n * sizeof *spare);
    AUTO_FREE uint64_t *keys = must_alloc(n * sizeof *keys);
    AUTO_FREE bool *from_top = must_alloc(n * sizeof *from_top);
    const workspace w = {.order = order, .spare = spare, .keys = keys, .from_top = from_top};
    bool stop = false;
    for (size_t r = 0; r < sizeof rows / sizeof *rows && !stop; r++)
        if (rows[r].from_top == none)
            stop = try_row(core, rows + r, &w, 0);
    for (size_t t = 0; t < sizeof tops / sizeof *tops && !stop; t++) {
        int64_t top = (int64_t)((double)core->bound * tops[t]) & -core->alignment;
        top = top > core->target ? top : core->target;
        for (size_t r = 0; r < sizeof rows / sizeof *rows && !stop; r++)
            if (rows[r].from_top != none)
                stop = try_row(core, rows + r, &w, top);
    }
    return stop;
}
