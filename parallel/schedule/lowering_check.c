/* Replays the lowered lists, as lowering.h promises. */
#include "parallel/schedule/lowering.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

typedef struct rank {
    const lowering_step *steps;
    int count;
    int step;          /* next to perform */
    int actions;       /* computed so far */
    int *queue;        /* steps of the launches, in order */
    int launched;      /* number of launches in the queue so far */
    int passed;        /* number of them completed (the queue is serial) */
    unsigned *arrived; /* [actions of the schedule]: bit k, is its exchange of kind k here and waited for? */
} rank;

typedef struct replay {
    const schedule *s;
    rank *ranks;
    int *positions; /* [all chunks][microbatches][ACTION_KINDS]: index of an action in its stage's list; -1: none */
} replay;

static status fail_at(const rank *r, int stage, int step, const char *what)
{
    char text[SCHEDULE_DESCRIPTION_BYTES];
    const lowering_step *x = &r->steps[step];
    schedule_describe(text, x->action);
    if (x->kind == LOWERING_COMPUTE)
        return status_fail(STATUS_FAILED, "stage %d, step %d, %s: %s", stage, step, text, what);
    if (x->peer < 0)
        return status_fail(STATUS_FAILED, "stage %d, step %d, %s of the %s with all stages (%s): %s", stage, step,
                           lowering_kind_name(x->kind), exchange_name(x->payload), text, what);
    return status_fail(STATUS_FAILED, "stage %d, step %d, %s of the %s with stage %d (%s): %s", stage, step,
                       lowering_kind_name(x->kind), exchange_name(x->payload), x->peer, text, what);
}

/* Returns the global chunk at the other end of a message: the source of an activation, the target of a cotangent, and
 * so on. -1: there is no message between two chunks. */
static int other_chunk(const schedule *s, int stage, action a, bool sends)
{
    int kind = sends ? exchange_made(s, stage, a) : exchange_taken(s, stage, a);
    int g = schedule_global_chunk(s, stage, a.chunk);
    return kind < 0 || exchange_meets(kind) ? -1 : (a.kind == ACTION_FORWARD) == sends ? g + 1 : g - 1;
}

/* Returns the stage that sends an action's message, or with `sends` the stage that receives it; -1 if none. */
static int partner(const schedule *s, int stage, action a, bool sends)
{
    int g = other_chunk(s, stage, a, sends);
    return g < 0 || schedule_stage_of(s, g) == stage ? -1 : schedule_stage_of(s, g);
}

/* Returns the kinds, bit by bit, of the message and the meetings from other stages that an action needs. */
static unsigned needs_arrival(const schedule *s, int stage, action a)
{
    unsigned kinds = partner(s, stage, a, false) >= 0 ? 1u << exchange_taken(s, stage, a) : 0;
    for (int kind = 0; kind < EXCHANGES; kind++) {
        bool forward;
        if (!s->shared || !exchange_meets(kind) || a.kind == ACTION_BACKWARD_WEIGHT)
            continue;
        int g = exchange_taker(&forward, s, kind, stage);
        if (g == schedule_global_chunk(s, stage, a.chunk) && forward == (a.kind == ACTION_FORWARD))
            kinds |= 1u << kind;
    }
    return kinds;
}

static bool same_action(action a, action b)
{
    return a.kind == b.kind && a.chunk == b.chunk && a.microbatch == b.microbatch;
}

/* True if a send and a receive at the heads of two queues are the two ends of one message. */
static bool same_message(const schedule *s, int from, const lowering_step *send, int to, const lowering_step *receive)
{
    return send->payload == receive->payload && send->action.microbatch == receive->action.microbatch &&
           other_chunk(s, from, send->action, true) == schedule_global_chunk(s, to, receive->action.chunk) &&
           (send->action.kind == ACTION_FORWARD) == (receive->action.kind == ACTION_FORWARD);
}

