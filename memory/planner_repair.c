/* An order places a block once and for all; here a block that does not fit may push others out. All blocks of the best
 * arena that end above a lower top are taken out into a pool. The most expensive of the pool goes into the tightest gap
 * that holds it; without a gap it goes where it pushes out the cheapest blocks, which join the pool. A block's price
 * grows each time it finds no gap, so that no two push each other out forever. An empty pool is a plan below that top.
 *
 * Large and long blocks are expensive from the start: scratch that lives for one op must yield to blocks that live
 * through the pipeline, and then finds gaps between them. A move costs one look at the blocks that meet the moved one,
 * however long the program.
 *
 * Guided ejection search: Nagata and Braysy, 2009, for routing vehicles.
 */
#include "memory/planner_repair.h"

#include <string.h>

#include "memory/log.h"
#include "memory/pool.h"
#include "memory/scope.h"

enum {
    MOST_MEETINGS = 4000000,
    BURST_BASE = 500, /* moves before another top is tried: more with more blocks */
    BURST_PER_BLOCK = 5,
};

static const int64_t OUT = INT64_MAX / 4; /* the offset of a block in the pool: above all others */

/* Radix sort, least significant byte first; bytes in which all keys agree cost one look. */
void planner_repair_sort(int32_t *order, int32_t *spare, int32_t count, const uint64_t *key)
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

typedef struct repair {
    planner_problem *core;
    int32_t *from;              /* [count + 1] the blocks that meet b are numbers from[b] .. from[b + 1] - 1 */
    int32_t *by_start, *by_end; /* the same blocks in both lists, in order of offset and of end when b was last moved */
    int64_t *offset;            /* [count] */
    int64_t *price, *cost;      /* [count] prices at the start, and grown */
    int32_t *pool, pooled;      /* [count] */
    int64_t top;                /* top of the arena aimed at */
    uint64_t random;
} repair;

/* xorshift64*, Vigna 2016; below `limit` */
static uint32_t draw(repair *r, uint32_t limit)
{
    r->random ^= r->random >> 12;
    r->random ^= r->random << 25;
    r->random ^= r->random >> 27;
    return (uint32_t)(((r->random * 2685821657736338717u) >> 33) % limit);
}

static int64_t start_of(const repair *r, int32_t b)
{
    return r->offset[b];
}

static int64_t end_of(const repair *r, int32_t b)
{
    return r->offset[b] + r->core->bytes[b];
}

/* Sorts by insertion, since few blocks have moved since the list was last sorted. */
static void sort_list(const repair *r, int32_t *list, int32_t count, int64_t (*key)(const repair *r, int32_t b))
{
    for (int32_t i = 1; i < count; i++) {
        int32_t moved = list[i], to = i;
        int64_t its = key(r, moved);
        for (; to > 0 && key(r, list[to - 1]) > its; to--)
            list[to] = list[to - 1];
        list[to] = moved;
    }
}

/* Finds the start of the tightest gap that holds block b, given its sorted lists; -1 if there is none. */
static int64_t tightest_gap(const repair *r, int32_t b)
{
    int64_t bytes = r->core->bytes[b], floor = 0, best = -1, best_room = INT64_MAX;
    for (int32_t i = r->from[b]; i <= r->from[b + 1]; i++) {
        bool placed = i < r->from[b + 1] && r->offset[r->by_start[i]] < OUT;
        int64_t room = (placed ? start_of(r, r->by_start[i]) : r->top) - floor;
        if (room >= bytes && room < best_room) {
            best_room = room;
            best = floor;
        }
        if (!placed)
            break;
        int64_t end = end_of(r, r->by_start[i]);
        floor = end > floor ? end : floor;
    }
    return best;
}

/* A sweep of possible offsets of block b, ascending. */
typedef struct sweep {
    int32_t begun, ended; /* blocks that start before the end of b, blocks that end at or before its start */
    int64_t cost;         /* cost of the begun blocks that have not ended */
    int64_t best_cost, best;
    uint32_t ties;
} sweep;

