/* Becoming one of the islands, and catching up with them. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/islands/merge/outer_internal.h"
#include "memory/clock.h"
#include "memory/log.h"

/* ---- taking over ------------------------------------------------------------------------------------------------- */

/* The state of a member is not one of merges that were given up. */
static bool is_of_head(const islands *o, const roster_member *m)
{
    return roster_is_in_line(&o->roster, m->merge, m->history);
}

/* An island that has the state after the last merge, or, where there is no last one for all, the latest state that is
 * further than ours; -1: none. */
static int find_donor(const islands *o)
{
    int best = -1;
    int64_t least = o->config->outer.topology == CONFIG_OUTER_GOSSIP ? o->merge + 1 : o->roster.merge;
    for (int s = 0; s < o->config->outer.slots; s++) {
        const roster_member *m = &o->roster.member[s];
        if (s != o->slot && m->ready && m->merge >= least && is_of_head(o, m) &&
            (best < 0 || m->merge > o->roster.member[best].merge))
            best = s;
    }
    return best;
}

/* All of one kind of state, fragment by fragment. *done false: the donor has gone on, or away. */
static status fetch_state(bool *done, islands *o, int donor, wire_kind kind, int64_t merge, double until)
{
    *done = true;
    for (int f = 0; f < o->config->outer.fragments && *done; f++) {
        outer_drop_fetch(o, donor);
        int here = outer_everywhere(o, outer_fetch(o, donor, f, kind, merge, 0)) ? 0 : -1;
        while (here == 0) {
            outer_nap(o);
            TRY(outer_look(o));
            here = outer_fetched(o, donor);
            if (here == 0 && (find_donor(o) < 0 || o->now > until))
                here = -1;
        }
        outer_drop_fetch(o, donor);
        *done = here > 0;
    }
    return STATUS_OK;
}

static status fetch_all(bool *done, islands *o, int64_t *merge, int64_t *step, int64_t *updates, double until)
{
    *done = false;
    TRY(outer_look(o));
    int donor = find_donor(o);
    if (donor < 0)
        return STATUS_OK;
    const roster_member *m = &o->roster.member[donor];
    bool gossip = o->config->outer.topology == CONFIG_OUTER_GOSSIP;
    int64_t began = m->history;
    *merge = m->merge;
    *step = gossip ? m->state_step : o->roster.step;
    *updates = gossip ? m->state_updates : o->roster.updates;
    TRY(fetch_state(done, o, donor, WIRE_REFERENCE, *merge, until));
    if (*done && o->memory.momentum)
        TRY(fetch_state(done, o, donor, WIRE_MOMENTUM, *merge, until));
    *done = *done && o->roster.member[donor].history == began; /* its number is not that of another state by now */
    if (*done)
        log_info("islands: took the model after merge %lld (step %lld) from %s", (long long)*merge, (long long)*step,
                 o->roster.member[donor].name);
    return STATUS_OK;
}

void outer_begin_anew(islands *o, islands_position *p, int64_t step, int64_t updates)
{
    if (o->memory.error)
        memset(o->memory.error, 0, (size_t)o->units.elements * sizeof *o->memory.error);
    outer_move_clear_states(o->move);
    log_info("islands: going on at step %lld; the optimizer's moments begin at 0", (long long)step);
    *p = (islands_position){step, updates, true};
    for (int f = 0; f < o->config->outer.fragments; f++)
        o->merged_at[f] = step;
}

/* While the state is replaced nobody gets it, and merges wait: else they could go by faster than the state travels. */
static void begin_taking(islands *o)
{
    transport_lock(o->transport);
    o->serves.state = -1;
    transport_unlock(o->transport);
    if (outer_first_rank(o))
        membership_set_state(o->membership,
                             &(membership_state){.taking = true, .merge = o->merge, .history = o->all.history});
}

