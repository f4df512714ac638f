/* Puts messages in one global order, then makes each stage's list, as lowering.h promises. */
#include "parallel/schedule/lowering.h"

#include <stdlib.h>

#include "memory/log.h"
#include "memory/scope.h"

typedef struct message {
    double made;  /* end of the action that makes it, or the last part of it */
    int from, to; /* stages; meeting: the stage with the last part, and -1 */
    int microbatch;
    int maker, taker; /* positions in the two stages' lists of actions, for a message between them */
    uint8_t payload;
} message;

/* A launch of one stage. Gap g of a list of actions is the place before action g. */
typedef struct launch {
    const message *message;
    int maker, taker; /* positions in the stage's list of actions; -1: none of its actions */
    int gap;
    int wait_at; /* number of the launch before which it is waited for, if it has no taker; -1: at the end */
} launch;

static const char *const kind_names[LOWERING_KINDS] = {"compute", "receive", "send", "meeting", "wait"};

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

/* Positions of the forward and the backward of each chunk and micro-batch in their stage's list. */
typedef struct positions {
    int *of[2]; /* [all chunks][microbatches]: backwards, forwards */
    int microbatches;
} positions;

static int position_of(const positions *p, bool forward, int global, int microbatch)
{
    return global < 0 ? -1 : p->of[forward][(long)global * p->microbatches + microbatch];
}

static void open_positions(positions *p, const schedule *s)
{
    p->microbatches = s->microbatches;
    for (int k = 0; k < 2; k++)
        p->of[k] = must_alloc(sizeof(int) * (unsigned long)schedule_all_chunks(s) * (unsigned long)s->microbatches);
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->counts[stage]; i++) {
            action a = s->actions[stage][i];
            if (a.kind != ACTION_BACKWARD_WEIGHT)
                p->of[a.kind == ACTION_FORWARD]
                     [(long)schedule_global_chunk(s, stage, a.chunk) * s->microbatches + a.microbatch] = i;
        }
}

/* True for each message between two stages, and for the last part of a meeting. */
static bool is_last_part(const simulation *timing, const positions *p, int kind, int stage, int microbatch)
{
    bool forward;
    const schedule *s = timing->schedule;
    int chunk = exchange_maker(&forward, s, kind, stage), own = position_of(p, forward, chunk, microbatch);
    double end = timing->spans[stage][own].end;
    for (int other = 0; other < s->stages; other++) {
        chunk = exchange_maker(&forward, s, kind, other);
        int at = position_of(p, forward, chunk, microbatch);
        double its = at >= 0 ? timing->spans[other][at].end : -1;
        if (its > end || (its == end && other < stage))
            return false;
    }
    return true;
}

/* Lists all messages of the pipeline in the global order; returns their number. */
static long list_messages(message **out, const simulation *timing, const positions *p)
{
    const schedule *s = timing->schedule;
    long n = 0;
    message *list =
        must_alloc(sizeof *list * 2 * (unsigned long)schedule_all_chunks(s) * (unsigned long)s->microbatches);
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->counts[stage]; i++) {
            action a = s->actions[stage][i];
            int kind = exchange_made(s, stage, a);
            if (kind < 0 || (exchange_meets(kind) && !is_last_part(timing, p, kind, stage, a.microbatch)))
                continue;
            message m = {timing->spans[stage][i].end, stage, -1, a.microbatch, i, -1, (uint8_t)kind};
            if (!exchange_meets(kind)) {
                bool forward = kind == EXCHANGE_ACTIVATION;
                int next = schedule_global_chunk(s, stage, a.chunk) + (forward ? 1 : -1);
                m.to = schedule_stage_of(s, next);
                m.taker = position_of(p, forward, next, a.microbatch);
            }
            if (m.to != stage)
                list[n++] = m;
        }
    qsort(list, (size_t)n, sizeof *list, compare_messages);
    *out = list;
    return n;
}

/* Returns the action of `stage` running at `time`, or else the next one. */
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

/* Places each launch between actions. A send follows the action that makes its message at once; a receive comes
 * `lookahead` actions before its message, moved so that the launch order is kept; a meeting likewise, but after the
 * stage's own part of it. */
static void place_launches(launch *launches, int n, const simulation *timing, int stage, int lookahead)
{
    for (int k = n - 1; k >= 0; k--) {
        launch *x = &launches[k];
        bool sends = x->message->to >= 0 && x->maker >= 0;
        int arrival = action_at(timing, stage, x->message->made), least = x->maker + 1;
        x->gap = sends || arrival - lookahead < least ? least : arrival - lookahead;
        if (!sends && k + 1 < n && launches[k + 1].gap < x->gap)
            x->gap = launches[k + 1].gap > least ? launches[k + 1].gap : least;
    }
    for (int k = 0; k < n; k++) {
        launch *x = &launches[k];
        if (k > 0 && launches[k - 1].gap > x->gap) {
            MUST(x->message->to < 0 || x->maker < 0, "launch %d: a send cannot wait for a later place", k);
            x->gap = launches[k - 1].gap;
        }
        MUST(x->gap > x->maker, "launch %d: it would come before its part is made", k);
        MUST(x->taker < 0 || x->gap <= x->taker, "launch %d: the receive would come after its action", k);
    }
}

/* Places the wait for a launch that no action takes here: before the launch `under_way` later on its channel, which is
 * that to another stage, or that of its meeting's kind. */
