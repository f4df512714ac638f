/* One loop makes every schedule that is not folded: warm up with some forwards, alternate forward and backward, drain.
 * The kinds differ in how many forwards come first and in how many weight gradients may wait: one row of the table
 * each. Folded ones repeat a block of one micro-batch's actions. */
#include "parallel/schedule/schedule_make.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"

/* ---- weaving gradients of weights into an order ---- */

/* Plays an order event by event: the stage with the earliest next action takes it. */

/* Relative difference of sums of the same numbers in another order. */
static const double SAME = 1e-9;

typedef struct stage_state {
    int next;                 /* index in the order */
    int weights, weights_due; /* gradients of weights: done, and computable */
    double free_at, held, first;
    double begins; /* the action decided on; INFINITY: none yet */
    bool takes_weight;
} stage_state;

typedef struct loom {
    const schedule *order;
    const weave_terms *t;
    schedule *out;
    stage_state *stages;
    double *forward, *cotangent; /* [stages * chunks][microbatches]: time of the result; INFINITY: not yet */
    int *counts;                 /* [stages * chunks][2]: forwards and input gradients taken */
    action *due; /* [stages][chunks * microbatches]: input gradients in the order in which they were done */
} loom;

static double *made_at(const loom *w, bool forward, int global, int microbatch)
{
    return &(forward ? w->forward : w->cotangent)[(long)global * w->order->microbatches + microbatch];
}

static action *due_of(const loom *w, int stage)
{
    return &w->due[(long)stage * w->order->chunks * w->order->microbatches];
}

/* Returns the time when the inputs of a forward or input gradient are ready; INFINITY: not known. */
static double ready_at(const loom *w, int stage, bool forward, int global, int microbatch)
{
    int last = w->order->stages * w->order->chunks - 1, from = forward ? global - 1 : global + 1;
    if (!forward && isinf(*made_at(w, true, global, microbatch)))
        return INFINITY;
    if (from < 0 || from > last)
        return 0;
    return *made_at(w, forward, from, microbatch) + (schedule_stage_of(w->order, from) == stage ? 0 : w->t->hop);
}

static void decide(loom *w, int stage)
{
    stage_state *x = &w->stages[stage];
    double ready = INFINITY, weight = 0;
    bool blocked = false;
    if (x->next < w->order->counts[stage]) {
        action a = w->order->actions[stage][x->next];
        bool forward = a.kind == ACTION_FORWARD;
        int g = schedule_global_chunk(w->order, stage, a.chunk);
        ready = ready_at(w, stage, forward, g, w->counts[2 * g + !forward]);
        blocked = forward && x->held + w->t->holds[g] > w->t->limit[stage] * (1 + SAME);
    }
    bool can = x->weights < x->weights_due;
    if (can) {
        action a = due_of(w, stage)[x->weights];
        weight = w->t->costs[schedule_global_chunk(w->order, stage, a.chunk)].weight;
    }
    x->takes_weight = can && (blocked || ready >= x->free_at + weight - w->t->patience);
    if (x->takes_weight)
        x->begins = x->free_at;
    else
        x->begins = blocked ? INFINITY : fmax(ready, x->free_at);
}

static void append_woven(loom *w, int stage, action a, double length, double holds)
{
    stage_state *x = &w->stages[stage];
    x->first = w->out->counts[stage] ? x->first : x->begins;
    w->out->actions[stage][w->out->counts[stage]++] = a;
    x->free_at = x->begins + length;
    x->held += holds;
}

static void take_weight(loom *w, int stage)
{
    action a = due_of(w, stage)[w->stages[stage].weights++];
    int g = schedule_global_chunk(w->order, stage, a.chunk);
    a.kind = ACTION_BACKWARD_WEIGHT;
    append_woven(w, stage, a, w->t->costs[g].weight, -w->t->defers[g]);
}

/* Returns the global chunk that may wait for the result, or -1. */
static int take_next(loom *w, int stage)
{
    stage_state *x = &w->stages[stage];
    action a = w->order->actions[stage][x->next++];
    bool forward = a.kind == ACTION_FORWARD;
    int g = schedule_global_chunk(w->order, stage, a.chunk), to = forward ? g + 1 : g - 1;
    a.microbatch = w->counts[2 * g + !forward]++;
    if (forward) {
        append_woven(w, stage, a, w->t->costs[g].forward, w->t->holds[g]);
    } else {
        append_woven(w, stage, a, w->t->costs[g].input, w->t->defers[g] - w->t->holds[g]);
        due_of(w, stage)[x->weights_due++] = a;
    }
    *made_at(w, forward, g, a.microbatch) = x->free_at;
    return to < w->order->stages * w->order->chunks ? to : -1;
}