status outer_catch_up(islands *o, islands_position *p, bool keep)
{
    int64_t merge = -1, step = 0, updates = 0;
    bool done = false;
    status s = STATUS_OK;
    double until = o->now + 2 * o->config->outer.timeout;
    begin_taking(o);
    if (keep)
        outer_keep_change(o);
    while (s == STATUS_OK && !done) {
        s = fetch_all(&done, o, &merge, &step, &updates, until);
        if (s == STATUS_OK && !done && o->now > until)
            s = status_fail(STATUS_FAILED,
                            "islands: this island's model is that after merge %lld, and no other island gives it the "
                            "latest one: start it again when one that has it is at work",
                            (long long)o->merge);
        outer_nap(o);
    }
    if (s == STATUS_OK)
        s = outer_check_finite(o, o->memory.reference, "the reference that another island gave");
    if (s == STATUS_OK)
        s = outer_check_finite(o, o->memory.momentum, "the outer momentum that another island gave");
    if (s == STATUS_OK) {
        outer_take_reference(o, keep);
        o->merge = merge;
        o->all.history = o->roster.history;
        if (!keep)
            outer_begin_anew(o, p, step, updates);
        outer_announce(o, step, updates);
    }
    return s;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* The addresses of etcd with commas between; the caller's. */
static char *addresses(const config *c)
{
    char *all = must_strdup("");
    for (int i = 0; i < c->outer.rendezvous.count; i++) {
        char *longer = must_format("%s%s%s", all, i ? "," : "", c->outer.rendezvous.item[i].path);
        free(all);
        all = longer;
    }
    return all;
}

/* Without outer.island, the last part of run.folder. */
static const char *name_of(const config *c)
{
    const char *slash = strrchr(c->run.folder, '/');
    return c->outer.island ? c->outer.island : slash && slash[1] ? slash + 1 : c->run.folder;
}

status outer_claim(islands *o)
{
    enum { TEXT = 256 };
    int ranks = comm_ranks(o->world);
    char mine[TEXT] = "", (*all)[TEXT] = must_calloc((unsigned long)ranks, sizeof *all);
    const char **endpoints = must_alloc((unsigned long)ranks * sizeof *endpoints);
    snprintf(mine, sizeof mine, "%s", transport_endpoint(o->transport));
    comm_all_gather_bytes(comm_world(o->world), all, mine, sizeof mine);
    for (int i = 0; i < ranks; i++)
        endpoints[i] = all[i];
    char *etcd = addresses(o->config);
    double lease = o->config->outer.timeout / 2;
    const membership_options options = {.addresses = etcd,
                                        .login = o->login,
                                        .run = o->config->outer.run,
                                        .name = name_of(o->config),
                                        .fingerprint = o->fingerprint,
                                        .key = o->keys.mine,
                                        .endpoints = endpoints,
                                        .ranks = ranks,
                                        .server = o->holds,
                                        .slots = o->config->outer.slots,
                                        .slot = o->config->outer.slot,
                                        .hint = o->hint,
                                        .merge = o->merge,
                                        .trusted = &o->keys,
                                        .lease = lease < 5    ? 5
                                                 : lease > 20 ? 20
                                                              : (int)lease,
                                        .patience = o->config->outer.timeout};
    status s = outer_first_rank(o) ? membership_open(&o->membership, &options) : STATUS_OK;
    credentials_wipe(&o->login);
    free(etcd);
    free(endpoints);
    free(all);
    TRY(comm_all_status(comm_world(o->world), s));
    o->slot = outer_first_rank(o) ? membership_slot(o->membership) : 0;
    comm_broadcast_bytes(comm_world(o->world), &o->slot, sizeof o->slot, 0);
    if (o->slot == ROSTER_SERVER)
        return STATUS_OK;
    outer_assign_buffers(o);
    log_info("islands: %s has slot %d of %d", name_of(o->config), o->slot, o->config->outer.slots);
    return STATUS_OK;
}

void outer_name_history(islands *o, json_t *head, bool goes_on)
{
    const roster *r = &o->roster;
    if (!goes_on && (!o->all.drawn || o->all.base != o->merge)) {
        uint64_t id;
        MUST(getrandom(&id, sizeof id, 0) == sizeof id, "the system has no random numbers");
        o->all.drawn = (int64_t)(id >> 1);
        o->all.base = o->merge;
    }
    json_object_set_new(head, "history", json_integer(goes_on ? r->history : o->all.drawn));
    json_object_set_new(head, "from", json_integer(goes_on ? r->from : o->all.history));
    json_object_set_new(head, "base", json_integer(goes_on ? r->base : o->merge));
}

/* This island's state becomes that after the last merge: a history begins with it. */
static void make_head(islands *o, const islands_position *p)
{
    if (!outer_first_rank(o))
        return;
    json_t *head = json_pack("{s:I, s:I, s:I, s:[]}", "merge", (json_int_t)o->merge, "step", (json_int_t)p->step,
                             "updates", (json_int_t)p->updates, "parts");
    outer_name_history(o, head, false);
    membership_decide(o->membership, head, o->roster.revision, 0, NULL);
}

/* Of the islands that are there, the one with the latest state, the first of several. */
static bool is_best(const islands *o)
{
    for (int s = 0; s < o->config->outer.slots; s++) {
        const roster_member *m = &o->roster.member[s];
        if (s != o->slot && m->here && (m->merge > o->merge || (m->merge == o->merge && s < o->slot)))
            return false;
    }
    return true;
}

/* Nobody has the last merge any more: the latest checkpoint that is there becomes the model, once all are there or time
 * is up. */
static status go_back(islands *o, const islands_position *p, double until)
{
    bool all = __builtin_popcountll(roster_here(&o->roster)) == o->config->outer.slots;
    if (roster_ready(&o->roster) || (!all && o->now < until))
        return STATUS_OK;
    if (o->resumed && is_best(o)) {
        log_info("islands: no island has the model after merge %lld any more: going on from merge %lld",
                 (long long)o->roster.merge, (long long)o->merge);
        make_head(o, p);
    }
    return STATUS_OK;
}

/* Whoever can write to etcd can write any head. That of a merge is believed if this island has its state, or another
 * one that is at work. One that nobody has is written anew by the island that has come furthest, once it is clear that
 * nobody brings it; meanwhile training goes on, unmerged. */
bool outer_doubts_head(islands *o, const islands_position *p)
{
    static const double SAID = 0.1; /* of outer.timeout: whoever has decided a merge has told by then */
    const roster *r = &o->roster;
    bool in_line = roster_is_in_line(r, o->merge, o->all.history);
    bool doubted = in_line && r->merge <= o->merge ? r->merge < o->merge : find_donor(o) < 0;
    if (!doubted && o->all.head_reported)
        log_info("islands: etcd holds merge %lld again, which an island has", (long long)r->merge);
    if (!doubted || !r->reached || o->all.doubted_since <= 0) {
        o->all.doubted_since = doubted && r->reached ? o->now : 0;
        o->all.head_reported &= doubted;
        return doubted;
    }
    double since = o->now - o->all.doubted_since, most = o->config->outer.timeout;
    if (since > SAID * most && !o->all.head_reported) {
        o->all.head_reported = true;
        log_warn(
            "islands: etcd holds merge %lld of run %s, which no island at work has (this one has merge %lld): it is "
            "not believed, and training goes on, unmerged",
            (long long)r->merge, o->config->outer.run, (long long)o->merge);
    }
    if (since > most && is_best(o)) {
        log_warn("islands: nobody has brought merge %lld: going on from merge %lld", (long long)r->merge,
                 (long long)o->merge);
        make_head(o, p);
        o->all.doubted_since = o->now;
    }
    return true;
}

static status give_up_joining(const islands *o)
{
    if (outer_must_end(o))
        return status_fail(STATUS_FAILED, "islands: this island is asked to stop before it has joined the others");
    return status_fail(STATUS_FAILED,
                       "islands: this island's model is that after merge %lld, the last one was %lld, and no island "
                       "that has it is at work: start one that has, or choose another outer.run",
                       (long long)o->merge, (long long)o->roster.merge);
}

/* Until this island's state is that after the last merge. */
status outer_join_all(islands *o, islands_position *p)
{
    status s = outer_look(o);
    double until = o->now + o->config->outer.timeout, end = until + o->config->outer.timeout;
    for (; s == STATUS_OK && !outer_is_at_head(o); outer_nap(o), s = s == STATUS_OK ? outer_look(o) : s) {
        bool late = o->now > end && o->roster.reached && find_donor(o) < 0;
        if (late || outer_must_end(o))
            s = give_up_joining(o);
        else if (o->roster.merge < o->merge && roster_is_in_line(&o->roster, o->merge, o->all.history))
            make_head(o, p);
        else if (find_donor(o) >= 0)
            s = outer_catch_up(o, p, false);
        else
            s = go_back(o, p, until);
    }
    return s;
}

/* An island that begins, or has missed more than one exchange, takes over from one that is further. */
status outer_join_gossip(islands *o, islands_position *p)
{
    int64_t ahead = outer_gossip_number(p->step + o->config->outer.every, 0);
    TRY(outer_look(o));
    for (int s = 0; s < o->config->outer.slots; s++)
        if (s != o->slot && o->roster.member[s].ready && o->roster.member[s].merge > (p->step ? ahead : 0))
            return outer_catch_up(o, p, false);
    return STATUS_OK;
}
