
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/schedule_make.h"

/* Limits of the effort: actions played, and tries. */
enum { PLAYED_MOST = 30000000, TRIES_LEAST = 1000, TRIES_MOST = 100000 };
/* Number of orders that are improved, and the farthest that an action is moved. */
enum { KEPT = 4, MOVE_MOST = 4 };
/* Number of times to try for each step from stage to stage, and for each turn, of a repeated block. */
enum { STEPS = 3, TURNS = 6 };

/* Relative difference of equal times. */
static const double SAME = 1e-12;

/* Shares of a weight's gradient: how long a stage may wait rather than be late. */
static const double patiences[] = {0, 0.125, 0.25, 0.5, 0.75, 0.875, 1};
enum { PATIENCES = sizeof patiences / sizeof *patiences };

/* An order of forwards and input gradients, and its score. */
typedef struct candidate {
    schedule order;
    double patience, measure, other; /* minimises `measure`; `other`, of length and span, breaks ties */
} candidate;

typedef struct search {
    const schedule_search_terms *t;
    schedule best, woven;
    double best_measure, best_other;
    candidate kept[KEPT]; /* ascending */
    int kept_count, tries;
    double unit; /* mean time of a weight's gradient */
} search;

void schedule_search_peaks(double *peaks, const schedule *s, const double *holds, const double *defers)
{
    for (int stage = 0; stage < s->stages; stage++) {
        double held = 0;
        peaks[stage] = 0;
        for (int i = 0; i < s->counts[stage]; i++) {
            action a = s->actions[stage][i];
            int g = schedule_global_chunk(s, stage, a.chunk);
            const double change[ACTION_KINDS] = {[ACTION_FORWARD] = holds[g],
                                                 [ACTION_BACKWARD] = -holds[g],
                                                 [ACTION_BACKWARD_INPUT] = defers[g] - holds[g],
                                                 [ACTION_BACKWARD_WEIGHT] = -defers[g]};
            held += change[a.kind];
            peaks[stage] = held > peaks[stage] ? held : peaks[stage];
        }
    }
}

static bool fits_memory(const search *x, const schedule *s)
{
    AUTO_FREE double *peaks = must_alloc(sizeof *peaks * (unsigned long)s->stages);
    const double *limit = x->t->limit[s->folded];
    bool fit = true;
    schedule_search_peaks(peaks, s, x->t->holds, x->t->defers);
    for (int stage = 0; stage < s->stages; stage++)
        fit = fit && peaks[stage] <= limit[stage] * (1 + 1e-9);
    return fit;
}

static bool is_shorter(double measure, double other, double than, double than_other)
{
    double same = SAME * fabs(than);
    return measure < than - same || (measure <= than + same && other < than_other - SAME * fabs(than_other));
}

static int actions_of(const search *x)
{
    return 3 * x->t->chunks * x->t->microbatches;
}

static void copy_lists(schedule *out, const schedule *s)
{
    out->folded = s->folded;
    out->kind = s->kind;
    for (int stage = 0; stage < s->stages; stage++) {
        memcpy(out->actions[stage], s->actions[stage], sizeof **s->actions * (unsigned long)s->counts[stage]);
        out->counts[stage] = s->counts[stage];
    }
}

static void alloc_schedule(schedule *out, const search *x, bool folded)
{
    schedule_alloc(out, SCHEDULE_AUTO, (chunk_map){x->t->stages, x->t->chunks, folded}, x->t->microbatches,
                   actions_of(x));
}

static void offer_schedule(search *x, const schedule *s, double length, double span)
{
    double measure = x->t->barrier ? length : span, other = x->t->barrier ? span : length;
    if (x->best_measure >= 0 && !is_shorter(measure, other, x->best_measure, x->best_other))
        return;
    x->best_measure = measure;
    x->best_other = other;
    copy_lists(&x->best, s);
}

/* Weaves the candidate's order and offers the result; false if it does not work. */
static bool try_order(search *x, candidate *c)
{
    double length, span;
    weave_terms terms = {.costs = x->t->costs,
                         .hop = x->t->hop,
                         .holds = x->t->holds,
                         .defers = x->t->defers,
                         .limit = x->t->limit[c->order.folded],
                         .patience = c->patience};
    x->tries--;
    x->woven.folded = c->order.folded;
    if (!weave(&x->woven, &length, &span, &c->order, &terms))
        return false;
    c->measure = x->t->barrier ? length : span;
    c->other = x->t->barrier ? span : length;
    offer_schedule(x, &x->woven, length, span);
    return true;
}

/* Keeps a candidate, if it is among the best so far, to improve it later. */
static void keep_best(search *x, const candidate *c)
{
    int at = x->kept_count;
    while (at > 0 && is_shorter(c->measure, c->other, x->kept[at - 1].measure, x->kept[at - 1].other))
        at--;
    if (at == KEPT || (at > 0 && x->kept[at - 1].measure == c->measure && x->kept[at - 1].other == c->other))
        return;
    if (x->kept_count == KEPT)
        schedule_free(&x->kept[--x->kept_count].order);
    memmove(&x->kept[at + 1], &x->kept[at], sizeof *x->kept * (unsigned long)(x->kept_count - at));
    x->kept_count++;
    x->kept[at] = *c;
    alloc_schedule(&x->kept[at].order, x, c->order.folded);
    copy_lists(&x->kept[at].order, &c->order);
}

