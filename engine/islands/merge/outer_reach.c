/* What the outer loop's other parts reach the islands by: the roster, what all ranks have in common, fetching from a
 * peer. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/islands/merge/outer_internal.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "parallel/watch/signals.h"

/* So long does an island that is asked to stop wait for others: whoever asks may end it soon (a preemption). */
static const double LEAVING_SECONDS = 1;

bool outer_first_rank(const islands *o)
{
    return comm_rank(o->world) == 0;
}

bool outer_pushes(const islands *o)
{
    return o->config->outer.topology == CONFIG_OUTER_SERVER && !o->holds;
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

/* What rank 0 says before the roster, and whether any rank has been asked to stop. */
typedef struct look_head {
    double now;
    int64_t bytes;
    int64_t asked;
} look_head;

static look_head gather_heads(const islands *o, look_head mine)
{
    int ranks = comm_ranks(o->world);
    look_head *all = must_alloc((unsigned long)ranks * sizeof *all), first;
    comm_all_gather_bytes(comm_world(o->world), all, &mine, sizeof mine);
    first = all[0];
    for (int i = 1; i < ranks; i++)
        first.asked |= all[i].asked;
    free(all);
    return first;
}

bool outer_must_end(const islands *o)
{
    return o->asked_since > 0 && o->now > o->asked_since + LEAVING_SECONDS;
}

bool outer_is_at_head(const islands *o)
{
    return o->roster.merge == o->merge && roster_is_in_line(&o->roster, o->merge, o->all.history);
}

status outer_look(islands *o)
{
    double here = clock_seconds();
    if (here > o->told + 1) { /* progress, and not too much of it for a record of the last steps */
        watchdog_enter(o->watchdog, DURING_STEP, true, o->holds ? o->merge : o->step,
                       o->holds ? "serving islands" : "merging with other islands");
        o->told = here;
    }
    char *text = outer_first_rank(o) ? membership_roster(o->membership) : NULL;
    look_head head = {here, text ? (int64_t)strlen(text) + 1 : 0, signals_pending() == SIGNALS_STOP};
    head = gather_heads(o, head);
    if (head.asked && o->asked_since == 0)
        o->asked_since = head.now;
    if (!text)
        text = must_alloc((unsigned long)head.bytes);
    comm_broadcast_bytes(comm_world(o->world), text, head.bytes, 0);
    roster_free(&o->roster);
    status s = roster_read(&o->roster, text, &o->keys);
    free(text);
    o->now = head.now;
    if (s == STATUS_OK && o->roster.history > 0 && outer_is_at_head(o))
        o->all.history = o->roster.history;
    if (s == STATUS_OK && o->roster.evicted)
        s = o->holds
                ? status_fail(STATUS_FAILED, "another server has begun while this one was not to be reached: it ends")
                : status_fail(STATUS_FAILED,
                              "another island has taken slot %d while this one was not to be reached: it ends",
                              o->slot);
    return s;
}

void outer_nap(const islands *o)
{
    if (outer_first_rank(o)) /* the others wait for its broadcast */
        usleep(20000);
}

uint64_t outer_everywhere(const islands *o, uint64_t here)
{
    int ranks = comm_ranks(o->world);
    uint64_t *all = must_alloc((unsigned long)ranks * sizeof *all);
    comm_all_gather_bytes(comm_world(o->world), all, &here, sizeof here);
    for (int i = 0; i < ranks; i++)
        here &= all[i];
    free(all);
    return here;
}

int64_t outer_gossip_number(int64_t step, int fragment)
{
    enum { FRAGMENTS = 64 };
    return step * FRAGMENTS + fragment;
}

void outer_announce(islands *o, int64_t step, int64_t updates)
{
    transport_lock(o->transport);
    o->serves.state = o->merge;
    transport_unlock(o->transport);
    if (outer_first_rank(o))
        membership_set_state(
            o->membership,
            &(membership_state){
                .ready = true, .merge = o->merge, .history = o->all.history, .step = step, .updates = updates});
}

void outer_serve_change(islands *o, int64_t merge, int64_t offer, int fragment)
{
    transport_lock(o->transport);
    o->serves.merge = merge;
    o->serves.offer = offer;
    o->serves.fragment = fragment;
    transport_unlock(o->transport);
}

/* ---- fetching ---- */

/* The first of the fetches from a slot. Who fetches from the server does so from nobody else. */
static int first_job(int slot)
{
    return slot == ROSTER_SERVER ? 0 : slot * OUTER_PEERS;
}

void outer_drop_fetch(islands *o, int slot)
{
    for (int k = 0; k < o->fetches.got[slot].jobs; k++)
        transport_cancel(o->transport, first_job(slot) + k);
    memset(&o->fetches.got[slot], 0, sizeof o->fetches.got[slot]);
}

static transport_part part_of(const islands *o, int slot, const outer_unit *u, wire_kind kind)
{
    int64_t bytes = o->units.list[u->unit].elements * (int64_t)sizeof(float);
    if (kind == WIRE_CHANGE)
        return (transport_part){u->unit, o->memory.in[slot] + u->coded, u->coded_bytes};
    if (outer_pushes(o)) /* the reference stays as it is until all of the new one is here */
        return (transport_part){u->unit, o->memory.rest + u->at, bytes};
    return (transport_part){u->unit, (kind == WIRE_REFERENCE ? o->memory.reference : o->memory.momentum) + u->at,
                            bytes};
}

bool outer_fetch(islands *o, int slot, int fragment, wire_kind kind, int64_t merge, int64_t offered)
{
    const roster_member *m = &o->roster.member[slot];
    int *owner = must_alloc((unsigned long)o->units.count * sizeof *owner), jobs = 0;
    transport_part *part = o->fetches.parts + (slot == ROSTER_SERVER ? 0 : (int64_t)slot * o->units.mine_count);
    bool found = true;
    memcpy(o->fetches.got[slot].key, m->key, sizeof m->key);
    units_own(owner, o->units.list, o->units.count, o->config->outer.fragments, m->ranks);
    for (int i = 0; i < o->units.mine_count;) {
        int peer = -1, count = 0; /* owners ascend with the units of a fragment */
        for (; i < o->units.mine_count; i++) {
            const outer_unit *u = &o->units.mine[i];
            if (o->units.list[u->unit].fragment != fragment)
                continue;
            if (peer >= 0 && owner[u->unit] != peer)
                break;
            peer = owner[u->unit];
            part[count++] = part_of(o, slot, u, kind);
        }
        const char *endpoint = peer >= 0 ? roster_endpoint(&o->roster, slot, peer) : NULL;
        found &= count == 0 || (endpoint && jobs < OUTER_PEERS);
        if (count > 0 && endpoint && jobs < OUTER_PEERS)
            transport_fetch(o->transport, first_job(slot) + jobs++, endpoint, m->key,
                            &(transport_wanted){kind, merge, offered, part, count});
        part += count;
    }
    o->fetches.got[slot].jobs = jobs;
    free(owner);
    return found;
}

int outer_fetched(islands *o, int slot)
{
    bool done = true, gone = false;
    for (int k = 0; k < o->fetches.got[slot].jobs; k++) {
        transport_state s = transport_state_of(o->transport, first_job(slot) + k);
        done &= s == TRANSPORT_DONE;
        gone |= s == TRANSPORT_GONE;
    }
    uint64_t all = outer_everywhere(o, (uint64_t)done | (uint64_t)!gone << 1);
    return all & 1 ? 1 : all & 2 ? 0 : -1;
}
