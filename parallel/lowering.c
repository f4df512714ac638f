/* Messages in one global order, then each stage's list: what lowering.h promises. */
#include "parallel/lowering.h"

#include <stdlib.h>

#include "memory/log.h"

typedef struct message {
    double made;      /* end of the action that makes it */
    int from, to;     /* stages */
    int maker, taker; /* positions in the two stages' lists of actions */
    uint8_t payload;
} message;

/* A launch of one stage. Gap g of a list of actions is the place before action g. */
typedef struct launch {
    const message *message;
    bool sends;
    int gap;
    int wait_at; /* of a send: number of the launch before which it is waited for; -1: at the end */
} launch;

static const char *const payload_names[LOWERING_PAYLOADS] = {"activation", "cotangent"};
static const char *const kind_names[LOWERING_KINDS] = {"compute", "receive", "send", "wait"};

const char *lowering_payload_name(int payload)
{
    return payload >= 0 && payload < LOWERING_PAYLOADS ? payload_names[payload] : "unknown payload";
}

const char *lowering_kind_name(int kind)
{
    return kind >= 0 && kind < LOWERING_KINDS ? kind_names[kind] : "unknown step";
}

static int compare_messages(const void *a, const void *b)
{
    const message *x = a, *y = b;
    if (x->made != y->made)
        return x->made < y->made ? -1 : 1;
    return (x->from > y->from) - (x->from < y->from); /* a stage ends one action at a time */
}

/* Where the forward and the backward that consume a message are: [stages * chunks][microbatches] of positions. */
static int *index_takers(const schedule *s, uint8_t payload)
{
    int *at = must_alloc(sizeof *at * s->stages * s->chunks * s->microbatches);
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->counts[stage]; i++) {
            action a = s->actions[stage][i];
            if (a.kind != ACTION_BACKWARD_WEIGHT && (a.kind == ACTION_FORWARD) == (payload == LOWERING_ACTIVATION))
                at[(long)schedule_global_chunk(s, stage, a.chunk) * s->microbatches + a.microbatch] = i;
        }
    return at;
}

/* All messages of the pipeline in the global order; returns their number. */
static long list_messages(message **out, const simulation *timing)
{
    const schedule *s = timing->schedule;
    int *takers[LOWERING_PAYLOADS], last = s->stages * s->chunks - 1;
    long n = 0;
    message *list = must_alloc(sizeof *list * 2 * (last + 1) * s->microbatches);
    for (int payload = 0; payload < LOWERING_PAYLOADS; payload++)
        takers[payload] = index_takers(s, (uint8_t)payload);
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->counts[stage]; i++) {
            action a = s->actions[stage][i];
            bool forward = a.kind == ACTION_FORWARD;
            int g = schedule_global_chunk(s, stage, a.chunk), next = forward ? g + 1 : g - 1;
            if (a.kind == ACTION_BACKWARD_WEIGHT || next < 0 || next > last || schedule_stage_of(s, next) == stage)
                continue;
            uint8_t payload = forward ? LOWERING_ACTIVATION : LOWERING_COTANGENT;
            list[n++] = (message){timing->spans[stage][i].end,
                                  stage,
                                  schedule_stage_of(s, next),
                                  i,
                                  takers[payload][(long)next * s->microbatches + a.microbatch],
                                  payload};
        }
    for (int payload = 0; payload < LOWERING_PAYLOADS; payload++)
        free(takers[payload]);
    qsort(list, (size_t)n, sizeof *list, compare_messages);
    *out = list;
    return n;
}

/* The action of `stage` running at `time`, or else the next one. */
static int action_at(const simulation *timing, int stage, double time)
{
    int below = 0, above = timing->schedule->counts[stage];
    while (below < above) {
        int middle = (below + above) / 2;
        if (timing->spans[stage][middle].end > time)
            above = middle;
        else
            below = middle + 1;
    }
    return below;
}

/* Between which actions each launch is. A send follows the action that makes its message at once; a receive comes
 * `lookahead` actions before its message, moved so that the launch order is kept. */
static void place_launches(launch *launches, int n, const simulation *timing, int stage, int lookahead)
{
    for (int k = n - 1; k >= 0; k--) {
        launch *x = &launches[k];
        int arrival = action_at(timing, stage, x->message->made);
        x->gap = x->sends ? x->message->maker + 1 : arrival > lookahead ? arrival - lookahead : 0;
        if (!x->sends && k + 1 < n && launches[k + 1].gap < x->gap)
            x->gap = launches[k + 1].gap;
    }
    for (int k = 0; k < n; k++) {
        launch *x = &launches[k];
        if (k > 0 && launches[k - 1].gap > x->gap) {
            MUST(!x->sends, "launch %d: a send cannot wait for a later place", k);
            x->gap = launches[k - 1].gap;
        }
        MUST(x->sends || x->gap <= x->message->taker, "launch %d: the receive would come after its action", k);
    }
}

/* A send is waited for before the send that is `under_way` later on its channel. */
static void place_waits(launch *launches, int n, int stages, int under_way)
{
    int *recent = must_alloc(sizeof *recent * stages * under_way); /* ring of launches for each receiving stage */
    int *sent = must_calloc(stages, sizeof *sent);
    for (int k = 0; k < n; k++) {
        launches[k].wait_at = -1;
        if (!launches[k].sends)
            continue;
        int to = launches[k].message->to;
        int *slot = &recent[to * under_way + sent[to]++ % under_way];
        if (sent[to] > under_way)
            launches[*slot].wait_at = k;
        *slot = k;
    }
    free(recent);
    free(sent);
}

typedef struct writer {
    const schedule *s;
    int stage;
    const launch *launches;
    lowering_step *steps;
    int count;
    int *launched; /* [launches]: step of each */
} writer;

