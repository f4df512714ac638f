/* Reaches other islands: claims a place, reads the roster, agrees among the ranks, fetches from a peer. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/islands/merge/outer_internal.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/watch/signals.h"

/* Seconds that an island asked to stop waits for others: it may be ended soon (a preemption). */
static const double LEAVING_SECONDS = 1;

bool outer_first_rank(const outer *o)
{
    return comm_rank(o->world) == 0;
}

void outer_add_name(char *names, size_t bytes, const char *name)
{
    size_t used = strlen(names);
    snprintf(names + used, bytes - used, "%s%s", used ? ", " : "", name);
}

/* ---- a place ----------------------------------------------------------------------------------------------------- */

static status claim_slot(outer *o, int hint, const char *name, const char *const *endpoints)
{
    const config_sources *nodes = &o->config->outer.rendezvous;
    AUTO_FREE char *where =
        MUST_PRINT(out, for (int i = 0; i < nodes->count; i++) fprintf(out, "%s%s", i ? "," : "", nodes->item[i].path));
    double lease = o->config->outer.timeout / 2;
    const membership_options options = {.addresses = where,
                                        .login = o->login,
                                        .run = o->config->outer.run,
                                        .name = name,
                                        .fingerprint = o->fingerprint,
                                        .key = o->keys.mine,
                                        .endpoints = endpoints,
                                        .ranks = comm_ranks(o->world),
                                        .server = o->slot == ROSTER_SERVER,
                                        .slots = o->config->outer.slots,
                                        .slot = o->config->outer.slot,
                                        .hint = hint,
                                        .merge = o->merge,
                                        .trusted = &o->keys,
                                        .lease = lease < 5    ? 5
                                                 : lease > 20 ? 20
                                                              : (int)lease,
                                        .patience = o->config->outer.timeout};
    return membership_open(&o->membership, &options);
}

