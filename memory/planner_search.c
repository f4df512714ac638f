/* Blocks of one kind (size, duration to half an octave) come again with every micro-batch, so what is learned in a
 * window of time around the place where the best arena is too high holds for the whole program. An order is the best
 * one so far in which each kind is shifted by some places, and may be told to settle at the top of the arena. Each try
 * lifts the kind of a block that ended too high, or disturbs a random kind; a try that is hardly worse is kept
 * (threshold accepting, Dueck and Scheuer, 1990), and the best of all is placed whole.
 *
 * Restarting from what the last full placement could not settle: Joslin and Clements, "Squeaky Wheel" Optimization,
 * 1999.
 */
#include "memory/planner_search.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/planner_order.h"

enum {
    WINDOW_BLOCKS = 4000,
    TRIES_A_WINDOW = 400,
};

/* The first try of a window may be worse by this share of the bound. */
static const double MARGIN = 0.003;

typedef struct learned {
    int64_t *shift;  /* [kinds] places later; negative is earlier */
    bool *top;       /* [kinds] */
    int64_t ceiling; /* the top of the arena */
} learned;

typedef struct search {
    planner_core *core;
    int32_t kinds;
    int32_t *kind;     /* [core->count] */
    int32_t *position; /* [core->count] in the order that the search started from */
    learned current, trial, best;
    int32_t *order, *spare; /* [core->count] scratch */
    uint64_t *key;          /* [core->count] scratch */
    bool *from_top;         /* [core->count] scratch */
    uint64_t random;
} search;

/* The blocks of `core` in [low, high] of its time, as a problem of their own. */
typedef struct window {
    planner_core core;
    int32_t *outer; /* [core.count] index into the blocks of the whole */
} window;

/* xorshift64*, Vigna 2016; below `limit` */
static int32_t draw(search *s, int64_t limit)
{
    s->random ^= s->random >> 12;
    s->random ^= s->random << 25;
    s->random ^= s->random >> 27;
    return (int32_t)(((s->random * 2685821657736338717u) >> 33) % (uint64_t)limit);
}

static void learned_open(learned *l, int32_t kinds)
{
    l->shift = must_calloc((unsigned long)kinds, sizeof *l->shift);
    l->top = must_calloc((unsigned long)kinds, sizeof *l->top);
}

static void learned_copy(learned *to, const learned *from, int32_t kinds)
{
    memcpy(to->shift, from->shift, (size_t)kinds * sizeof *to->shift);
    memcpy(to->top, from->top, (size_t)kinds * sizeof *to->top);
    to->ceiling = from->ceiling;
}

static void learned_close(learned *l)
{
    free(l->shift);
    free(l->top);
}

static int duration_step(const planner_core *core, int32_t b)
{
    return planner_order_half_octave(core->last[b] - core->first[b] + 1);
}

static void name_kinds(search *s)
{
    const planner_core *core = s->core;
    for (int32_t b = 0; b < core->count; b++) {
        s->order[b] = b;
        s->key[b] = (uint64_t)duration_step(core, b);
    }
    planner_core_sort(s->order, s->spare, core->count, s->key);
    for (int32_t b = 0; b < core->count; b++)
        s->key[b] = (uint64_t)core->bytes[b];
    planner_core_sort(s->order, s->spare, core->count, s->key);
    for (int32_t i = 0; i < core->count; i++) {
        int32_t b = s->order[i], before = i ? s->order[i - 1] : b;
        if (i && (core->bytes[b] != core->bytes[before] || duration_step(core, b) != duration_step(core, before)))
            s->kinds++;
        s->kind[b] = s->kinds;
    }
    s->kinds++;
}

static void search_open(search *s, planner_core *core, const int32_t *order)
{
    unsigned long n = (unsigned long)core->count;
    *s = (search){.core = core, .random = 88172645463325252u};
    s->kind = must_alloc(n * sizeof *s->kind);
    s->order = must_alloc(n * sizeof *s->order);
    s->spare = must_alloc(n * sizeof *s->spare);
    s->key = must_alloc(n * sizeof *s->key);
    s->from_top = must_alloc(n * sizeof *s->from_top);
    name_kinds(s);
    learned_open(&s->current, s->kinds);
    learned_open(&s->trial, s->kinds);
    learned_open(&s->best, s->kinds);
    s->position = must_alloc(n * sizeof *s->position);
    for (int32_t i = 0; i < core->count; i++)
        s->position[order[i]] = i;
    s->best.ceiling = core->target;
}

static void search_close(search *s)
{
    learned_close(&s->best);
    learned_close(&s->trial);
    learned_close(&s->current);
    free(s->from_top);
    free(s->key);
    free(s->spare);
    free(s->order);
    free(s->position);
    free(s->kind);
}

static int32_t count_alive(const planner_core *core, int32_t low, int32_t high)
{
    int32_t alive = 0;
    for (int32_t b = 0; b < core->count; b++)
        alive += core->first[b] <= high && core->last[b] >= low;
    return alive;
}

/* The block whose end makes the best arena as large as it is. */
static int32_t highest_block(const planner_core *core, const int64_t *offset)
{
    int32_t highest = 0;
    for (int32_t b = 1; b < core->count; b++)
        if (offset[b] + core->bytes[b] > offset[highest] + core->bytes[highest])
            highest = b;
    return highest;
}