static void try_patiences(search *x, candidate *c)
{
    for (int i = 0; i < PATIENCES; i++) {
        c->patience = patiences[i] * x->unit;
        if (try_order(x, c))
            keep_best(x, c);
    }
}

/* Takes the forwards and input gradients of a named schedule. */
static void order_of(schedule *out, const schedule *s)
{
    out->folded = s->folded;
    for (int stage = 0; stage < s->stages; stage++) {
        out->counts[stage] = 0;
        for (int i = 0; i < s->counts[stage]; i++) {
            action a = s->actions[stage][i];
            if (a.kind == ACTION_BACKWARD_WEIGHT)
                continue;
            a.kind = a.kind == ACTION_FORWARD ? ACTION_FORWARD : ACTION_BACKWARD_INPUT;
            out->actions[stage][out->counts[stage]++] = a;
        }
    }
}

static status try_named(search *x, candidate *c, schedule_kind kind)
{
    RELEASED_BY(schedule_free) schedule s = {0};
    RELEASED_BY(simulate_free) simulation sim = {0};
    TRY(schedule_make(&s, kind, x->t->stages, x->t->chunks, x->t->microbatches));
    if (fits_memory(x, &s)) {
        TRY(simulate_run(&sim, &s, x->t->costs, x->t->hop, 0));
        offer_schedule(x, &s, sim.length, sim.span);
    }
    order_of(&c->order, &s);
    try_patiences(x, c);
    return STATUS_OK;
}

static status try_all_named(search *x, candidate *c)
{
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        int needed = schedule_kind_chunks((schedule_kind)kind);
        if (x->t->limit[schedule_kind_folds((schedule_kind)kind)] && (!needed || needed == x->t->chunks))
            TRY(try_named(x, c, (schedule_kind)kind));
    }
    return STATUS_OK;
}

/* The number of forwards that fit into a stage's memory. */
static int forwards_that_fit(const schedule_search_terms *t, int stage)
{
    double holds = 0;
    for (int k = 0; k < t->chunks; k++)
        holds += t->holds[k * t->stages + stage] / t->chunks;
    double fit = holds > 0 ? floor(t->limit[0][stage] / holds * (1 + 1e-9)) : INFINITY;
    return fit < t->chunks * t->microbatches ? (int)fit : t->chunks * t->microbatches;
}

/* Tries variants of 1F1B with `slope` more forwards at the beginning for each stage below, and with several chunks the
 * rounds'. */
static void try_warmup(search *x, candidate *c, int *warmup, double slope)
{
    const schedule_search_terms *t = x->t;
    enum { STARTS = 3 };
    for (int start = 0; start < STARTS && x->tries > 0; start++) {
        for (int stage = 0; stage < t->stages; stage++) {
            int most = forwards_that_fit(t, stage) - 1; /* one more comes before the first input gradient */
            int wish = (t->chunks - 1) * t->stages + (int)((t->stages - 1 - stage) * slope + 0.5 * start);
            warmup[stage] = wish < most ? wish : most > 0 ? most : 0;
        }
        schedule_make_warmed(&c->order, warmup);
        try_patiences(x, c);
    }
}

/* Tries about as many warm-up forwards as fill the time until the first input gradient comes back; half of the effort
 * at most. */
static void try_warmups(search *x, candidate *c)
{
    enum { AROUND = 24 };
    const schedule_search_terms *t = x->t;
    int all = t->stages * t->chunks, least = x->tries / 2;
    double forward = 0, input = 0;
    for (int g = 0; g < all; g++) {
        forward += t->costs[g].forward / all;
        input += t->costs[g].input / all;
    }
    double natural = forward > 0 ? (forward + input + 2 * t->hop) / forward : 2;
    AUTO_FREE int *warmup = must_alloc(sizeof *warmup * (unsigned long)t->stages);
    c->order.folded = false;
    for (int i = 0; i < AROUND && x->tries > least; i++) {
        int k = (i + 1) / 2; /* 0, 1, -1, 2, -2, ...: dense around the natural slope */
        try_warmup(x, c, warmup, natural * (1 + (i % 2 ? -1 : 1) * 0.002 * k * k));
    }
}

static void try_block(search *x, candidate *c, int steps, int turns)
{
    schedule_block b;
    for (int k = 0; k < 4; k++, steps /= STEPS)
        b.step[k] = 1 + steps % STEPS;
    for (int k = 0; k < 3; k++, turns /= TURNS)
        b.turn[k] = 1 + turns % TURNS;
    c->patience = 0;
    if (schedule_make_repeated(&c->order, b) && try_order(x, c))
        keep_best(x, c);
}

