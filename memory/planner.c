#include "memory/planner.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/planner_repair.h"
#include "memory/scope.h"

/* ---- occupied addresses over time -------------------------------------------------------------------------------- */

/* A segment tree over time. A lifetime splits into O(log times) nodes, and covers their ranges of time whole. Each node
 * keeps two sorted lists of disjoint address intervals, in which neighbours that touch are merged into one:
 *     cover   taken by lifetimes that were split into this very node,
 *     below   taken by lifetimes that were split into this node or any beneath it.
 * A lifetime collides with the `below` lists of its own nodes and the `cover` lists of their ancestors: at most 4
 * log2(times) lists. First-fit fills from one end, so that merged lists are short where the arena is full.
 *
 * Node numbering: a node over [low, high] with middle m has its left child at node + 1 and its right child at node + 2
 * (m - low + 1), so that exactly 2 times - 1 nodes exist for any number of times.
 */

enum {
    MOST_LISTS = 4 * 32, /* two paths of at most 32 levels, each with a cover and a sibling's below */
    CLASSES = 31,        /* list capacities are powers of two */
    SLAB_INTERVALS = 1 << 16,
};

typedef struct interval {
    int64_t start, end;
} interval;

typedef struct list {
    interval *at;
    int32_t count;
    int32_t capacity_class; /* capacity 1 << class; meaningless while `at` is NULL */
} list;

typedef struct node {
    list cover, below;
} node;

/* Memory of the lists: slabs are filled from the front, outgrown lists wait in `free_lists` by capacity. */
typedef struct slab {
    struct slab *next;
    int64_t used, capacity;
    interval space[];
} slab;

typedef union free_list {
    union free_list *next;
    interval room;
} free_list;

/* Finds the lowest (or highest) range of `bytes` that is free at all times first..last, and marks such a range as
 * taken. Time is the small integers 0..times-1. */
typedef struct planner_tree {
    node *nodes;
    int32_t times;
    slab *slabs, *current;
    free_list *free_lists[CLASSES];
    int lists; /* number of lists found by the current query */
    const list *found[MOST_LISTS];
} planner_tree;

