/* Plays the schedule event by event, as schedule_make.h promises: the stage with the earliest next action takes it. */
#include "parallel/schedule/schedule_make.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "parallel/schedule/exchange.h"

/* Limits of the embeddings made before the first stage needs them, and of waiting gradients of the vocabulary's
 * weights. */
enum { EMBEDDED_AHEAD = 2, WAITING = 2 };

/* Most micro-batches that a stage goes ahead, and the gain in length that one more must bring. */
enum { AHEAD_MOST = 3 };
static const double SMALLEST_GAIN = 0.01;

/* The vocabulary's actions, in order of priority. */
enum { HEAD_BACKWARD, HEAD_FORWARD, EMBEDDING_FORWARD, HEAD_WEIGHT, EMBEDDING_BACKWARD, OWN };

typedef struct stage_state {
    int next;      /* the first action of layers in the list that is not done */
    int forward;   /* the first forward that is not done */
    int ahead;     /* forwards done beyond `next` */
    int done[OWN]; /* micro-batches */
    double free_at, begins;
    action takes; /* decided on, at `begins`; INFINITY: none yet */
    bool changed; /* true if an input that it may take has been made since */
} stage_state;

typedef struct sharer {
    const schedule *of;
    schedule *out;
    const simulate_cost *costs;
    double hop;
    bool splits;
    int most_ahead;
    int begun; /* forwards of the first chunk */
    stage_state *stages;
    char **taken;                /* [stages][actions of `of`] */
    double *forward, *cotangent; /* [all chunks][microbatches]: time of the result; INFINITY: not yet */
} sharer;

static double *made(const sharer *x, bool forward, int global, int microbatch)
{
    return &(forward ? x->forward : x->cotangent)[(long)global * x->out->microbatches + microbatch];
}

/* Returns the time when the action's inputs are ready; INFINITY: not known. */
static double ready_at(const sharer *x, int stage, action a)
{
    int g = schedule_global_chunk(x->out, stage, a.chunk);
    if (a.kind == ACTION_BACKWARD_WEIGHT)
        return *made(x, false, g, a.microbatch);
    if (a.kind != ACTION_FORWARD && isinf(*made(x, true, g, a.microbatch)))
        return INFINITY;
    exchange_makers m = exchange_makers_of(x->out, stage, a);
    bool meets = exchange_meets(exchange_taken(x->out, stage, a));
    double latest = 0;
    for (int i = 0; i < m.count; i++) {
        double at = *made(x, m.forward, m.first + i, a.microbatch);
        latest = fmax(latest, at + (meets || schedule_stage_of(x->out, m.first) != stage ? x->hop : 0));
    }
    return latest;
}

static double length_of(const sharer *x, int stage, action a)
{
    const simulate_cost *c = &x->costs[schedule_global_chunk(x->out, stage, a.chunk)];
    switch ((action_kind)a.kind) {
    case ACTION_FORWARD:
        return c->forward;
    case ACTION_BACKWARD:
        return c->input + c->weight;
    case ACTION_BACKWARD_INPUT:
        return c->input;
    default:
        return c->weight;
    }
}

/* ---- a stage's choices for its next action ----------------------------------------------------------------------- */

/* Gives the stage's next vocabulary action of this sort; false: all are done, or it has none. */
static bool own_action(action *out, const sharer *x, int stage, int sort)
{
    const struct {
        action_kind kind;
        int chunk;
    } sorts[OWN] = {[HEAD_BACKWARD] = {x->splits ? ACTION_BACKWARD_INPUT : ACTION_BACKWARD, SCHEDULE_HEAD},
                    [HEAD_FORWARD] = {ACTION_FORWARD, SCHEDULE_HEAD},
                    [EMBEDDING_FORWARD] = {ACTION_FORWARD, SCHEDULE_EMBEDDING},
                    [HEAD_WEIGHT] = {ACTION_BACKWARD_WEIGHT, SCHEDULE_HEAD},
                    [EMBEDDING_BACKWARD] = {ACTION_BACKWARD, SCHEDULE_EMBEDDING}};
    int m = x->stages[stage].done[sort];
    *out = (action){(uint8_t)sorts[sort].kind, (int16_t)(x->of->chunks + sorts[sort].chunk), m};
    return m < x->of->microbatches && (sort != HEAD_WEIGHT || x->splits);
}

