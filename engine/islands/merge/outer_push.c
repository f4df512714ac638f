/* An island with a server (outer.topology server): pushes its change and takes the model at its own pace, and waits for
 * no other island.
 *
 * A push is an offer like any other (outer_merge.c). The server fetches it and answers in `head` (meet/roster.h):
 * taken, or refused. Either way the island then fetches the model, keeping its own reference until all of it is here.
 * Its parts may be of several merges, none older than the requested one, from which its age is counted. While the
 * server is away the island trains on, and pushes its whole change once it is back. */
#include <string.h>

#include "engine/islands/merge/outer_island_internal.h"
#include "memory/log.h"

static const char *const refusals[ROSTER_REFUSALS] = {
    [ROSTER_STALE] = "it is older than outer.staleness merges",
    [ROSTER_UNSOUND] = "it is not finite, or too large",
    [ROSTER_IMPOSSIBLE] = "its base is a merge that has not been",
};

/* True if the server is at work. Logs its absence once, and its return once. */
static bool server_is_there(islands *o)
{
    bool there = o->core.roster.reached && o->core.roster.member[ROSTER_SERVER].ready;
    if (there && o->push.reported_away)
        log_info("islands: the server is back");
    else if (!there && !o->push.reported_away && o->core.roster.reached) /* otherwise the asking thread reports it */
        log_warn("islands: the server is away; training goes on, and the change is pushed when it is back");
    o->push.reported_away = !there && (o->push.reported_away || o->core.roster.reached);
    return there;
}

