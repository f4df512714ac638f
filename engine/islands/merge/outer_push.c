/* An island with a server (outer.topology server): it pushes its change and takes the model when it likes, and waits
 * for no other island.
 *
 * A push is an offer as any other (outer_merge.c). The server fetches it and answers in `head` (meet/roster.h):
 * taken, or refused. Either way the island then fetches the model, beside its own reference until all of it is here.
 * Its parts may be of several merges, none older than the one that it asked for, from which its age is counted. A
 * server that is away costs nothing: the island trains on, and what has changed by then is pushed when it is back. */
#include <string.h>

#include "engine/islands/merge/outer_internal.h"
#include "memory/clock.h"
#include "memory/log.h"

static const char *const refusals[ROSTER_REFUSALS] = {
    [ROSTER_STALE] = "it is older than outer.staleness merges",
    [ROSTER_UNSOUND] = "it is not finite, or too large",
    [ROSTER_IMPOSSIBLE] = "its base is a merge that has not been",
};

/* Is the server at work? Said once when it is not, and once when it is again. */
static bool server_is_there(islands *o)
{
    bool there = o->roster.reached && o->roster.member[ROSTER_SERVER].ready;
    if (there && o->push.reported_away)
        log_info("islands: the server is back");
    else if (!there && !o->push.reported_away && o->roster.reached) /* else said by the thread that asks */
        log_warn("islands: the server is away; training goes on, and the change is pushed when it is back");
    o->push.reported_away = !there && (o->push.reported_away || o->roster.reached);
    return there;
}