/* Checks that a meeting's launch names the action that takes it here, or else the maker of this stage's part. */
static status check_meeting(const replay *x, const rank *r, int stage, int i)
{
    const lowering_step *step = &r->steps[i];
    bool forward;
    if (step->kind != LOWERING_EXCHANGE || !exchange_meets(step->payload) || !x->s->shared)
        return fail_at(r, stage, i, "it is no meeting of this schedule");
    int g = exchange_taker(&forward, x->s, step->payload, stage);
    if (g < 0)
        g = exchange_maker(&forward, x->s, step->payload, stage);
    if (g != schedule_global_chunk(x->s, stage, step->action.chunk) ||
        forward != (step->action.kind == ACTION_FORWARD) || step->action.kind == ACTION_BACKWARD_WEIGHT)
        return fail_at(r, stage, i, "the action has no part in it");
    return STATUS_OK;
}

/* Checks kind, peer, payload and the links between a launch and its wait. */
static status check_step(const replay *x, const rank *r, int stage, int i)
{
    const lowering_step *step = &r->steps[i];
    if (step->kind >= LOWERING_KINDS)
        return fail_at(r, stage, i, "no such step");
    if (step->action.kind >= ACTION_KINDS || step->action.chunk < 0 ||
        step->action.chunk >= x->s->chunks + x->s->shared || step->action.microbatch < 0 ||
        step->action.microbatch >= x->s->microbatches)
        return fail_at(r, stage, i, "no such action in this schedule");
    if (step->kind == LOWERING_COMPUTE)
        return STATUS_OK;
    if (step->payload >= EXCHANGES)
        return fail_at(r, stage, i, "no such exchange");
    if (exchange_meets(step->payload) ? step->peer != -1
                                      : step->peer < 0 || step->peer >= x->s->stages || step->peer == stage)
        return fail_at(r, stage, i, "no such peer");
    if (step->pair < 0 || step->pair >= r->count)
        return fail_at(r, stage, i, "its launch or wait is missing");
    const lowering_step *other = &r->steps[step->pair];
    bool waits = step->kind == LOWERING_WAIT;
    if (other->pair != i || (other->kind == LOWERING_WAIT) == waits || other->kind == LOWERING_COMPUTE ||
        (step->pair < i) != waits || other->peer != step->peer || other->launch != step->launch ||
        other->payload != step->payload || !same_action(other->action, step->action))
        return fail_at(r, stage, i, "launch and wait do not belong together");
    if (waits)
        return STATUS_OK;
    if (step->kind == LOWERING_EXCHANGE || exchange_meets(step->payload))
        return check_meeting(x, r, stage, i);
    if (partner(x->s, stage, step->action, step->kind == LOWERING_SEND) != step->peer)
        return fail_at(r, stage, i, "the action has no such message with this stage");
    if ((step->payload == EXCHANGE_ACTIVATION) != (step->action.kind == ACTION_FORWARD))
        return fail_at(r, stage, i, "forwards exchange activations, backwards cotangents");
    return STATUS_OK;
}

static int *position_of(const replay *x, int stage, action a)
{
    long pair = (long)schedule_global_chunk(x->s, stage, a.chunk) * x->s->microbatches + a.microbatch;
    return &x->positions[pair * ACTION_KINDS + a.kind];
}

static void index_actions(replay *x)
{
    const schedule *s = x->s;
    unsigned long bytes = sizeof(int) * schedule_all_chunks(s) * s->microbatches * ACTION_KINDS;
    x->positions = must_alloc(bytes);
    memset(x->positions, 0xff, bytes); /* -1 */
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->counts[stage]; i++)
            *position_of(x, stage, s->actions[stage][i]) = i;
}

static status compute(const replay *x, rank *r, int stage)
{
    const lowering_step *step = &r->steps[r->step];
    if (r->actions == x->s->counts[stage] || !same_action(x->s->actions[stage][r->actions], step->action))
        return fail_at(r, stage, r->step, "the schedule has another action here");
    if (needs_arrival(x->s, stage, step->action) & ~r->arrived[r->actions])
        return fail_at(r, stage, r->step, "its message has not been received and waited for");
    r->actions++;
    return STATUS_OK;
}

