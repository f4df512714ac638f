/* Event by event: the stage whose next action begins first takes it. What weave.h promises. */
#include "parallel/schedule/weave.h"

#include <math.h>
#include <stdlib.h>

#include "memory/log.h"

/* Sums of the same numbers in another order. */
static const double SAME = 1e-9;

typedef struct stage_state {
    int next;                 /* in the order */
    int weights, weights_due; /* gradients of weights: done, and how many could be */
    double free_at, held, first;
    double begins; /* the action decided on; INFINITY: none yet */
    bool takes_weight;
} stage_state;

typedef struct loom {
    const schedule *order;
    const weave_terms *t;
    schedule *out;
    stage_state *stages;
    double *forward, *cotangent; /* [stages * chunks][microbatches]: when made; INFINITY: not yet */
    int *counts;                 /* [stages * chunks][2]: forwards and input gradients taken */
    action *due; /* [stages][chunks * microbatches]: input gradients in the order in which they were done */
} loom;

static double *made(const loom *w, bool forward, int global, int microbatch)
{
    return &(forward ? w->forward : w->cotangent)[(long)global * w->order->microbatches + microbatch];
}

static action *due_of(const loom *w, int stage)
{
    return &w->due[(long)stage * w->order->chunks * w->order->microbatches];
}

/* When the inputs of a forward or input gradient are at hand; INFINITY: not known. */
static double ready_at(const loom *w, int stage, bool forward, int global, int microbatch)
{
    int last = w->order->stages * w->order->chunks - 1, from = forward ? global - 1 : global + 1;
    if (!forward && isinf(*made(w, true, global, microbatch)))
        return INFINITY;
    if (from < 0 || from > last)
        return 0;
    return *made(w, forward, from, microbatch) + (schedule_stage_of(w->order, from) == stage ? 0 : w->t->hop);
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

static void append(loom *w, int stage, action a, double length, double holds)
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
    append(w, stage, a, w->t->costs[g].weight, -w->t->defers[g]);
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
        append(w, stage, a, w->t->costs[g].forward, w->t->holds[g]);
    } else {
        append(w, stage, a, w->t->costs[g].input, w->t->defers[g] - w->t->holds[g]);
        due_of(w, stage)[x->weights_due++] = a;
    }
    *made(w, forward, g, a.microbatch) = x->free_at;
    return to < w->order->stages * w->order->chunks ? to : -1;
}

static int earliest(const loom *w)
{
    int best = 0;
    for (int i = 1; i < w->order->stages; i++)
        if (w->stages[i].begins < w->stages[best].begins)
            best = i;
    return best;
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
        int stage = earliest(&w), to = -1;
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