/* Counts the gradients of weights that could be computed now; no other action waits for them. */
static int waiting(const sharer *x, int stage, int sort, double now)
{
    action a;
    int count = 0;
    if (!own_action(&a, x, stage, sort))
        return 0;
    for (; a.microbatch < x->of->microbatches && ready_at(x, stage, a) <= now; a.microbatch++)
        count++;
    return count;
}

static void consider(stage_state *t, action a, double begins)
{
    if (begins < t->begins) {
        t->begins = begins;
        t->takes = a;
    }
}

/* Considers the list's next action, or while that waits a later forward. */
static void consider_layers(const sharer *x, int stage)
{
    stage_state *t = &x->stages[stage];
    const action *list = x->of->actions[stage];
    if (t->next == x->of->counts[stage])
        return;
    consider(t, list[t->next], fmax(t->free_at, ready_at(x, stage, list[t->next])));
    if (t->forward < x->of->counts[stage] && t->forward > t->next && t->ahead < x->most_ahead)
        consider(t, list[t->forward], fmax(t->free_at, ready_at(x, stage, list[t->forward])));
}

static void decide(sharer *x, int stage)
{
    stage_state *t = &x->stages[stage];
    action a;
    t->begins = INFINITY;
    for (int sort = HEAD_BACKWARD; sort <= EMBEDDING_FORWARD; sort++)
        if (own_action(&a, x, stage, sort) && (sort != EMBEDDING_FORWARD || a.microbatch < x->begun + EMBEDDED_AHEAD))
            consider(t, a, fmax(t->free_at, ready_at(x, stage, a)));
    for (int sort = HEAD_WEIGHT; sort < OWN; sort++)
        if (waiting(x, stage, sort, t->free_at) > WAITING && own_action(&a, x, stage, sort))
            consider(t, a, t->free_at);
    consider_layers(x, stage);
    /* weight gradients, which no action waits for, if they delay no other action */
    for (int sort = HEAD_WEIGHT; sort < OWN; sort++)
        if (own_action(&a, x, stage, sort) && t->begins >= t->free_at + length_of(x, stage, a)) {
            double ready = fmax(t->free_at, ready_at(x, stage, a));
            if (t->begins >= ready + length_of(x, stage, a))
                consider(t, a, ready);
        }
}

/* ---- doing it ---------------------------------------------------------------------------------------------------- */

/* Marks a layer action as taken: the next of the list, or the next forward ahead of it. */
static void mark_taken(sharer *x, int stage, action a)
{
    stage_state *t = &x->stages[stage];
    const action *list = x->of->actions[stage];
    int count = x->of->counts[stage];
    char *taken = x->taken[stage];
    const action next = list[t->next];
    if (a.kind == next.kind && a.chunk == next.chunk && a.microbatch == next.microbatch) {
        taken[t->next++] = 1;
        for (; t->next < count && taken[t->next]; t->next++)
            t->ahead--;
    } else {
        taken[t->forward] = 1;
        t->ahead++;
    }
    while (t->forward < count && (taken[t->forward] || list[t->forward].kind != ACTION_FORWARD))
        t->forward++;
}

static int sort_of(const sharer *x, action a)
{
    if (a.chunk == x->of->chunks + SCHEDULE_EMBEDDING)
        return a.kind == ACTION_FORWARD ? EMBEDDING_FORWARD : EMBEDDING_BACKWARD;
    return a.kind == ACTION_FORWARD ? HEAD_FORWARD : a.kind == ACTION_BACKWARD_WEIGHT ? HEAD_WEIGHT : HEAD_BACKWARD;
}

/* Marks the stages that may act now that `a` of `stage` is decided: itself, and the takers of its result. */
static void note_changes(sharer *x, int stage, action a)
{
    int kind = exchange_made(x->out, stage, a), g = schedule_global_chunk(x->out, stage, a.chunk);
    bool all = exchange_meets(kind) || (g == 0 && a.kind == ACTION_FORWARD);
    for (int i = 0; all && i < x->out->stages; i++)
        x->stages[i].changed = true;
    x->stages[stage].changed = true;
    if (kind == EXCHANGE_ACTIVATION || kind == EXCHANGE_COTANGENT)
        x->stages[schedule_stage_of(x->out, kind == EXCHANGE_ACTIVATION ? g + 1 : g - 1)].changed = true;
}