/* Returns the index of a chunk's action, whole or the input's part; -1: none. Chunk -1 has none. */
static int place_of(const replay *x, int global, bool forward, int microbatch)
{
    if (global < 0)
        return -1;
    const int *at = &x->positions[((long)global * x->s->microbatches + microbatch) * ACTION_KINDS];
    if (forward)
        return at[ACTION_FORWARD];
    return at[ACTION_BACKWARD] >= 0 ? at[ACTION_BACKWARD] : at[ACTION_BACKWARD_INPUT];
}

static status launch_meeting(const replay *x, rank *r, int stage)
{
    const lowering_step *step = &r->steps[r->step];
    bool forward;
    int microbatch = step->action.microbatch, maker = exchange_maker(&forward, x->s, step->payload, stage);
    if (maker >= 0 && place_of(x, maker, forward, microbatch) >= r->actions)
        return fail_at(r, stage, r->step, "the action that makes this stage's part has not been done");
    int taker = exchange_taker(&forward, x->s, step->payload, stage);
    if (taker >= 0 && place_of(x, taker, forward, microbatch) < r->actions)
        return fail_at(r, stage, r->step, "the action that takes it is done already");
    r->queue[r->launched++] = r->step;
    return STATUS_OK;
}

static status launch(const replay *x, rank *r, int stage)
{
    const lowering_step *step = &r->steps[r->step];
    if (step->launch != r->launched)
        return fail_at(r, stage, r->step, "out of the launch order");
    if (step->kind == LOWERING_EXCHANGE)
        return launch_meeting(x, r, stage);
    int at = *position_of(x, stage, step->action);
    if (step->kind == LOWERING_SEND && (at < 0 || at >= r->actions))
        return fail_at(r, stage, r->step, "the action that makes it has not been done");
    if (step->kind == LOWERING_RECEIVE && (at < 0 || at < r->actions))
        return fail_at(r, stage, r->step, "the action that takes it is done already");
    r->queue[r->launched++] = r->step;
    return STATUS_OK;
}

/* Finishes a wait: its communication has completed. */
static status finish_wait(const replay *x, rank *r, int stage)
{
    const lowering_step *step = &r->steps[r->step];
    unsigned kind = 1u << step->payload;
    if (!(needs_arrival(x->s, stage, step->action) & kind) || r->steps[step->pair].kind == LOWERING_SEND)
        return STATUS_OK;
    int at = *position_of(x, stage, step->action);
    if (r->arrived[at] & kind)
        return fail_at(r, stage, r->step, "received twice");
    r->arrived[at] |= kind;
    return STATUS_OK;
}

/* True if the next step must wait: an action's own collectives come in the queue after all earlier launches. */
static bool is_blocked(const rank *r)
{
    const lowering_step *step = &r->steps[r->step];
    if (step->kind == LOWERING_COMPUTE)
        return r->passed < r->launched;
    return step->kind == LOWERING_WAIT && step->launch >= r->passed;
}

/* Performs the rank's steps until it blocks or ends. */
static status run_rank(const replay *x, int stage, bool *moved)
{
    static status (*const perform[LOWERING_KINDS])(const replay *, rank *, int) = {
        [LOWERING_COMPUTE] = compute, [LOWERING_RECEIVE] = launch,   [LOWERING_SEND] = launch,
        [LOWERING_EXCHANGE] = launch, [LOWERING_WAIT] = finish_wait,
    };
    rank *r = &x->ranks[stage];
    while (r->step < r->count && !is_blocked(r)) {
        TRY(perform[r->steps[r->step].kind](x, r, stage));
        r->step++;
        *moved = true;
    }
    return STATUS_OK;
}