status outer_claim(outer *o, int hint)
{
    enum { TEXT = 256 };
    const config *c = o->config;
    const char *slash = strrchr(c->run.folder, '/');
    const char *name = c->outer.island ? c->outer.island : slash && slash[1] ? slash + 1 : c->run.folder;
    int ranks = comm_ranks(o->world);
    char mine[TEXT] = "";
    AUTO_FREE char *all = must_calloc((unsigned long)ranks, TEXT);
    AUTO_FREE const char **endpoints = must_alloc((unsigned long)ranks * sizeof *endpoints);
    snprintf(mine, sizeof mine, "%s", transport_endpoint(o->transport));
    comm_all_gather_bytes(comm_world(o->world), all, mine, sizeof mine);
    for (int i = 0; i < ranks; i++)
        endpoints[i] = all + (size_t)i * TEXT;
    status claimed = outer_first_rank(o) ? claim_slot(o, hint, name, endpoints) : STATUS_OK;
    etcd_wipe_login(&o->login);
    TRY(comm_all_status(comm_world(o->world), claimed));
    o->slot = outer_first_rank(o) ? membership_slot(o->membership) : 0;
    comm_broadcast_bytes(comm_world(o->world), &o->slot, sizeof o->slot, 0);
    if (o->slot == ROSTER_SERVER)
        return STATUS_OK;
    for (int s = c->outer.slots - 1; s > o->slot; s--) /* buffers of the other slots: its own has none */
        o->memory.in[s] = o->memory.in[s - 1];
    o->memory.in[o->slot] = NULL;
    log_info("islands: %s has slot %d of %d", name, o->slot, c->outer.slots);
    return STATUS_OK;
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

bool outer_must_end(const outer *o)
{
    return o->asked_since > 0 && o->now > o->asked_since + LEAVING_SECONDS;
}

bool outer_is_at_head(const outer *o)
{
    return o->roster.merge == o->merge && roster_is_in_line(&o->roster, o->merge, o->history);
}

static void tell_watchdog(outer *o, double now)
{
    bool server = o->slot == ROSTER_SERVER;
    if (now <= o->told + 1) /* report progress, but at most once a second to save the record of the last steps */
        return;
    watchdog_enter(o->watchdog, DURING_STEP, true, server ? o->merge : o->step,
                   server ? "serving islands" : "merging with other islands");
    o->told = now;
}

status outer_look(outer *o)
{
    struct {
        double now;
        int64_t bytes;
    } head = {clock_seconds(), 0};
    comm_group *all = comm_world(o->world);
    tell_watchdog(o, head.now);
    AUTO_FREE char *text = outer_first_rank(o) ? membership_roster(o->membership) : NULL;
    head.bytes = text ? (int64_t)strlen(text) + 1 : 0;
    bool asked = comm_any(all, signals_pending() == SIGNALS_STOP);
    comm_broadcast_bytes(all, &head, sizeof head, 0);
    if (asked && o->asked_since == 0)
        o->asked_since = head.now;
    if (!text)
        text = must_alloc((unsigned long)head.bytes);
    comm_broadcast_bytes(all, text, head.bytes, 0);
    roster_free(&o->roster);
    o->now = head.now;
    TRY(roster_read(&o->roster, text, &o->keys));
    if (o->roster.history > 0 && outer_is_at_head(o))
        o->history = o->roster.history;
    if (!o->roster.evicted)
        return STATUS_OK;
    return o->slot == ROSTER_SERVER
               ? status_fail(STATUS_FAILED, "another server has begun while this one was not to be reached: it ends")
               : status_fail(STATUS_FAILED,
                             "another island has taken slot %d while this one was not to be reached: it ends", o->slot);
}

void outer_nap(const outer *o)
{
    if (outer_first_rank(o)) /* the other ranks wait for its broadcast */
        usleep(20000);
}

uint64_t outer_everywhere(const outer *o, uint64_t here)
{
    int ranks = comm_ranks(o->world);
    AUTO_FREE uint64_t *all = must_alloc((unsigned long)ranks * sizeof *all);
    comm_all_gather_bytes(comm_world(o->world), all, &here, sizeof here);
    for (int i = 0; i < ranks; i++)
        here &= all[i];
    return here;
}

/* ---- published state --------------------------------------------------------------------------------------------- */

void outer_announce(outer *o, int64_t step, int64_t updates)
{
    transport_lock(o->transport);
    o->serves.state = o->merge;
    transport_unlock(o->transport);
    if (outer_first_rank(o))
        membership_set_state(
            o->membership,
            &(membership_state){
                .ready = true, .merge = o->merge, .history = o->history, .step = step, .updates = updates});
}

void outer_hide_state(outer *o)
{
    transport_lock(o->transport);
    o->serves.state = -1;
    transport_unlock(o->transport);
}

void outer_serve_change(outer *o, int64_t merge, int64_t offer, int fragment)
{
    transport_lock(o->transport);
    o->serves.merge = merge;
    o->serves.offer = offer;
    o->serves.fragment = fragment;
    transport_unlock(o->transport);
}

int64_t outer_clear_offer(outer *o)
{
    if (!outer_first_rank(o))
        return 0;
    membership_set_have(o->membership, NULL);
    return membership_set_offer(o->membership, NULL);
}

void outer_report_held(outer *o, int64_t merge, uint64_t slots)
{
    json_t *list = json_array();
    for (int s = 0; s < ROSTER_SLOTS; s++)
        if (slots >> s & 1)
            json_array_append_new(list, json_integer(s));
    membership_set_have(o->membership, json_pack("{s:I, s:o}", "merge", (json_int_t)merge, "slots", list));
}

/* ---- fetching ---------------------------------------------------------------------------------------------------- */

/* Returns the index of the first fetch from a slot. An island with a server fetches from it alone. */
static int first_job(int slot)
{
    return slot == ROSTER_SERVER ? 0 : slot * OUTER_PEERS;
}

void outer_drop_fetch(outer *o, int slot)
{
    for (int k = 0; k < o->fetches.got[slot].jobs; k++)
        transport_cancel(o->transport, first_job(slot) + k);
    memset(&o->fetches.got[slot], 0, sizeof o->fetches.got[slot]);
}

static transport_part part_of(const outer *o, int slot, const outer_unit *u, wire_kind kind)
{
    int64_t bytes = o->units.list[u->unit].elements * (int64_t)sizeof(float);
    if (kind == WIRE_CHANGE)
        return (transport_part){u->unit, o->memory.in[slot] + u->coded, u->coded_bytes};
    if (slot == ROSTER_SERVER) /* keep the reference until the new one is complete */
        return (transport_part){u->unit, o->memory.rest + u->at, bytes};
    return (transport_part){u->unit, (kind == WIRE_REFERENCE ? o->memory.reference : o->memory.momentum) + u->at,
                            bytes};
}

bool outer_fetch(outer *o, int slot, int fragment, wire_kind kind, int64_t merge, int64_t offered)
{
    const roster_member *m = &o->roster.member[slot];
    AUTO_FREE int *owner = must_alloc((unsigned long)o->units.count * sizeof *owner);
    transport_part *part = o->fetches.parts + (slot == ROSTER_SERVER ? 0 : (int64_t)slot * o->units.mine_count);
    int jobs = 0;
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
        bool can = endpoint && jobs < OUTER_PEERS;
        found &= count == 0 || can;
        if (count > 0 && can)
            transport_fetch(o->transport, first_job(slot) + jobs++, endpoint, m->key,
                            &(transport_wanted){kind, merge, offered, part, count});
        part += count;
    }
    o->fetches.got[slot].jobs = jobs;
    return found;
}