static void open(loom *w, const schedule *order)
{
    long pairs = (long)order->stages * order->chunks * order->microbatches;
    w->stages = must_calloc((unsigned long)order->stages, sizeof *w->stages);
    w->counts = must_calloc(2 * (unsigned long)order->stages * (unsigned long)order->chunks, sizeof *w->counts);
    w->forward = must_alloc((unsigned long)pairs * sizeof(double));
    w->cotangent = must_alloc((unsigned long)pairs * sizeof(double));
    w->due = must_alloc((unsigned long)pairs * sizeof *w->due);
    for (long i = 0; i < pairs; i++)
        w->forward[i] = w->cotangent[i] = INFINITY;
    for (int stage = 0; stage < order->stages; stage++)
        w->out->counts[stage] = 0;
}

bool weave(schedule *out, double *length, double *span, const schedule *order, const weave_terms *terms)
{
    loom w = {.order = order, .t = terms, .out = out};
    long all = 3L * order->stages * order->chunks * order->microbatches, done = 0;
    open(&w, order);
    for (int stage = 0; stage < order->stages; stage++)
        decide(&w, stage);
    for (; done < all; done++) {
        int stage = 0, to = -1;
        for (int i = 1; i < order->stages; i++) /* the earliest */
            if (w.stages[i].begins < w.stages[stage].begins)
                stage = i;
        if (isinf(w.stages[stage].begins))
            break;
        if (w.stages[stage].takes_weight)
            take_weight(&w, stage);
        else
            to = take_next(&w, stage);
        decide(&w, stage);
        if (to >= 0)
            decide(&w, schedule_stage_of(order, to));
    }
    *length = *span = 0;
    for (int stage = 0; stage < order->stages; stage++) {
        *length = fmax(*length, w.stages[stage].free_at);
        *span = fmax(*span, w.stages[stage].free_at - w.stages[stage].first);
    }
    free(w.stages);
    free(w.counts);
    free(w.forward);
    free(w.cotangent);
    free(w.due);
    return done == all;
}

enum { CHUNKS_MOST = 1024, ACTIONS_MOST = 1 << 28 };

typedef struct shape {
    int stages, chunks, microbatches;
    int rounds; /* passes of micro-batches through all chunks */
} shape;

/* Every forward comes before the first backward. */
static int warmup_all(const shape *s, int stage)
{
    (void)stage;
    return s->chunks * s->microbatches;
}

/* One chunk: the first backward comes when the micro-batch has gone down to the last stage and back. Several: the
 * forwards of a round's chunks but the last must all have begun before its first backward, and the path down and back
 * is counted twice because the stages below are themselves busy with alternation (2104.04473, section 2.2). */
static int warmup_alternating(const shape *s, int stage)
{
    int below = s->stages - 1 - stage;
    int longest = (s->microbatches + s->rounds - 1) / s->rounds;
    return s->chunks == 1 ? below : (s->chunks - 1) * longest + 2 * below;
}

/* One more forward for each stage below (2401.10241, section 2.2). */
static int warmup_longer(const shape *s, int stage)
{
    return warmup_alternating(s, stage) + s->stages - 1 - stage;
}

/* The micro-batches of a stage that fit into a folded kind's memory. */
static int hold_half(int stages)
{
    return (stages + 2) / 2;
}

static int hold_third(int stages)
{
    return (stages + 4) / 3;
}

enum { BLOCKS = 4 };