static void window_open(window *w, const planner_core *core)
{
    int32_t worst = highest_block(core, core->best), center = core->first[worst];
    for (int32_t t = core->first[worst]; t <= core->last[worst]; t++)
        center = core->live[t] > core->live[center] ? t : center;
    int32_t low = 0, high = core->times - 1;
    for (int32_t reach = core->times; reach > 0 && count_alive(core, low, high) > WINDOW_BLOCKS; reach /= 2) {
        low = center > reach ? center - reach : 0;
        high = center < core->times - 1 - reach ? center + reach : core->times - 1;
    }
    planner_block *inside = must_alloc((unsigned long)core->count * sizeof *inside);
    int32_t *index = must_alloc((unsigned long)core->count * sizeof *index), count = 0;
    for (int32_t b = 0; b < core->count; b++) {
        if (core->first[b] > high || core->last[b] < low)
            continue;
        index[count] = b;
        inside[count++] = (planner_block){.bytes = core->bytes[b],
                                          .first = core->first[b] > low ? core->first[b] : low,
                                          .last = core->last[b] < high ? core->last[b] : high};
    }
    planner_core_open(&w->core, inside, count, 1);
    w->core.target = core->target;
    w->outer = must_alloc((unsigned long)count * sizeof *w->outer);
    for (int32_t i = 0; i < count; i++)
        w->outer[i] = index[w->core.source[i]];
    free(index);
    free(inside);
}

static void window_close(window *w)
{
    planner_core_close(&w->core);
    free(w->outer);
}

/* s->order and s->from_top of the blocks outer[0..count) (all if NULL), numbered 0..count-1 */
static void make_order(search *s, const learned *l, const int32_t *outer, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t b = outer ? outer[i] : i;
        s->order[i] = i;
        s->key[i] = (uint64_t)(s->position[b] + l->shift[s->kind[b]] + ((int64_t)1 << 60));
        s->from_top[i] = l->top[s->kind[b]];
    }
    planner_core_sort(s->order, s->spare, count, s->key);
}

/* A block of the window that ends above the target: one of the first few found from a random place. */
static int32_t culprit(search *s, const window *w)
{
    int32_t from = draw(s, w->core.count);
    for (int32_t i = 0; i < w->core.count; i++) {
        int32_t b = (from + i) % w->core.count;
        if (w->core.best[b] + w->core.bytes[b] > w->core.target)
            return w->outer[b];
    }
    return w->outer[from];
}

/* s->trial := s->current, disturbed */
static void disturb(search *s, const window *w)
{
    learned *l = &s->trial;
    learned_copy(l, &s->current, s->kinds);
    if (draw(s, 4) == 0)
        l->ceiling =
            s->core->target + ((draw(s, 1024) * (s->core->best_arena - s->core->target) / 1024) & -s->core->alignment);
    int changes = 1 + draw(s, 3);
    for (int i = 0; i < changes; i++) {
        bool blame = draw(s, 2) == 0;
        int32_t b = blame ? culprit(s, w) : w->outer[draw(s, w->core.count)], kind = s->kind[b];
        int64_t reach = 1 + draw(s, (s->core->count >> draw(s, 6)) + 1);
        if (draw(s, 8) == 0)
            l->top[kind] = !l->top[kind];
        else
            l->shift[kind] += blame || draw(s, 2) ? -reach : reach;
    }
}

/* s->best := what made the window smallest within `tries`. A try that is worse by less than a shrinking margin is
 * kept. */
static void learn(search *s, window *w, int tries)
{
    int64_t best = INT64_MAX, current = INT64_MAX;
    learned_copy(&s->current, &s->best, s->kinds);
    for (int i = 0; i < tries && s->core->effort_left > 0 && best > w->core.target; i++) {
        if (i)
            disturb(s, w);
        else
            learned_copy(&s->trial, &s->best, s->kinds);
        make_order(s, &s->trial, w->outer, w->core.count);
        int64_t margin = (int64_t)((double)w->core.bound * MARGIN * (tries - i) / tries);
        int64_t limit = current == INT64_MAX ? INT64_MAX : current + margin + 1, effort = w->core.effort_left;
        w->core.ceiling = s->trial.ceiling;
        int64_t arena = planner_core_place(&w->core, s->order, s->from_top, w->core.count, limit);
        s->core->effort_left -= effort - w->core.effort_left;
        s->core->tries++;
        if (arena == INT64_MAX)
            continue;
        int64_t *swap = w->core.best; /* the culprits of the next try */
        w->core.best = w->core.offset;
        w->core.offset = swap;
        current = arena;
        learned_copy(&s->current, &s->trial, s->kinds);
        if (arena <= best) {
            best = arena;
            learned_copy(&s->best, &s->trial, s->kinds);
        }
    }
}

void planner_search(planner_core *core, int32_t *order)
{
    search s;
    search_open(&s, core, order);
    for (bool stop = false; !stop && core->effort_left > 0;) {
        window w;
        window_open(&w, core);
        learn(&s, &w, TRIES_A_WINDOW);
        window_close(&w);
        make_order(&s, &s.best, NULL, core->count);
        stop = planner_core_try(core, s.order, s.from_top, s.best.ceiling);
    }
    search_close(&s);
}