static void write_launch(writer *w, int k)
{
    const message *m = w->launches[k].message;
    bool sends = w->launches[k].sends;
    w->launched[k] = w->count;
    w->steps[w->count++] = (lowering_step){.kind = sends ? LOWERING_SEND : LOWERING_RECEIVE,
                                           .payload = m->payload,
                                           .peer = (int16_t)(sends ? m->to : m->from),
                                           .action = w->s->actions[w->stage][sends ? m->maker : m->taker],
                                           .launch = k,
                                           .pair = -1};
}

static void write_wait(writer *w, int k)
{
    lowering_step *launched = &w->steps[w->launched[k]];
    launched->pair = w->count;
    w->steps[w->count] = *launched;
    w->steps[w->count].kind = LOWERING_WAIT;
    w->steps[w->count++].pair = w->launched[k];
}

/* `needs`: [actions] the launch that receives an action's input, -1 if none. `waits`: [launches] the send to be waited for
 * before each launch, -1 if none. */
static void write_steps(writer *w, int launches, const int *needs, const int *waits)
{
    int k = 0, actions = w->s->counts[w->stage];
    for (int i = 0; i <= actions; i++) {
        for (; k < launches && w->launches[k].gap == i; k++) {
            if (waits[k] >= 0)
                write_wait(w, waits[k]);
            write_launch(w, k);
        }
        if (i == actions)
            break;
        if (needs[i] >= 0)
            write_wait(w, needs[i]);
        w->steps[w->count++] = (lowering_step){
            .kind = LOWERING_COMPUTE, .peer = -1, .action = w->s->actions[w->stage][i], .launch = -1, .pair = -1};
    }
    for (k = 0; k < launches; k++)
        if (w->launches[k].sends && w->launches[k].wait_at < 0)
            write_wait(w, k);
}

static void lower_stage(lowering *out, const simulation *timing, int stage, launch *launches, int n,
                        lowering_options options)
{
    const schedule *s = timing->schedule;
    place_launches(launches, n, timing, stage, options.lookahead);
    place_waits(launches, n, s->stages, options.sends_under_way);
    int actions = s->counts[stage];
    int *needs = must_alloc(sizeof *needs * (actions + 1)), *waits = must_alloc(sizeof *waits * (n + 1));
    for (int i = 0; i < actions; i++)
        needs[i] = -1;
    for (int k = 0; k < n; k++)
        waits[k] = -1;
    for (int k = 0; k < n; k++) {
        if (!launches[k].sends)
            needs[launches[k].message->taker] = k;
        else if (launches[k].wait_at >= 0)
            waits[launches[k].wait_at] = k;
    }
    writer w = {.s = s, .stage = stage, .launches = launches};
    w.steps = must_alloc(sizeof *w.steps * (actions + 2 * n + 1));
    w.launched = must_alloc(sizeof *w.launched * (n + 1));
    write_steps(&w, n, needs, waits);
    MUST(w.count == actions + 2 * n, "%d steps, not %d", w.count, actions + 2 * n);
    out->steps[stage] = w.steps;
    out->counts[stage] = w.count;
    out->launches[stage] = n;
    free(w.launched);
    free(needs);
    free(waits);
}

/* The global order rests on actions that take time. */
static status check_timing(const simulation *timing)
{
    const schedule *s = timing->schedule;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->counts[stage]; i++) {
            simulate_span t = timing->spans[stage][i];
            char text[SCHEDULE_DESCRIPTION_BYTES];
            if (s->actions[stage][i].kind != ACTION_BACKWARD_WEIGHT && !(t.end > t.start))
                return status_fail(STATUS_FAILED,
                                   "stage %d, position %d, %s: takes no time, so messages cannot be put in order",
                                   stage, i, schedule_describe(text, s->actions[stage][i]));
        }
    return STATUS_OK;
}

status lowering_make(lowering *out, const simulation *timing, lowering_options options)
{
    const schedule *s = timing->schedule;
    MUST(options.lookahead >= 0 && options.sends_under_way >= 1, "lookahead %d, sends in flight %d", options.lookahead,
         options.sends_under_way);
    TRY(check_timing(timing));
    message *messages = NULL;
    long n = s->stages > 1 ? list_messages(&messages, timing) : 0;

    launch **launches = must_calloc(s->stages, sizeof *launches);
    int *counts = must_calloc(s->stages, sizeof *counts);
    for (int stage = 0; stage < s->stages; stage++)
        launches[stage] =
            must_alloc(sizeof **launches * (2 * s->counts[stage] + 1)); /* an action takes one, makes one */
    for (long i = 0; i < n; i++) {
        int from = messages[i].from, to = messages[i].to;
        launches[from][counts[from]++] = (launch){.message = &messages[i], .sends = true};
        launches[to][counts[to]++] = (launch){.message = &messages[i], .sends = false};
    }
    *out = (lowering){.stages = s->stages};
    out->steps = must_calloc(s->stages, sizeof *out->steps);
    out->counts = must_calloc(s->stages, sizeof *out->counts);
    out->launches = must_calloc(s->stages, sizeof *out->launches);
    for (int stage = 0; stage < s->stages; stage++) {
        lower_stage(out, timing, stage, launches[stage], counts[stage], options);
        free(launches[stage]);
    }
    free(launches);
    free(counts);
    free(messages);
    return STATUS_OK;
}

void lowering_free(lowering *l)
{
    if (!l)
        return;
    for (int stage = 0; l->steps && stage < l->stages; stage++)
        free(l->steps[stage]);
    free(l->steps);
    free(l->counts);
    free(l->launches);
    *l = (lowering){0};
}