static const struct {
    int (*warmup)(const shape *s, int stage); /* forwards before the first alternation; NULL: folded */
    bool one_round;                           /* all micro-batches through a chunk before the next chunk */
    int deferred;                             /* stage i defers i times as many weight gradients */
    int (*holds)(int stages);                 /* a folded kind's, made of repeated blocks */
    schedule_block blocks[BLOCKS];            /* candidates to try */
} kinds[SCHEDULE_KINDS] = {
    [SCHEDULE_GPIPE] = {.warmup = warmup_all, .one_round = true},
    [SCHEDULE_1F1B] = {.warmup = warmup_alternating},
    [SCHEDULE_INTERLEAVED] = {.warmup = warmup_alternating},
    [SCHEDULE_ZB_H1] = {.warmup = warmup_alternating, .deferred = 1},
    [SCHEDULE_ZB_H2] = {.warmup = warmup_longer, .deferred = 2},
    /* turns that keep two actions from meeting on a stage, by the number of stages; the last are better in short
     * pipelines */
    [SCHEDULE_V_HALF] = {.holds = hold_half,
                         .blocks = {{{1, 2, 1, 2}, {1, 1, 2}},
                                    {{1, 2, 1, 2}, {4, 1, 5}},
                                    {{1, 2, 2, 1}, {4, 1, 4}},
                                    {{1, 2, 2, 1}, {4, 3, 4}}}},
    [SCHEDULE_V_MIN] = {.holds = hold_third,
                        .blocks = {{{1, 1, 1, 1}, {1, 1, 1}},
                                   {{1, 1, 1, 1}, {3, 1, 3}},
                                   {{1, 1, 1, 1}, {5, 1, 1}},
                                   {{1, 1, 1, 1}, {3, 1, 1}}}},
};

static shape shape_of(schedule_kind kind, int stages, int chunks, int microbatches)
{
    int rounds = kinds[kind].one_round || microbatches < stages ? 1 : microbatches / stages;
    return (shape){stages, chunks, microbatches, rounds};
}

/* The first micro-batch of a round: ceil(round microbatches / rounds). */
static int round_start(const shape *s, int round)
{
    return (int)(((long)round * s->microbatches + s->rounds - 1) / s->rounds);
}

/* The order in which a stage goes through its (chunk, micro-batch) pairs: round by round, within a round chunk by chunk
 * (ascending forward, descending backward), within a chunk micro-batch by micro-batch. */