static void tree_close(planner_tree *tree)
{
    if (!tree)
        return;
    for (slab *s = tree->slabs, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    free(tree->nodes);
    free(tree);
}

/* Frees all ranges; keeps the memory. */
static void tree_clear(planner_tree *tree)
{
    memset(tree->nodes, 0, (2 * (size_t)tree->times - 1) * sizeof *tree->nodes);
    memset(tree->free_lists, 0, sizeof tree->free_lists);
    for (slab *s = tree->slabs; s; s = s->next)
        s->used = 0;
    tree->current = tree->slabs;
}

static interval *take_room(planner_tree *tree, int capacity_class)
{
    free_list *reused = tree->free_lists[capacity_class];
    if (reused) {
        tree->free_lists[capacity_class] = reused->next;
        return &reused->room;
    }
    int64_t need = (int64_t)1 << capacity_class;
    while (tree->current && tree->current->capacity - tree->current->used < need && tree->current->next)
        tree->current = tree->current->next;
    if (!tree->current || tree->current->capacity - tree->current->used < need) {
        int64_t capacity = need > SLAB_INTERVALS ? need : SLAB_INTERVALS;
        slab *fresh = must_alloc(sizeof *fresh + (unsigned long)capacity * sizeof(interval));
        *fresh = (slab){.capacity = capacity};
        if (tree->current)
            tree->current->next = fresh;
        else
            tree->slabs = fresh;
        tree->current = fresh;
    }
    interval *room = tree->current->space + tree->current->used;
    tree->current->used += need;
    return room;
}

static void grow(planner_tree *tree, list *l)
{
    int wider = l->at ? l->capacity_class + 1 : 0;
    MUST(wider < CLASSES, "more than 2^30 intervals in one list");
    interval *room = take_room(tree, wider);
    if (l->at) {
        memcpy(room, l->at, (size_t)l->count * sizeof *room);
        free_list *given = (free_list *)(void *)l->at;
        given->next = tree->free_lists[l->capacity_class];
        tree->free_lists[l->capacity_class] = given;
    }
    l->at = room;
    l->capacity_class = wider;
}

/* Finds the first interval that ends at or after `start`: the first that [start, ...) touches, overlaps or precedes. */
static int32_t first_ending_from(const list *l, int64_t start)
{
    int32_t low = 0, high = l->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (l->at[middle].end < start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Unites l with [start, end). */
static void unite(planner_tree *tree, list *l, int64_t start, int64_t end)
{
    int32_t from = first_ending_from(l, start), to = from;
    while (to < l->count && l->at[to].start <= end)
        to++;
    if (from == to) {
        if (!l->at || l->count == (int32_t)1 << l->capacity_class)
            grow(tree, l);
        memmove(l->at + from + 1, l->at + from, (size_t)(l->count - from) * sizeof *l->at);
        l->at[from] = (interval){start, end};
        l->count++;
        return;
    }
    interval *merged = l->at + from;
    merged->start = start < merged->start ? start : merged->start;
    merged->end = end > l->at[to - 1].end ? end : l->at[to - 1].end;
    if (to - from > 1) {
        memmove(merged + 1, l->at + to, (size_t)(l->count - to) * sizeof *l->at);
        l->count -= to - from - 1;
    }
}

static void collect(planner_tree *tree, int32_t at, int32_t low, int32_t high, int32_t first, int32_t last)
{
    const node *n = tree->nodes + at;
    if (n->below.count == 0)
        return;
    if (first <= low && high <= last) {
        tree->found[tree->lists++] = &n->below;
        return;
    }
    if (n->cover.count)
        tree->found[tree->lists++] = &n->cover;
    int32_t middle = low + (high - low) / 2;
    if (first <= middle)
        collect(tree, at + 1, low, middle, first, last);
    if (last > middle)
        collect(tree, at + 2 * (middle - low + 1), middle + 1, high, first, last);
}

static int64_t tree_lowest(planner_tree *tree, int32_t first, int32_t last, int64_t bytes)
{
    const interval *cursor[MOST_LISTS], *end[MOST_LISTS];
    tree->lists = 0;
    collect(tree, 0, 0, tree->times - 1, first, last);
    for (int i = 0; i < tree->lists; i++) {
        cursor[i] = tree->found[i]->at;
        end[i] = cursor[i] + tree->found[i]->count;
    }
    int64_t offset = 0;
    /* Lets each list in turn lift the offset past its conflicts, until all agree on one offset. */
    for (int agreed = 0, i = 0; agreed < tree->lists; i = i + 1 == tree->lists ? 0 : i + 1) {
        const interval *c = cursor[i];
        agreed++;
        for (; c < end[i] && c->start < offset + bytes; c++)
            if (c->end > offset) {
                offset = c->end;
                agreed = 1;
            }
        cursor[i] = c;
    }
    return offset;
}

/* Finds an offset entirely below `ceiling`; -1 if there is none. */
static int64_t tree_highest(planner_tree *tree, int32_t first, int32_t last, int64_t bytes, int64_t ceiling)
{
    const interval *cursor[MOST_LISTS], *end[MOST_LISTS]; /* the cursor is one past the interval it looks at */
    tree->lists = 0;
    collect(tree, 0, 0, tree->times - 1, first, last);
    for (int i = 0; i < tree->lists; i++) {
        end[i] = tree->found[i]->at;
        cursor[i] = end[i] + tree->found[i]->count;
    }
    int64_t offset = ceiling - bytes;
    for (int agreed = 0, i = 0; agreed < tree->lists && offset >= 0; i = i + 1 == tree->lists ? 0 : i + 1) {
        const interval *c = cursor[i];
        agreed++;
        for (; c > end[i] && c[-1].end > offset; c--)
            if (c[-1].start < offset + bytes) {
                offset = c[-1].start - bytes;
                agreed = 1;
            }
        cursor[i] = c;
    }
    return offset < 0 ? -1 : offset;
}

static void mark(planner_tree *tree, int32_t at, int32_t low, int32_t high, int32_t first, int32_t last, interval taken)
{
    node *n = tree->nodes + at;
    unite(tree, &n->below, taken.start, taken.end);
    if (first <= low && high <= last) {
        if (low < high) /* a leaf has no descendants that would ask for its cover */
            unite(tree, &n->cover, taken.start, taken.end);
        return;
    }
    int32_t middle = low + (high - low) / 2;
    if (first <= middle)
        mark(tree, at + 1, low, middle, first, last, taken);
    if (last > middle)
        mark(tree, at + 2 * (middle - low + 1), middle + 1, high, first, last, taken);
}

/* ---- the problem ------------------------------------------------------------------------------------------------- */

static const int64_t MOST_BYTES = (int64_t)1 << 60;

/* core->source: the blocks that have bytes, by first op */
static void select_blocks(planner_problem *core, const planner_block *blocks, int64_t count)
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
    planner_repair_sort(core->source, spare, core->count, key);
}

/* Compresses lifetimes to [index of the first op, index of the last distinct first op not after the last op]. */
static void compress_time(planner_problem *core, const planner_block *blocks)
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

static void sum_live(planner_problem *core)
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

static void core_open(planner_problem *core, const planner_block *blocks, int64_t count, int64_t alignment)
{
    MUST(alignment > 0 && (alignment & (alignment - 1)) == 0, "alignment %lld is no power of two",
         (long long)alignment);
    *core = (planner_problem){.alignment = alignment, .best_arena = INT64_MAX};
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
    MUST(core->times >= 1 && core->times <= 1 << 30, "a program of %d times", core->times);
    core->tree = must_calloc(1, sizeof *core->tree);
    core->tree->times = core->times;
    core->tree->nodes = must_calloc(2 * (unsigned long)core->times - 1, sizeof *core->tree->nodes);
}

static void core_close(planner_problem *core)
{
    tree_close(core->tree);
    free(core->best);
    free(core->offset);
    free(core->contention);
    free(core->live);
    free(core->bytes);
    free(core->last);
    free(core->first);
    free(core->source);
}

/* Fills core->contention from a tree of maxima over time (leaves at times..2 times - 1), asked once a block. */
static void contend(planner_problem *core)
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

/* Returns the arena's bytes; INT64_MAX if it reached `limit`. */
static int64_t place(planner_problem *core, const int32_t *order, const bool *from_top, int32_t count, int64_t limit)
{
    int64_t arena = 0;
    tree_clear(core->tree);
    core->tries++;
    for (int32_t i = 0; i < count; i++) {
        int32_t b = order[i];
        int64_t offset = -1;
        if (from_top && from_top[b])
            offset = tree_highest(core->tree, core->first[b], core->last[b], core->bytes[b], core->ceiling);
        if (offset < 0)
            offset = tree_lowest(core->tree, core->first[b], core->last[b], core->bytes[b]);
        core->effort_left--;
        int64_t end = offset + core->bytes[b];
        arena = end > arena ? end : arena;
        if (arena >= limit)
            return INT64_MAX;
        mark(core->tree, 0, 0, core->tree->times - 1, core->first[b], core->last[b],
             (interval){offset, offset + core->bytes[b]});
        core->offset[b] = offset;
    }
    return arena;
}

/* Places the blocks in this order one after the other, each at the lowest free offset, or, where from_top[block] is set
 * (NULL: nowhere), at the highest below `ceiling` (the lowest if there is no room). Gives up as soon as the arena
 * reaches the best; an improvement becomes the best. Returns whether that is good enough or the effort is used up: true
 * means stop. */
static bool try_order(planner_problem *core, const int32_t *order, const bool *from_top, int64_t ceiling)
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

/* ---- the orders tried -------------------------------------------------------------------------------------------- */

/* First-fit is as good as its order, and no order is best for all programs: by size leaves little waste among equals,
 * by duration puts long lives together at the bottom, by contention places those at the peak first. Ties go by first
 * op, so that each micro-batch takes the addresses of the one before it.
 */

/* Orders larger blocks first. */
typedef uint64_t key_function(const planner_problem *core, int32_t block);

static uint64_t by_size(const planner_problem *core, int32_t b)
{
    return (uint64_t)core->bytes[b];
}

static uint64_t by_duration(const planner_problem *core, int32_t b)
{
    return (uint64_t)(core->last[b] - core->first[b]);
}

/* Returns floor of 2 log2(bytes), the halves at 1.5: sizes that differ by less count as equal. */
static uint64_t by_size_step(const planner_problem *core, int32_t b)
{
    uint64_t bytes = (uint64_t)core->bytes[b], octave = bytes > 1 ? 63 - (uint64_t)__builtin_clzll(bytes) : 0;
    return octave ? 2 * octave + (bytes >> (octave - 1) & 1) : 0;
}

/* Returns the contention in fiftieths of the bound. */
static uint64_t by_contention(const planner_problem *core, int32_t b)
{
    return (uint64_t)((double)core->contention[b] / (double)core->bound * 50);
}

static uint64_t by_start(const planner_problem *core, int32_t b)
{
    return (uint64_t)(core->times - core->first[b]);
}

static uint64_t by_area(const planner_problem *core, int32_t b)
{
    return (uint64_t)((double)core->bytes[b] * (double)(core->last[b] - core->first[b] + 1));
}

/* Selects blocks for the top of the arena. */
typedef bool top_function(const planner_problem *core, int32_t block, int occurrence);

static bool none(const planner_problem *core, int32_t b, int occurrence)
{
    (void)core, (void)b, (void)occurrence;
    return false;
}

static bool temporaries(const planner_problem *core, int32_t b, int occurrence)
{
    (void)occurrence;
    return core->last[b] - core->first[b] <= 8;
}

static bool alternate(const planner_problem *core, int32_t b, int occurrence)
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

/* Heights of the top, in bounds: blocks placed from the top leave gaps that a little more room closes. */
static const double tops[] = {1, 1.02, 1.04, 1.08};

static void sort_by(const planner_problem *core, key_function *key, int32_t *order, int32_t *spare, uint64_t *keys)
{
    for (int32_t i = 0; i < core->count; i++)
        keys[i] = ~key(core, i);
    planner_repair_sort(order, spare, core->count, keys);
}

typedef struct workspace {
    int32_t *order, *spare; /* [count] */
    uint64_t *keys;         /* [count] */
    bool *from_top;         /* [count] */
} workspace;

static bool try_row(planner_problem *core, const struct row *row, const workspace *w, int64_t top)
{
    if (row->major == by_contention)
        contend(core);
    for (int32_t i = 0; i < core->count; i++)
        w->order[i] = i;
    sort_by(core, row->minor, w->order, w->spare, w->keys);
    sort_by(core, row->major, w->order, w->spare, w->keys);
    /* Counts the preceding blocks in the order with the same size in a row: a block's occurrence. */
    for (int32_t i = 0, occurrence = 0; i < core->count; i++) {
        occurrence = i && core->bytes[w->order[i]] == core->bytes[w->order[i - 1]] ? occurrence + 1 : 0;
        w->from_top[w->order[i]] = row->from_top(core, w->order[i], occurrence);
    }
    return try_order(core, w->order, row->from_top == none ? NULL : w->from_top, top);
}

/* Tries the orders, one row each, cheapest success first, until try_order says stop; returns whether it did. */
static bool try_all(planner_problem *core)
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

/* ---- a plan ------------------------------------------------------------------------------------------------------ */

void planner_place(planner_block *blocks, planner_result *result, int64_t count, int64_t alignment, double goal,
                   int64_t effort)
{
    MUST(goal >= 1 && goal < 1e6, "a goal of %g times the lower bound", goal);
    planner_problem core;
    core_open(&core, blocks, count, alignment);
    int64_t enough = (int64_t)((double)core.bound * goal) & -alignment;
    core.target = enough > core.bound ? enough : core.bound;
    int64_t most = 4 * (int64_t)core.count > 2000000 ? 4 * (int64_t)core.count : 2000000;
    int64_t unsaid = 200 * (int64_t)core.count > 40000 ? 200 * (int64_t)core.count : 40000;
    core.effort_left = effort > 0 ? effort : unsaid < most ? unsaid : most;
    if (core.count > 0 && !try_all(&core)) {
        /* a repair that succeeds does so soon, and its moves cost twice a placement */
        most = 5000 + 20 * (int64_t)core.count;
        most = core.count > PLANNER_REPAIR_BLOCKS ? 0 : most < 30000 ? most : 30000;
        planner_repair(&core, core.effort_left / 3 < most ? core.effort_left / 3 : most);
    }
    for (int64_t i = 0; i < count; i++)
        blocks[i].offset = 0;
    for (int32_t i = 0; i < core.count; i++)
        blocks[core.source[i]].offset = core.best[i];
    *result = (planner_result){
        .arena_bytes = core.count > 0 ? core.best_arena : 0, .lower_bound = core.bound, .tries = core.tries};
    core_close(&core);
}