/* The server's answer to this island's last offer; NULL: none yet. */
static const roster_part *answer(const islands *o)
{
    const roster *r = &o->roster;
    for (int i = 0; i < r->parts; i++)
        if (r->part[i].slot == o->slot && r->part[i].id == o->offered.id)
            return &r->part[i];
    return NULL;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static void ask_for_model(islands *o)
{
    outer_drop_fetch(o, ROSTER_SERVER);
    (void)outer_fetch(o, ROSTER_SERVER, 0, WIRE_REFERENCE, o->push.pulls, 0);
}

/* No older than the last merge that this island knows of; a head that the server cannot have written is not believed.
 */
static void begin_pull(islands *o, int64_t merge)
{
    int64_t last = o->roster.merge, has = o->roster.member[ROSTER_SERVER].merge;
    last = last > has + 1 ? has : last;
    o->stage = OUTER_PULLING;
    o->push.pulls = merge > last ? merge : last;
    o->offered.deadline = o->now + o->config->outer.timeout;
    ask_for_model(o);
}

static void give_up_pull(islands *o, const char *why)
{
    outer_drop_fetch(o, ROSTER_SERVER);
    o->stage = OUTER_IDLE;
    o->counts.missed++;
    log_info("islands: the model after merge %lld cannot be had: %s; training goes on from this island's own",
             (long long)o->push.pulls, why);
}

static status take_model(islands *o)
{
    outer_drop_fetch(o, ROSTER_SERVER);
    TRY(outer_check_finite(o, o->memory.rest, "the model that the server gave"));
    memcpy(o->memory.reference, o->memory.rest, (size_t)o->units.elements * sizeof *o->memory.reference);
    o->merge = o->push.pulls;
    o->stage = OUTER_MERGED;
    return STATUS_OK;
}

static status push_pull(islands *o)
{
    int here = outer_fetched(o, ROSTER_SERVER);
    if (here > 0)
        return take_model(o);
    if (!server_is_there(o))
        give_up_pull(o, "the server is away");
    else if (o->now > o->offered.deadline || outer_must_end(o))
        give_up_pull(o, outer_must_end(o) ? "this island is asked to stop" : "outer.timeout is over");
    else if (here < 0) /* the server has not come to that merge yet */
        ask_for_model(o);
    return STATUS_OK;
}

/* ---- the change -------------------------------------------------------------------------------------------------- */

/* What has been taken is no longer this island's to push, whether or not it gets the model for it. */
static void end_offer(islands *o, const roster_part *part)
{
    bool taken = part->refusal == ROSTER_TAKEN;
    int64_t merge = part->merge;
    if (outer_first_rank(o))
        membership_set_offer(o->membership, NULL);
    outer_serve_change(o, -1, -1, 0);
    o->merged_at[0] = o->offered.step;
    if (taken) {
        o->counts.merges++;
        if (o->memory.error)
            memcpy(o->memory.error, o->memory.rest, (size_t)o->units.elements * sizeof *o->memory.error);
        outer_take_weights(o, 0);
        log_info("islands: merge %lld is this island's change after step %lld", (long long)merge,
                 (long long)o->offered.step);
    } else {
        o->counts.missed++;
        log_warn("islands: the server has refused this island's change after step %lld: %s; taking the model anew",
                 (long long)o->offered.step, refusals[part->refusal]);
    }
    if (o->parting)
        o->stage = OUTER_IDLE;
    else
        begin_pull(o, merge);
}

static status push(islands *o)
{
    TRY(outer_look(o));
    bool open = o->stage == OUTER_OFFERED || o->stage == OUTER_WITHDRAWING;
    if (open && answer(o))
        end_offer(o, answer(o));
    else if (o->stage == OUTER_OFFERED && !server_is_there(o) && o->roster.reached)
        outer_withdraw(o, "the server is away");
    else if (o->stage == OUTER_OFFERED && outer_must_end(o))
        outer_withdraw(o, "this island is asked to stop");
    else if (o->stage == OUTER_OFFERED && o->now > o->offered.deadline)
        outer_withdraw(o, "not answered within outer.timeout");
    else if (o->stage == OUTER_WITHDRAWING)
        outer_end_withdrawal(o);
    else if (o->stage == OUTER_PULLING)
        return push_pull(o);
    return STATUS_OK;
}

/* Until the push is over, one way or the other. */
static status finish(islands *o)
{
    double began = clock_seconds();
    status s = STATUS_OK;
    while (s == STATUS_OK && (o->stage == OUTER_OFFERED || o->stage == OUTER_PULLING ||
                              (o->stage == OUTER_WITHDRAWING && o->roster.reached))) {
        s = push(o);
        outer_nap(o);
    }
    o->counts.waited += clock_seconds() - began;
    return s;
}

static status begin(islands *o, const islands_position *p)
{
    TRY(outer_look(o));
    if (server_is_there(o))
        outer_offer(o, p, 0);
    else
        o->counts.missed++;
    return STATUS_OK;
}

static void settle(islands *o, const islands_position *p)
{
    outer_settle(o, 0);
    o->stage = OUTER_IDLE;
    outer_announce(o, p->step, p->updates);
}

status outer_push_step(islands *o, islands_position *p, int fragment)
{
    if (o->stage == OUTER_MERGED && p->step >= o->offered.settle_at)
        settle(o, p);
    if (o->stage != OUTER_IDLE && o->stage != OUTER_MERGED)
        TRY(push(o));
    if (fragment >= 0 && o->stage == OUTER_IDLE)
        TRY(begin(o, p));
    if (p->step >= o->offered.settle_at)
        TRY(finish(o));
    if (o->stage == OUTER_MERGED && p->step >= o->offered.settle_at)
        settle(o, p);
    return STATUS_OK;
}

status outer_push_save(islands *o, islands_position *p)
{
    (void)p;
    return finish(o);
}

status outer_push_leave(islands *o, islands_position *p)
{
    TRY(finish(o));
    if (o->stage != OUTER_IDLE || p->step <= o->merged_at[0])
        return STATUS_OK;
    log_info("islands: handing over the change since the last push before this island leaves");
    o->parting = true;
    TRY(begin(o, p));
    return finish(o);
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static bool model_is_there(const islands *o)
{
    return o->roster.member[ROSTER_SERVER].ready && o->roster.merge >= 0;
}

static status wait_for_server(islands *o)
{
    TRY(outer_look(o));
    double until = o->now + o->config->outer.timeout;
    if (!model_is_there(o))
        log_info("islands: no server is there yet: this island waits for it, %.0f s at most", o->config->outer.timeout);
    while (!model_is_there(o) && o->now < until && !outer_must_end(o)) {
        outer_nap(o);
        TRY(outer_look(o));
    }
    return STATUS_OK;
}

/* An island that resumes keeps what it has changed if that can still be pushed; else it takes the model. */
static bool keeps_change(const islands *o, const islands_position *p)
{
    bool fresh = o->roster.merge - o->merge <= o->config->outer.staleness && o->merge <= o->roster.merge;
    return o->resumed && o->stage == OUTER_IDLE && p->step > o->merged_at[0] && fresh;
}

status outer_push_join(islands *o, islands_position *p)
{
    TRY(wait_for_server(o));
    bool there = model_is_there(o);
    if (!there && !o->resumed)
        return status_fail(STATUS_FAILED,
                           "islands: no server holds the model of outer.run %s: start one, phalanx server with this "
                           "configuration",
                           o->config->outer.run);
    if (!there || keeps_change(o, p))
        return STATUS_OK;
    begin_pull(o, 0);
    TRY(finish(o));
    if (o->stage != OUTER_MERGED)
        return o->resumed
                   ? STATUS_OK
                   : status_fail(STATUS_FAILED, "islands: the server did not give its model within outer.timeout");
    outer_take_reference(o, false);
    o->stage = OUTER_IDLE;
    o->merged_at[0] = p->step;
    if (!o->resumed && o->roster.step > 0)
        outer_begin_anew(o, p, o->roster.step, o->roster.updates);
    log_info("islands: took the model after merge %lld from the server", (long long)o->merge);
    return STATUS_OK;
}