static void fill_order(action *out, const shape *s, action_kind kind)
{
    for (int round = 0; round < s->rounds; round++)
        for (int c = 0; c < s->chunks; c++)
            for (int m = round_start(s, round); m < round_start(s, round + 1); m++) {
                int chunk = kind == ACTION_FORWARD ? c : s->chunks - 1 - c;
                *out++ = (action){(uint8_t)kind, (int16_t)chunk, m};
            }
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static void put_action(schedule *s, int stage, action_kind kind, int chunk, int microbatch)
{
    s->actions[stage][s->counts[stage]++] = (action){(uint8_t)kind, (int16_t)chunk, microbatch};
}

/* ---- not folded ------------------------------------------------------------------------------------------------- */

static void fill_stage(schedule *out, int stage, const action *forward, const action *backward, int warmup,
                       int deferred)
{
    int total = out->chunks * out->microbatches, weights = 0;
    bool split = deferred >= 0;
    warmup = least(total, warmup);
    for (int k = 0; k < warmup; k++)
        put_action(out, stage, ACTION_FORWARD, forward[k].chunk, forward[k].microbatch);
    for (int k = 0; k < total; k++) {
        if (warmup + k < total)
            put_action(out, stage, ACTION_FORWARD, forward[warmup + k].chunk, forward[warmup + k].microbatch);
        put_action(out, stage, (action_kind)backward[k].kind, backward[k].chunk, backward[k].microbatch);
        /* weight gradients follow in the order of the input gradients, so ascending within a chunk */
        for (; split && weights < total && (k + 1 == total || k + 1 - weights > deferred); weights++)
            put_action(out, stage, ACTION_BACKWARD_WEIGHT, backward[weights].chunk, backward[weights].microbatch);
    }
}

static void make_in_rounds(schedule *out, schedule_kind kind)
{
    shape s = shape_of(kind, out->stages, out->chunks, out->microbatches);
    bool split = schedule_kind_splits(kind);
    unsigned long total = (unsigned long)out->chunks * (unsigned long)out->microbatches;
    AUTO_FREE action *forward = must_alloc(sizeof *forward * total), *backward = must_alloc(sizeof *backward * total);
    fill_order(forward, &s, ACTION_FORWARD);
    fill_order(backward, &s, split ? ACTION_BACKWARD_INPUT : ACTION_BACKWARD);
    for (int stage = 0; stage < out->stages; stage++)
        fill_stage(out, stage, forward, backward, kinds[kind].warmup(&s, stage),
                   split ? stage * kinds[kind].deferred : -1);
}

void schedule_make_warmed(schedule *out, const int *warmup)
{
    shape s = shape_of(SCHEDULE_1F1B, out->stages, out->chunks, out->microbatches);
    int total = out->chunks * out->microbatches;
    AUTO_FREE action *forward = must_alloc(sizeof *forward * (unsigned long)total);
    AUTO_FREE action *backward = must_alloc(sizeof *backward * (unsigned long)total);
    fill_order(forward, &s, ACTION_FORWARD);
    fill_order(backward, &s, ACTION_BACKWARD_INPUT);
    for (int stage = 0; stage < out->stages; stage++) {
        int first = least(total, warmup[stage]);
        out->counts[stage] = 0;
        for (int k = 0; k < total + first; k++) {
            if (k < total)
                put_action(out, stage, ACTION_FORWARD, forward[k].chunk, forward[k].microbatch);
            if (k >= first)
                put_action(out, stage, ACTION_BACKWARD_INPUT, backward[k - first].chunk,
                           backward[k - first].microbatch);
        }
    }
}

/* ---- folded ------------------------------------------------------------------------------------------------------ */

typedef struct zb_v_stage {
    schedule *out;
    int stage, microbatches;
    int done[ACTION_KINDS][2];
} zb_v_stage;

/* Micro-batches past the last take their place in the pattern, and are left out. */
static void next(zb_v_stage *x, action_kind kind, int chunk)
{
    int microbatch = x->done[kind][chunk]++;
    if (microbatch < x->out->microbatches)
        put_action(x->out, x->stage, kind, chunk, microbatch);
}

static void next_backward(zb_v_stage *x, int chunk)
{
    next(x, ACTION_BACKWARD_INPUT, chunk);
    next(x, ACTION_BACKWARD_WEIGHT, chunk);
}

/* 2401.10241, section 6, for stage i of p: fill the memory with the first chunk's forwards, ever more of them followed
 * by one of the second as those come back; then F I W of either chunk in turns; at the end the inputs' gradients first,
 * because others wait for them. */
static void fill_zb_v(schedule *out, int stage)
{
    int p = out->stages, i = stage;
    zb_v_stage x = {.out = out, .stage = stage, .microbatches = out->microbatches > 2 * p ? out->microbatches : 2 * p};
    const int *forwards = x.done[ACTION_FORWARD], *inputs = x.done[ACTION_BACKWARD_INPUT],
              *weights = x.done[ACTION_BACKWARD_WEIGHT];
    for (int k = 0; k < 2 * (p - i) - 1; k++)
        next(&x, ACTION_FORWARD, 0);
    for (int k = 0; k < i; k++) {
        next(&x, ACTION_FORWARD, 1);
        next(&x, ACTION_FORWARD, 0);
    }
    for (int k = 0; k < p - i; k++) {
        next(&x, ACTION_FORWARD, 1);
        next_backward(&x, 1);
    }
    while (forwards[1] < x.microbatches) {
        if (forwards[0] < x.microbatches)
            next(&x, ACTION_FORWARD, 0);
        next_backward(&x, 0);
        next(&x, ACTION_FORWARD, 1);
        next_backward(&x, 1);
    }
    for (int k = 0; k < i; k++) {
        next(&x, ACTION_BACKWARD_INPUT, 0);
        next(&x, ACTION_BACKWARD_INPUT, 1);
    }
    for (int k = 0; k < p - i; k++)
        next_backward(&x, 0);
    for (int chunk = 1; chunk >= 0; chunk--)
        while (weights[chunk] < inputs[chunk])
            next(&x, ACTION_BACKWARD_WEIGHT, chunk);
}

enum { PATHS = 4 }; /* a micro-batch's over the stages: forward and back, input gradients forward and back */
static const struct {
    action_kind kind;
    int chunk;
} path_of[PATHS] = {{ACTION_FORWARD, 0}, {ACTION_FORWARD, 1}, {ACTION_BACKWARD_INPUT, 1}, {ACTION_BACKWARD_INPUT, 0}};

/* Gives the times of micro-batch 0 at `stage`, on each path; false if two are at the same time of the period. */
static bool times_at(int at[PATHS], schedule_block b, int stages, int stage)
{
    unsigned taken = 0;
    int begin = 0;
    for (int k = 0; k < PATHS; k++) {
        at[k] = begin + b.step[k] * (k % 2 ? stages - 1 - stage : stage);
        begin += b.step[k] * (stages - 1) + (k + 1 < PATHS ? b.turn[k] : 0);
        unsigned place = 1u << at[k] % SCHEDULE_MAKE_PERIOD;
        if (taken & place)
            return false;
        taken |= place;
    }
    return true;
}

static void merge_paths(schedule *out, int stage, const int at[PATHS])
{
    int done[PATHS] = {0}, total = PATHS * out->microbatches;
    out->counts[stage] = 0;
    for (int i = 0; i < total; i++) {
        int first = -1;
        for (int k = 0; k < PATHS; k++)
            if (done[k] < out->microbatches &&
                (first < 0 || at[k] + SCHEDULE_MAKE_PERIOD * done[k] < at[first] + SCHEDULE_MAKE_PERIOD * done[first]))
                first = k;
        put_action(out, stage, path_of[first].kind, path_of[first].chunk, done[first]++);
    }
}

bool schedule_make_repeated(schedule *out, schedule_block block)
{
    int at[PATHS];
    for (int stage = 0; stage < out->stages; stage++) {
        if (!times_at(at, block, out->stages, stage))
            return false;
        merge_paths(out, stage, at);
    }
    return true;
}

/* Makes the shortest of the kind's blocks, all actions a unit long, with the weights' gradients where there is room. */
static void make_of_blocks(schedule *out, schedule_kind kind)
{
    unsigned long n = 2 * (unsigned long)out->stages;
    int actions = 3 * out->chunks * out->microbatches;
    AUTO_FREE simulate_cost *costs = must_alloc(n * sizeof *costs);
    AUTO_FREE double *holds = must_alloc(n * sizeof *holds), *limit = must_alloc(n * sizeof *limit);
    double best = -1;
    for (unsigned long i = 0; i < n; i++) {
        costs[i] = (simulate_cost){1, 1, 1};
        holds[i] = 1;
        limit[i] = 2 * kinds[kind].holds(out->stages);
    }
    weave_terms terms = {.costs = costs, .holds = holds, .defers = holds, .limit = limit};
    RELEASED_BY(schedule_free) schedule order = {0};
    RELEASED_BY(schedule_free) schedule woven = {0};
    schedule_alloc(&order, kind, schedule_map(out), out->microbatches, actions);
    schedule_alloc(&woven, kind, schedule_map(out), out->microbatches, actions);
    for (int i = 0; i < BLOCKS; i++) {
        double length, span;
        if (!schedule_make_repeated(&order, kinds[kind].blocks[i]) || !weave(&woven, &length, &span, &order, &terms) ||
            (best >= 0 && span >= best))
            continue;
        best = span;
        schedule kept = *out;
        *out = woven;
        woven = kept;
    }
    MUST(best >= 0, "%s: no block for %d stages", schedule_name(kind), out->stages);
}

/* ------------------------------------------------------------------------------------------------------------------ */

status schedule_make(schedule *out, schedule_kind kind, int stages, int chunks, int microbatches)
{
    bool folded = schedule_kind_folds(kind);
    MUST((int)kind >= 0 && kind < SCHEDULE_KINDS, "schedule kind %d", (int)kind);
    if (stages < 1 || stages > INT16_MAX || chunks < 1 || chunks > CHUNKS_MOST || microbatches < 1)
        return status_fail(
            STATUS_USAGE,
            "a pipeline of %d stages, %d virtual stages and %d micro-batches cannot be scheduled: each must "
            "be at least 1 (at most %d stages, %d virtual stages)",
            stages, chunks, microbatches, INT16_MAX, CHUNKS_MOST);
    if ((double)stages * chunks * microbatches * 3 > ACTIONS_MOST)
        return status_fail(STATUS_USAGE,
                           "a pipeline of %d stages, %d virtual stages and %d micro-batches has too many actions",
                           stages, chunks, microbatches);
    kind = schedule_kind_of(kind, chunks);
    int needed = schedule_kind_chunks(kind);
    if (needed && chunks != needed)
        return status_fail(STATUS_USAGE, "schedule %s with %d virtual stages: it needs %d", schedule_name(kind), chunks,
                           needed);
    int actions = chunks * microbatches * (schedule_kind_splits(kind) ? 3 : 2);
    schedule_alloc(out, kind, (chunk_map){stages, chunks, folded}, microbatches, actions);
    if (!folded)
        make_in_rounds(out, kind);
    else if (kinds[kind].holds)
        make_of_blocks(out, kind);
    for (int stage = 0; stage < stages; stage++) {
        if (folded && !kinds[kind].holds)
            fill_zb_v(out, stage);
        MUST(out->counts[stage] == actions, "%d actions, not %d", out->counts[stage], actions);
    }
    return STATUS_OK;
}