/* Returns bits: 1: all data from the slot are here; 2: some are unavailable. */
static unsigned state_of(const outer *o, int slot)
{
    unsigned done = 1, gone = 0;
    for (int k = 0; k < o->fetches.got[slot].jobs; k++) {
        transport_state s = transport_state_of(o->transport, first_job(slot) + k);
        done &= s == TRANSPORT_DONE;
        gone |= s == TRANSPORT_GONE;
    }
    return done | gone << 1;
}

int outer_fetched(outer *o, int slot)
{
    uint64_t all = outer_everywhere(o, state_of(o, slot) ^ 2);
    return all & 1 ? 1 : all & 2 ? 0 : -1;
}

/* True if the fetch from the slot has arrived and is usable. */
static bool look_at_fetch(outer *o, int slot)
{
    unsigned state = state_of(o, slot);
    if (!o->fetches.got[slot].offer || o->fetches.got[slot].here || o->fetches.got[slot].bad)
        return o->fetches.got[slot].here;
    if (state & 2) /* withdrawn, perhaps for a newer one: requested again as long as it is offered */
        outer_drop_fetch(o, slot);
    if (state & 1)
        outer_judge_fetched(o, slot);
    return o->fetches.got[slot].here;
}

bool outer_fetch_offer(outer *o, int slot, int64_t id)
{
    const roster_member *m = &o->roster.member[slot];
    if (o->fetches.got[slot].offer != id) {
        outer_drop_fetch(o, slot);
        bool asked = outer_fetch(o, slot, o->fragment, WIRE_CHANGE, m->offer_merge, m->offer);
        o->fetches.got[slot].offer = id;
        o->fetches.got[slot].bad = !asked;
    }
    return look_at_fetch(o, slot);
}

uint64_t outer_fetch_offers(outer *o, int64_t merge, uint64_t from)
{
    bool gossip = o->config->outer.topology == CONFIG_OUTER_GOSSIP;
    uint64_t here = 1ull << o->slot;
    for (int s = 0; s < o->config->outer.slots; s++) {
        const roster_member *m = &o->roster.member[s];
        bool fits = m->ready && m->offers && m->fragment == o->fragment &&
                    (m->offer_merge == merge || (gossip && m->offer_merge > merge));
        if (s == o->slot)
            continue;
        if (from >> s & 1 && fits && !(gossip && o->fetches.got[s].here))
            here |= (uint64_t)outer_fetch_offer(o, s, m->offer) << s;
        else
            here |= (uint64_t)look_at_fetch(o, s) << s;
    }
    return outer_everywhere(o, here);
}

uint64_t outer_refused(const outer *o)
{
    uint64_t bad = 0;
    for (int s = 0; s < o->config->outer.slots; s++)
        bad |= (uint64_t)o->fetches.got[s].bad << s;
    return ~outer_everywhere(o, ~bad);
}