static void place_waits(launch *launches, int n, int stages, int under_way)
{
    int channels = stages + EXCHANGES;
    AUTO_FREE int *recent = must_alloc(sizeof *recent * channels * under_way); /* ring of launches for each channel */
    AUTO_FREE int *sent = must_calloc(channels, sizeof *sent);
    for (int k = 0; k < n; k++) {
        const message *m = launches[k].message;
        launches[k].wait_at = -1;
        if (launches[k].taker >= 0)
            continue;
        int to = m->to >= 0 ? m->to : stages + m->payload;
        int *slot = &recent[to * under_way + sent[to]++ % under_way];
        if (sent[to] > under_way)
            launches[*slot].wait_at = k;
        *slot = k;
    }
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
    const launch *x = &w->launches[k];
    const message *m = x->message;
    bool sends = x->taker < 0, meets = m->to < 0;
    w->launched[k] = w->count;
    w->steps[w->count++] = (lowering_step){.kind = meets   ? LOWERING_EXCHANGE
                                                   : sends ? LOWERING_SEND
                                                           : LOWERING_RECEIVE,
                                           .payload = m->payload,
                                           .peer = (int16_t)(meets   ? -1
                                                             : sends ? m->to
                                                                     : m->from),
                                           .action = w->s->actions[w->stage][sends ? x->maker : x->taker],
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

/* An action takes a message or a meeting's result; that of the last layers may take both. */
enum { TAKES = 2 };

/* The launches that bring an action's input, in their order. */
typedef struct action_needs {
    int launch[TAKES], count;
} action_needs;

/* `needs`: [actions]. `waits`: [launches] the send to be waited for before each launch, -1 if none. */
static void write_steps(writer *w, int launches, const action_needs *needs, const int *waits)
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
        for (int j = 0; j < needs[i].count; j++)
            write_wait(w, needs[i].launch[j]);
        w->steps[w->count++] = (lowering_step){
            .kind = LOWERING_COMPUTE, .peer = -1, .action = w->s->actions[w->stage][i], .launch = -1, .pair = -1};
    }
    for (k = 0; k < launches; k++)
        if (w->launches[k].taker < 0 && w->launches[k].wait_at < 0)
            write_wait(w, k);
}

static void lower_stage(lowering *out, const simulation *timing, int stage, launch *launches, int n,
                        lowering_options options)
{
    const schedule *s = timing->schedule;
    place_launches(launches, n, timing, stage, options.lookahead);
    place_waits(launches, n, s->stages, options.sends_under_way);
    int actions = s->counts[stage];
    AUTO_FREE action_needs *needed = must_calloc(actions + 1, sizeof *needed);
    AUTO_FREE int *waits = must_alloc(sizeof *waits * (n + 1));
    for (int k = 0; k < n; k++)
        waits[k] = -1;
    for (int k = 0; k < n; k++) {
        action_needs *of = launches[k].taker >= 0 ? &needed[launches[k].taker] : NULL;
        MUST(!of || of->count < TAKES, "launch %d brings more than an action takes", k);
        if (of)
            of->launch[of->count++] = k;
        else if (launches[k].wait_at >= 0)
            waits[launches[k].wait_at] = k;
    }
    writer w = {.s = s, .stage = stage, .launches = launches};
    w.steps = must_alloc(sizeof *w.steps * (actions + 2 * n + 1));
    w.launched = must_alloc(sizeof *w.launched * (n + 1));
    write_steps(&w, n, needed, waits);
    MUST(w.count == actions + 2 * n, "%d steps, not %d", w.count, actions + 2 * n);
    out->steps[stage] = w.steps;
    out->counts[stage] = w.count;
    out->launches[stage] = n;
    free(w.launched);
}

/* Checks that actions take time, as the global order requires. */
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

/* Adds a message's launches at the end of the lists of the stages that take part. */
static void add_launches(launch **launches, int *counts, const schedule *s, const positions *at, const message *m)
{
    bool forward = m->payload == EXCHANGE_ACTIVATION;
    for (int stage = 0; stage < s->stages; stage++) {
        launch x = {.message = m, .maker = -1, .taker = -1};
        if (m->to < 0) {
            int maker = exchange_maker(&forward, s, m->payload, stage);
            x.maker = position_of(at, forward, maker, m->microbatch);
            int taker = exchange_taker(&forward, s, m->payload, stage);
            x.taker = position_of(at, forward, taker, m->microbatch);
        } else if (stage == m->from) {
            x.maker = m->maker;
        } else if (stage == m->to) {
            x.taker = m->taker;
        } else {
            continue;
        }
        launches[stage][counts[stage]++] = x;
    }
}

status lowering_make(lowering *out, const simulation *timing, lowering_options options)
{
    const schedule *s = timing->schedule;
    MUST(options.lookahead >= 0 && options.sends_under_way >= 1, "lookahead %d, sends in flight %d", options.lookahead,
         options.sends_under_way);
    TRY(check_timing(timing));
    AUTO_FREE message *messages = NULL;
    positions at;
    open_positions(&at, s);
    long n = s->stages > 1 ? list_messages(&messages, timing, &at) : 0;

    AUTO_FREE launch **launches = must_calloc(s->stages, sizeof *launches);
    AUTO_FREE int *counts = must_calloc(s->stages, sizeof *counts);
    for (int stage = 0; stage < s->stages; stage++)
        launches[stage] =
            must_alloc(sizeof **launches * ((TAKES + 1) * s->counts[stage] + 1)); /* an action makes one */
    for (long i = 0; i < n; i++)
        add_launches(launches, counts, s, &at, &messages[i]);
    *out = (lowering){.stages = s->stages};
    out->steps = must_calloc(s->stages, sizeof *out->steps);
    out->counts = must_calloc(s->stages, sizeof *out->counts);
    out->launches = must_calloc(s->stages, sizeof *out->launches);
    for (int stage = 0; stage < s->stages; stage++) {
        lower_stage(out, timing, stage, launches[stage], counts[stage], options);
        free(launches[stage]);
    }
    free(at.of[0]);
    free(at.of[1]);
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