/* Lets a meeting pass if it heads the queues of all stages. */
static status pass_meeting(const replay *x, bool *moved)
{
    const lowering_step *first = NULL;
    for (int stage = 0; stage < x->s->stages; stage++) {
        const rank *r = &x->ranks[stage];
        const lowering_step *step = r->passed < r->launched ? &r->steps[r->queue[r->passed]] : NULL;
        if (!step || step->kind != LOWERING_EXCHANGE)
            return STATUS_OK;
        first = first ? first : step;
        if (step->payload != first->payload || step->action.microbatch != first->action.microbatch)
            return fail_at(r, stage, r->queue[r->passed], "other stages meet for something else");
    }
    for (int stage = 0; stage < x->s->stages; stage++)
        x->ranks[stage].passed++;
    *moved = true;
    return STATUS_OK;
}

/* Lets the message at the head of `from`'s queue pass if it is a send that heads the receiver's queue too. */
static status pass_messages(const replay *x, int from, bool *moved)
{
    rank *sender = &x->ranks[from];
    while (sender->passed < sender->launched) {
        const lowering_step *send = &sender->steps[sender->queue[sender->passed]];
        rank *receiver = &x->ranks[send->peer];
        if (send->kind != LOWERING_SEND || receiver->passed == receiver->launched)
            return STATUS_OK;
        int at = receiver->queue[receiver->passed];
        const lowering_step *receive = &receiver->steps[at];
        if (receive->kind != LOWERING_RECEIVE || receive->peer != from)
            return STATUS_OK;
        if (!same_message(x->s, from, send, send->peer, receive))
            return fail_at(receiver, send->peer, at, "another message arrives here");
        sender->passed++;
        receiver->passed++;
        *moved = true;
    }
    return STATUS_OK;
}

static status check_end(const replay *x)
{
    for (int stage = 0; stage < x->s->stages; stage++) {
        const rank *r = &x->ranks[stage];
        if (r->step < r->count)
            return fail_at(r, stage, r->step, "it waits for ever (deadlock)");
    }
    for (int stage = 0; stage < x->s->stages; stage++) {
        const rank *r = &x->ranks[stage];
        if (r->passed < r->launched)
            return fail_at(r, stage, r->queue[r->passed], "nobody takes part in it");
        if (r->actions < x->s->counts[stage]) {
            char text[SCHEDULE_DESCRIPTION_BYTES];
            return status_fail(STATUS_FAILED, "stage %d: %s is missing", stage,
                               schedule_describe(text, x->s->actions[stage][r->actions]));
        }
    }
    return STATUS_OK;
}

static status replay_all(const replay *x)
{
    int stages = x->s->stages;
    for (int stage = 0; stage < stages; stage++)
        for (int i = 0; i < x->ranks[stage].count; i++)
            TRY(check_step(x, &x->ranks[stage], stage, i));
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < stages; stage++)
            TRY(run_rank(x, stage, &moved));
        for (int stage = 0; stage < stages; stage++)
            TRY(pass_messages(x, stage, &moved));
        TRY(pass_meeting(x, &moved));
    }
    return check_end(x);
}

status lowering_check(const lowering *l, const schedule *s)
{
    if (l->stages != s->stages)
        return status_fail(STATUS_FAILED, "%d lowered stages of a schedule of %d", l->stages, s->stages);
    replay x = {.s = s, .ranks = must_calloc(s->stages, sizeof(rank))};
    for (int stage = 0; stage < s->stages; stage++) {
        rank *r = &x.ranks[stage];
        r->steps = l->steps[stage];
        r->count = l->counts[stage];
        r->queue = must_calloc(r->count + 1, sizeof *r->queue);
        r->arrived = must_calloc(s->counts[stage] + 1, sizeof *r->arrived);
    }
    index_actions(&x);
    status result = replay_all(&x);
    for (int stage = 0; stage < s->stages; stage++) {
        free(x.ranks[stage].queue);
        free(x.ranks[stage].arrived);
    }
    free(x.ranks);
    free(x.positions);
    return result;
}