static void take_action(sharer *x, int stage)
{
    stage_state *t = &x->stages[stage];
    action a = t->takes;
    int g = schedule_global_chunk(x->out, stage, a.chunk);
    t->free_at = t->begins + length_of(x, stage, a);
    x->out->actions[stage][x->out->counts[stage]++] = a;
    if (a.chunk >= x->of->chunks)
        t->done[sort_of(x, a)]++;
    else
        mark_taken(x, stage, a);
    x->begun += g == 0 && a.kind == ACTION_FORWARD;
    if (a.kind != ACTION_BACKWARD_WEIGHT)
        *made(x, a.kind == ACTION_FORWARD, g, a.microbatch) = t->free_at;
    note_changes(x, stage, a);
}

static void open(sharer *x)
{
    const schedule *of = x->of;
    unsigned long pairs = (unsigned long)schedule_all_chunks(x->out) * (unsigned long)of->microbatches;
    x->stages = must_calloc((unsigned long)of->stages, sizeof *x->stages);
    x->taken = must_calloc((unsigned long)of->stages, sizeof *x->taken);
    for (int i = 0; i < of->stages; i++)
        x->stages[i].changed = true;
    for (int i = 0; i < of->stages; i++)
        x->taken[i] = must_calloc((unsigned long)of->counts[i] + 1, 1);
    x->forward = must_alloc(pairs * sizeof(double));
    x->cotangent = must_alloc(pairs * sizeof(double));
    for (unsigned long i = 0; i < pairs; i++)
        x->forward[i] = x->cotangent[i] = INFINITY;
}

/* Returns the schedule's length. */
static double share(schedule *out, const schedule *of, const simulate_cost *costs, double hop, int ahead)
{
    sharer x = {.of = of, .out = out, .costs = costs, .hop = hop, .splits = schedule_splits(of), .most_ahead = ahead};
    int each = (x.splits ? 5 : 4) * of->microbatches;
    double length = 0;
    schedule_alloc(out, of->kind, schedule_map(of), of->microbatches, 3 * of->chunks * of->microbatches + each);
    out->shared = SCHEDULE_SHARED;
    open(&x);
    long left = (long)each * of->stages;
    for (int stage = 0; stage < of->stages; stage++)
        left += of->counts[stage];
    for (; left > 0; left--) {
        int first = 0;
        for (int stage = 0; stage < of->stages; stage++) {
            if (x.stages[stage].changed)
                decide(&x, stage);
            x.stages[stage].changed = false;
            first = x.stages[stage].begins < x.stages[first].begins ? stage : first;
        }
        MUST(!isinf(x.stages[first].begins), "the vocabulary's actions wait for ever among those of %s",
             schedule_name(of->kind));
        take_action(&x, first);
        length = fmax(length, x.stages[first].free_at);
    }
    for (int i = 0; i < x.of->stages; i++)
        free(x.taken[i]);
    free(x.taken);
    free(x.stages);
    free(x.forward);
    free(x.cotangent);
    return length;
}

void schedule_share(schedule *out, const schedule *of, const simulate_cost *costs, double hop)
{
    MUST(of->stages > 1 && !of->shared, "a schedule of %d stages cannot share a vocabulary", of->stages);
    double length = share(out, of, costs, hop, 0);
    int chosen = 0;
    for (int ahead = 1; ahead <= AHEAD_MOST * of->chunks; ahead += ahead < 4 ? 1 : ahead / 2) {
        schedule tried;
        double its = share(&tried, of, costs, hop, ahead);
        bool better = its < length * (1 - SMALLEST_GAIN * (ahead - chosen) / of->chunks);
        if (better) {
            schedule between = *out;
            *out = tried;
            tried = between;
            length = its;
            chosen = ahead;
        }
        schedule_free(&tried);
    }
}