/* Tries the repeated blocks, in an order that spreads them; half of the effort at most. */
static void try_blocks(search *x, candidate *c)
{
    int least = x->tries / 2;
    c->order.folded = true;
    for (int steps = 0; steps < STEPS * STEPS * STEPS * STEPS; steps++)
        for (int turns = 0; turns < TURNS * TURNS * TURNS && x->tries > least; turns++)
            try_block(x, c, steps, turns);
}

/* Makes groups of `group` micro-batches, each forward through all chunks and back. */
static void make_groups(schedule *out, int group)
{
    for (int stage = 0; stage < out->stages; stage++) {
        out->counts[stage] = 0;
        for (int first = 0; first < out->microbatches; first += group) {
            int end = first + group < out->microbatches ? first + group : out->microbatches;
            for (int k = 0; k < 2 * out->chunks; k++) {
                bool back = k >= out->chunks;
                int chunk = back ? 2 * out->chunks - 1 - k : k;
                for (int m = first; m < end; m++)
                    out->actions[stage][out->counts[stage]++] =
                        (action){.kind = back ? ACTION_BACKWARD_INPUT : ACTION_FORWARD,
                                 .chunk = (int16_t)chunk,
                                 .microbatch = m};
            }
        }
    }
}

/* Tries the last resort: groups fit wherever one micro-batch does. */
static void try_groups(search *x, candidate *c)
{
    for (int folded = 0; folded < 2 && x->best_measure < 0; folded++) {
        if (!x->t->limit[folded] || (folded && x->t->chunks != 2))
            continue;
        c->order.folded = folded;
        for (int group = x->t->microbatches; group > 0 && x->best_measure < 0; group /= 2) {
            make_groups(&c->order, group);
            try_patiences(x, c);
        }
    }
}

/* ---- neighbours -------------------------------------------------------------------------------------------------- */

static uint32_t draw_below(uint32_t *state, uint32_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state % below;
}

/* Moves the action at `from` to `to`. */
static void move_action(action *list, int from, int to)
{
    action a = list[from];
    if (from < to)
        memmove(&list[from], &list[from + 1], sizeof *list * (unsigned long)(to - from));
    else
        memmove(&list[to + 1], &list[to], sizeof *list * (unsigned long)(from - to));
    list[to] = a;
}

/* Walks over orders, each no worse than the one before. */
static void improve_orders(search *x, candidate *c, int tries)
{
    uint32_t state = 2463534242u;
    candidate now = *c;
    while (tries-- > 0) {
        uint32_t stage = draw_below(&state, (uint32_t)x->t->stages);
        int count = c->order.counts[stage], by = 1 + (int)draw_below(&state, MOVE_MOST);
        int from = (int)draw_below(&state, (uint32_t)count), to = draw_below(&state, 2) ? from + by : from - by;
        if (to < 0 || to >= count)
            continue;
        double before = now.patience;
        if (draw_below(&state, 8) == 0)
            now.patience = x->unit * draw_below(&state, 33) / 32;
        move_action(c->order.actions[stage], from, to);
        if (try_order(x, &now) && now.measure <= c->measure * (1 + SAME)) {
            c->measure = now.measure;
        } else {
            move_action(c->order.actions[stage], to, from);
            now.patience = before;
        }
    }
}

status schedule_search(schedule *out, const schedule_search_terms *terms)
{
    search x = {.t = terms, .best_measure = -1};
    int all = terms->stages * terms->chunks;
    for (int g = 0; g < all; g++)
        x.unit += terms->costs[g].weight / all;
    int tries = (int)(PLAYED_MOST / ((double)actions_of(&x) * terms->stages));
    x.tries = tries < TRIES_LEAST ? TRIES_LEAST : tries > TRIES_MOST ? TRIES_MOST : tries;
    alloc_schedule(&x.best, &x, false);
    alloc_schedule(&x.woven, &x, false);
    candidate c = {0};
    alloc_schedule(&c.order, &x, false);
    status ok = try_all_named(&x, &c);
    if (ok == STATUS_OK && terms->limit[0])
        try_warmups(&x, &c);
    if (ok == STATUS_OK && terms->limit[1] && terms->chunks == 2)
        try_blocks(&x, &c);
    if (ok == STATUS_OK)
        try_groups(&x, &c);
    int each = x.kept_count ? x.tries / x.kept_count : 0;
    for (int i = 0; i < x.kept_count; i++) {
        if (ok == STATUS_OK)
            improve_orders(&x, &x.kept[i], each);
        schedule_free(&x.kept[i].order);
    }
    schedule_free(&x.woven);
    schedule_free(&c.order);
    if (ok == STATUS_OK && x.best_measure < 0)
        ok =
            status_fail(STATUS_USAGE, "no schedule of %d stages, %d virtual stages and %d micro-batches fits in memory",
                        terms->stages, terms->chunks, terms->microbatches);
    if (ok == STATUS_OK)
        *out = x.best;
    else
        schedule_free(&x.best);
    return ok;
}