/* Returns the server's answer to this island's last offer; NULL: none yet. */
static const roster_part *server_answer(const islands *o)
{
    const roster *r = &o->core.roster;
    for (int i = 0; i < r->parts; i++)
        if (r->part[i].slot == o->core.slot && r->part[i].id == o->offered.id)
            return &r->part[i];
    return NULL;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static void ask_for_model(islands *o)
{
    outer_drop_fetch(&o->core, ROSTER_SERVER);
    (void)outer_fetch(&o->core, ROSTER_SERVER, 0, WIRE_REFERENCE, o->push.pulls, 0);
}

/* Begins to fetch the model, no older than the last merge that this island knows of; distrusts a head that the server
 * cannot have written. */
static void begin_pull(islands *o, int64_t merge)
{
    int64_t last = o->core.roster.merge, has = o->core.roster.member[ROSTER_SERVER].merge;
    last = last > has + 1 ? has : last;
    o->stage = OUTER_PULLING;
    o->push.pulls = merge > last ? merge : last;
    o->offered.deadline = o->core.now + o->core.config->outer.timeout;
    ask_for_model(o);
}

static void give_up_pull(islands *o, const char *why)
{
    outer_drop_fetch(&o->core, ROSTER_SERVER);
    o->stage = OUTER_IDLE;
    o->core.counts.missed++;
    log_info("islands: the model after merge %lld cannot be had: %s; training goes on from this island's own",
             (long long)o->push.pulls, why);
}

static status take_model(islands *o)
{
    outer_drop_fetch(&o->core, ROSTER_SERVER);
    TRY(outer_check_finite(&o->core, o->core.memory.rest, "the model that the server gave"));
    outer_copy(&o->core, o->core.memory.reference, o->core.memory.rest);
    o->core.merge = o->push.pulls;
    o->stage = OUTER_MERGED;
    return STATUS_OK;
}

static status push_pull(islands *o)
{
    int here = outer_fetched(&o->core, ROSTER_SERVER);
    if (here > 0)
        return take_model(o);
    if (!server_is_there(o))
        give_up_pull(o, "the server is away");
    else if (o->core.now > o->offered.deadline || outer_must_end(&o->core))
        give_up_pull(o, outer_must_end(&o->core) ? "this island is asked to stop" : "outer.timeout is over");
    else if (here < 0) /* the server has not reached that merge yet */
        ask_for_model(o);
    return STATUS_OK;
}

/* ---- the change -------------------------------------------------------------------------------------------------- */

/* Ends an answered offer. A taken change is never pushed again, whether or not the island gets the model for it. */
static void end_offer(islands *o, const roster_part *part)
{
    bool taken = part->refusal == ROSTER_TAKEN, late = taken && outer_is_late(o);
    int64_t merge = part->merge;
    outer_clear_offer(&o->core);
    outer_serve_change(&o->core, -1, -1, 0);
    o->merged_at[0] = o->offered.step;
    if (taken) {
        o->core.counts.merges++;
        if (!late)
            outer_copy(&o->core, o->core.memory.error, o->core.memory.rest);
        if (late) /* steps since the offer are the next change */
            outer_take_offered(o);
        else
            outer_take_weights(o, 0);
        log_info("islands: merge %lld is this island's change after step %lld", (long long)merge,
                 (long long)o->offered.step);
    } else {
        o->core.counts.missed++;
        log_warn("islands: the server has refused this island's change after step %lld: %s; taking the model anew",
                 (long long)o->offered.step, refusals[part->refusal]);
    }
    if (o->parting || late)
        o->stage = OUTER_IDLE;
    else
        begin_pull(o, merge);
}

static status push_offer(islands *o, islands_position *p)
{
    (void)p;
    TRY(outer_look(&o->core));
    bool open = o->stage == OUTER_OFFERED || o->stage == OUTER_WITHDRAWING;
    if (open && server_answer(o))
        end_offer(o, server_answer(o));
    else if (o->stage == OUTER_OFFERED && !server_is_there(o) && o->core.roster.reached)
        outer_withdraw(o, "the server is away");
    else if (o->stage == OUTER_OFFERED && outer_must_end(&o->core))
        outer_withdraw(o, "this island is asked to stop");
    else if (o->stage == OUTER_OFFERED && o->core.now > o->offered.deadline)
        outer_withdraw(o, "not answered within outer.timeout");
    else if (o->stage == OUTER_WITHDRAWING)
        outer_end_withdrawal(o);
    else if (o->stage == OUTER_PULLING)
        return push_pull(o);
    return STATUS_OK;
}

static status begin_offer(islands *o, islands_position *p, int fragment)
{
    TRY(outer_look(&o->core));
    if (server_is_there(o))
        outer_offer(o, p, fragment, o->core.merge + 1);
    else
        o->core.counts.missed++;
    return STATUS_OK;
}

static void finish_merge(islands *o, const islands_position *p)
{
    outer_apply_merge(o, 0);
    outer_announce(&o->core, p->step, p->updates);
}

static status leave_server(islands *o, islands_position *p)
{
    return o->stage == OUTER_IDLE && p->step > o->merged_at[0] ? outer_hand_over(o, p, "push") : STATUS_OK;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static bool model_is_there(const islands *o)
{
    return o->core.roster.member[ROSTER_SERVER].ready && o->core.roster.merge >= 0;
}

static status wait_for_server(islands *o)
{
    TRY(outer_look(&o->core));
    double until = o->core.now + o->core.config->outer.timeout;
    if (!model_is_there(o))
        log_info("islands: no server is there yet: this island waits for it, %.0f s at most",
                 o->core.config->outer.timeout);
    while (!model_is_there(o) && o->core.now < until && !outer_must_end(&o->core)) {
        outer_nap(&o->core);
        TRY(outer_look(&o->core));
    }
    return STATUS_OK;
}

/* True if a resuming island can still push its change; else it takes the model. */
static bool keeps_change(const islands *o, const islands_position *p)
{
    bool fresh = o->core.roster.merge - o->core.merge <= o->core.config->outer.staleness &&
                 o->core.merge <= o->core.roster.merge;
    return o->resumed && o->stage == OUTER_IDLE && p->step > o->merged_at[0] && fresh;
}

static status join_server(islands *o, islands_position *p)
{
    TRY(wait_for_server(o));
    bool there = model_is_there(o);
    if (!there && !o->resumed)
        return status_fail(STATUS_FAILED,
                           "islands: no server holds the model of outer.run %s: start one, phalanx server with this "
                           "configuration",
                           o->core.config->outer.run);
    if (!there || keeps_change(o, p))
        return STATUS_OK;
    begin_pull(o, 0);
    TRY(outer_await(o, p));
    if (o->stage != OUTER_MERGED)
        return o->resumed
                   ? STATUS_OK
                   : status_fail(STATUS_FAILED, "islands: the server did not give its model within outer.timeout");
    outer_take_reference(o, false);
    o->stage = OUTER_IDLE;
    o->merged_at[0] = p->step;
    if (!o->resumed && o->core.roster.step > 0)
        outer_begin_anew(o, p, o->core.roster.step, o->core.roster.updates);
    log_info("islands: took the model after merge %lld from the server", (long long)o->core.merge);
    return STATUS_OK;
}

const outer_topology outer_topology_server = {join_server, begin_offer, push_offer, finish_merge, leave_server, NULL};