static void consider(repair *r, sweep *s, int32_t b, int64_t at)
{
    int64_t end = at + r->core->bytes[b];
    if (at < 0 || end > r->top)
        return;
    for (; s->begun < r->from[b + 1] && start_of(r, r->by_start[s->begun]) < end; s->begun++)
        s->cost += r->cost[r->by_start[s->begun]];
    for (; s->ended < r->from[b + 1] && end_of(r, r->by_end[s->ended]) <= at; s->ended++)
        s->cost -= r->cost[r->by_end[s->ended]];
    if (s->cost < s->best_cost || (s->cost == s->best_cost && draw(r, ++s->ties) == 0)) {
        s->ties = s->cost < s->best_cost ? 1 : s->ties;
        s->best_cost = s->cost;
        s->best = at;
    }
}

/* Finds the offset at which block b pushes out least: next to a block, above or below it, or at an end of the arena. */
static int64_t cheapest_offset(repair *r, int32_t b)
{
    sweep up = {.begun = r->from[b], .ended = r->from[b], .best_cost = INT64_MAX};
    consider(r, &up, b, 0);
    for (int32_t i = r->from[b]; i < r->from[b + 1] && r->offset[r->by_end[i]] < OUT; i++)
        consider(r, &up, b, end_of(r, r->by_end[i]));
    sweep down = {
        .begun = r->from[b], .ended = r->from[b], .best_cost = up.best_cost, .best = up.best, .ties = up.ties};
    for (int32_t i = r->from[b]; i < r->from[b + 1] && r->offset[r->by_start[i]] < OUT; i++)
        consider(r, &down, b, start_of(r, r->by_start[i]) - r->core->bytes[b]);
    consider(r, &down, b, r->top - r->core->bytes[b]);
    return down.best;
}

static void pool_add(repair *r, int32_t b)
{
    r->offset[b] = OUT;
    r->pool[r->pooled++] = b;
}

static int32_t pool_take_dearest(repair *r)
{
    int32_t at = r->pooled - 1;
    for (int32_t i = 0; i < r->pooled; i++)
        if (r->cost[r->pool[i]] > r->cost[r->pool[at]])
            at = i;
    int32_t b = r->pool[at];
    r->pool[at] = r->pool[--r->pooled];
    return b;
}

static void move_one(repair *r)
{
    int32_t b = pool_take_dearest(r), count = r->from[b + 1] - r->from[b];
    sort_list(r, r->by_start + r->from[b], count, start_of);
    sort_list(r, r->by_end + r->from[b], count, end_of);
    int64_t at = tightest_gap(r, b);
    if (at < 0) {
        r->cost[b] += r->price[b];
        at = cheapest_offset(r, b);
        for (int32_t i = r->from[b]; i < r->from[b + 1]; i++) {
            int32_t x = r->by_start[i];
            if (start_of(r, x) < at + r->core->bytes[b] && end_of(r, x) > at)
                pool_add(r, x);
        }
    }
    r->offset[b] = at;
    r->core->effort_left--;
}

/* Tries to make a plan below `top`, from the best so far, in at most `moves` moves. */
static bool attempt(repair *r, int64_t top, int64_t moves)
{
    planner_problem *core = r->core;
    size_t n = (size_t)core->count;
    memcpy(r->offset, core->best, n * sizeof *r->offset);
    memcpy(r->cost, r->price, n * sizeof *r->cost);
    r->top = top;
    r->pooled = 0;
    for (int32_t b = 0; b < core->count; b++)
        if (end_of(r, b) > top)
            pool_add(r, b);
    core->tries++;
    for (; r->pooled > 0 && moves > 0; moves--)
        move_one(r);
    if (r->pooled > 0)
        return false;
    memcpy(core->best, r->offset, n * sizeof *core->best);
    core->best_arena = 0;
    for (int32_t b = 0; b < core->count; b++)
        core->best_arena = end_of(r, b) > core->best_arena ? end_of(r, b) : core->best_arena;
    return true;
}

/* Counts into r->from: block b meets the blocks that begin before it ends, less the ended ones and less itself. */
static bool count_meetings(repair *r)
{
    const planner_problem *core = r->core;
    AUTO_FREE int32_t *begun = must_calloc((unsigned long)core->times + 1, sizeof *begun);
    AUTO_FREE int32_t *ended = must_calloc((unsigned long)core->times + 1, sizeof *ended); /* [t]: ended before t */
    for (int32_t b = 0; b < core->count; b++) {
        begun[core->first[b]]++;
        ended[core->last[b] + 1]++;
    }
    for (int32_t t = 1; t <= core->times; t++) {
        begun[t] += begun[t - 1];
        ended[t] += ended[t - 1];
    }
    int64_t sum = 0;
    for (int32_t b = 0; b < core->count; b++) {
        r->from[b] = (int32_t)sum;
        sum += begun[core->last[b]] - ended[core->first[b]] - 1;
        if (sum > MOST_MEETINGS)
            break;
    }
    r->from[core->count] = (int32_t)sum;
    return sum <= MOST_MEETINGS;
}

/* Puts both lists in order of the best arena's offsets, so that the first sort finds them nearly sorted. */
static void list_meetings(repair *r)
{
    const planner_problem *core = r->core;
    unsigned long n = (unsigned long)core->count;
    AUTO_FREE int32_t *order = must_alloc(n * sizeof *order), *filled = must_alloc(n * sizeof *filled);
    AUTO_FREE uint64_t *key = must_alloc(n * sizeof *key);
    for (int32_t b = 0; b < core->count; b++) {
        order[b] = b;
        key[b] = (uint64_t)core->best[b];
    }
    planner_repair_sort(order, filled, core->count, key);
    memcpy(filled, r->from, n * sizeof *filled);
    for (int32_t i = 0; i < core->count; i++) {
        int32_t x = order[i];
        for (int32_t b = 0; b < core->count && core->first[b] <= core->last[x]; b++)
            if (core->last[b] >= core->first[x] && b != x)
                r->by_start[filled[b]++] = x;
    }
    memcpy(r->by_end, r->by_start, (size_t)r->from[core->count] * sizeof *r->by_end);
}

/* Returns the square root of the size times the logarithm of the life: tuned on some hundred programs. */
static int64_t price_of(const planner_problem *core, int32_t b)
{
    int64_t units = core->bytes[b] / core->alignment, root = 1, life = core->last[b] - core->first[b] + 1, octaves = 1;
    while (octaves < 31 && (int64_t)1 << octaves < life)
        octaves++;
    for (int64_t bit = (int64_t)1 << 30; bit > 0; bit /= 2)
        if ((root + bit) * (root + bit) <= units)
            root += bit;
    return root * octaves;
}

/* Aims at the target; after a failure at a top between it and the best, nearer to the best each time. */
static void aim(repair *r, int64_t effort)
{
    planner_problem *core = r->core;
    int64_t burst = BURST_BASE + BURST_PER_BLOCK * (int64_t)core->count, stop_at = core->effort_left - effort;
    for (int halvings = 0; core->best_arena > core->target && core->effort_left > stop_at;) {
        int64_t left = core->effort_left - stop_at, beyond = core->best_arena - core->target;
        int64_t top = (core->best_arena - (beyond >> halvings)) & -core->alignment;
        if (halvings && top >= core->best_arena)
            top = core->best_arena - core->alignment;
        if (attempt(r, halvings ? top : core->target, left < burst ? left : burst))
            halvings = 0;
        else
            halvings = halvings < 4 ? halvings + 1 : 0;
    }
}

void planner_repair(planner_problem *core, int64_t effort)
{
    if (core->count > PLANNER_REPAIR_BLOCKS || effort <= 0)
        return;
    unsigned long n = (unsigned long)core->count;
    RELEASED_BY(pool_free) pool all = {0};
    repair r = {.core = core, .from = pool_alloc(&all, (n + 1) * sizeof *r.from), .random = 88172645463325252u};
    if (!count_meetings(&r))
        return;
    unsigned long meetings = (unsigned long)r.from[core->count];
    r.by_start = pool_alloc(&all, meetings * sizeof *r.by_start);
    r.by_end = pool_alloc(&all, meetings * sizeof *r.by_end);
    r.offset = pool_alloc(&all, n * sizeof *r.offset);
    r.price = pool_alloc(&all, n * sizeof *r.price);
    r.cost = pool_alloc(&all, n * sizeof *r.cost);
    r.pool = pool_alloc(&all, n * sizeof *r.pool);
    for (int32_t b = 0; b < core->count; b++)
        r.price[b] = price_of(core, b);
    list_meetings(&r);
    aim(&r, effort);
}
