/* Becoming one of the islands, and catching up with them. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/islands/merge/outer_island_internal.h"
#include "memory/clock.h"
#include "memory/log.h"

/* ---- taking over ------------------------------------------------------------------------------------------------- */

/* An island that has the state after the last merge, or, where there is no last one for all, the latest state that is
 * further than ours; -1: none. */
static int find_donor(const islands *o)
{
    int best = -1;
    int64_t least = o->core.config->outer.topology == CONFIG_OUTER_GOSSIP ? o->core.merge + 1 : o->core.roster.merge;
    for (int s = 0; s < o->core.config->outer.slots; s++) {
        const roster_member *m = &o->core.roster.member[s];
        if (s != o->core.slot && m->ready && m->merge >= least &&
            roster_is_in_line(&o->core.roster, m->merge, m->history) &&
            (best < 0 || m->merge > o->core.roster.member[best].merge))
            best = s;
    }
    return best;
}

/* All of one kind of state, fragment by fragment. *done false: the donor has gone on, or away. */
static status fetch_state(bool *done, islands *o, int donor, wire_kind kind, int64_t merge, double until)
{
    *done = true;
    for (int f = 0; f < o->core.config->outer.fragments && *done; f++) {
        outer_drop_fetch(&o->core, donor);
        int here = outer_everywhere(&o->core, outer_fetch(&o->core, donor, f, kind, merge, 0)) ? 0 : -1;
        while (here == 0) {
            outer_nap(&o->core);
            TRY(outer_look(&o->core));
            here = outer_fetched(&o->core, donor);
            if (here == 0 && (find_donor(o) < 0 || o->core.now > until))
                here = -1;
        }
        outer_drop_fetch(&o->core, donor);
        *done = here > 0;
    }
    return STATUS_OK;
}

static status fetch_all(bool *done, islands *o, int64_t *merge, int64_t *step, int64_t *updates, double until)
{
    *done = false;
    TRY(outer_look(&o->core));
    int donor = find_donor(o);
    if (donor < 0)
        return STATUS_OK;
    const roster_member *m = &o->core.roster.member[donor];
    bool gossip = o->core.config->outer.topology == CONFIG_OUTER_GOSSIP;
    int64_t began = m->history;
    *merge = m->merge;
    *step = gossip ? m->state_step : o->core.roster.step;
    *updates = gossip ? m->state_updates : o->core.roster.updates;
    TRY(fetch_state(done, o, donor, WIRE_REFERENCE, *merge, until));
    if (*done && o->core.memory.momentum)
        TRY(fetch_state(done, o, donor, WIRE_MOMENTUM, *merge, until));
    *done = *done && o->core.roster.member[donor].history == began; /* its number is not that of another state by now */
    if (*done)
        log_info("islands: took the model after merge %lld (step %lld) from %s", (long long)*merge, (long long)*step,
                 o->core.roster.member[donor].name);
    return STATUS_OK;
}

void outer_begin_anew(islands *o, islands_position *p, int64_t step, int64_t updates)
{
    if (o->core.memory.error)
        memset(o->core.memory.error, 0, (size_t)o->core.units.elements * sizeof *o->core.memory.error);
    outer_move_clear_states(o->move);
    log_info("islands: going on at step %lld; the optimizer's moments begin at 0", (long long)step);
    *p = (islands_position){step, updates, true};
    for (int f = 0; f < o->core.config->outer.fragments; f++)
        o->merged_at[f] = step;
}

status outer_catch_up(islands *o, islands_position *p, bool keep)
{
    outer *c = &o->core;
    int64_t merge = -1, step = 0, updates = 0;
    double until = c->now + 2 * c->config->outer.timeout;
    /* while the state is replaced nobody gets it, and merges wait: else they could go by faster than it travels */
    outer_hide_state(c);
    if (outer_first_rank(c))
        membership_set_state(c->membership,
                             &(membership_state){.taking = true, .merge = c->merge, .history = c->history});
    if (keep)
        outer_keep_change(o);
    for (bool done = false; !done; outer_nap(c)) {
        TRY(fetch_all(&done, o, &merge, &step, &updates, until));
        if (!done && c->now > until)
            return status_fail(STATUS_FAILED,
                               "islands: this island's model is that after merge %lld, and no other island gives it "
                               "the latest one: start it again when one that has it is at work",
                               (long long)c->merge);
    }
    TRY(outer_check_finite(c, c->memory.reference, "the reference that another island gave"));
    TRY(outer_check_finite(c, c->memory.momentum, "the outer momentum that another island gave"));
    outer_take_reference(o, keep);
    c->merge = merge;
    c->history = c->roster.history;
    if (!keep)
        outer_begin_anew(o, p, step, updates);
    outer_announce(c, step, updates);
    return STATUS_OK;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

void outer_name_history(islands *o, json_t *head, bool goes_on)
{
    const roster *r = &o->core.roster;
    if (!goes_on && (!o->doubt.drawn || o->doubt.base != o->core.merge)) {
        uint64_t id;
        MUST(getrandom(&id, sizeof id, 0) == sizeof id, "the system has no random numbers");
        o->doubt.drawn = (int64_t)(id >> 1);
        o->doubt.base = o->core.merge;
    }
    json_object_set_new(head, "history", json_integer(goes_on ? r->history : o->doubt.drawn));
    json_object_set_new(head, "from", json_integer(goes_on ? r->from : o->core.history));
    json_object_set_new(head, "base", json_integer(goes_on ? r->base : o->core.merge));
}

/* This island's state becomes that after the last merge: a history begins with it. */
static void make_head(islands *o, const islands_position *p)
{
    if (!outer_first_rank(&o->core))
        return;
    json_t *head = json_pack("{s:I, s:I, s:I, s:[]}", "merge", (json_int_t)o->core.merge, "step", (json_int_t)p->step,
                             "updates", (json_int_t)p->updates, "parts");
    outer_name_history(o, head, false);
    membership_decide(o->core.membership, head, o->core.roster.revision, 0, NULL);
}

/* Of the islands that are there, the one with the latest state, the first of several. */
static bool is_best(const islands *o)
{
    for (int s = 0; s < o->core.config->outer.slots; s++) {
        const roster_member *m = &o->core.roster.member[s];
        if (s != o->core.slot && m->here &&
            (m->merge > o->core.merge || (m->merge == o->core.merge && s < o->core.slot)))
            return false;
    }
    return true;
}

/* Nobody has the last merge any more: the latest checkpoint that is there becomes the model, once all are there or time
 * is up. */
static void go_back(islands *o, const islands_position *p, double until)
{
    bool all = __builtin_popcountll(roster_here(&o->core.roster)) == o->core.config->outer.slots;
    bool waits = roster_ready(&o->core.roster) || (!all && o->core.now < until);
    if (waits || !o->resumed || !is_best(o))
        return;
    log_info("islands: no island has the model after merge %lld any more: going on from merge %lld",
             (long long)o->core.roster.merge, (long long)o->core.merge);
    make_head(o, p);
}

/* Whoever can write to etcd can write any head. That of a merge is believed if this island has its state, or another
 * one that is at work. One that nobody has is written anew by the island that has come furthest, once it is clear that
 * nobody brings it; meanwhile training goes on, unmerged. */
bool outer_doubts_head(islands *o, const islands_position *p)
{
    static const double SAID = 0.1; /* of outer.timeout: whoever has decided a merge has told by then */
    const roster *r = &o->core.roster;
    bool in_line = roster_is_in_line(r, o->core.merge, o->core.history);
    bool doubted = in_line && r->merge <= o->core.merge ? r->merge < o->core.merge : find_donor(o) < 0;
    if (!doubted && o->doubt.reported)
        log_info("islands: etcd holds merge %lld again, which an island has", (long long)r->merge);
    if (!doubted || !r->reached || o->doubt.since <= 0) {
        o->doubt.since = doubted && r->reached ? o->core.now : 0;
        o->doubt.reported &= doubted;
        return doubted;
    }
    double since = o->core.now - o->doubt.since, most = o->core.config->outer.timeout;
    if (since > SAID * most && !o->doubt.reported) {
        o->doubt.reported = true;
        log_warn(
            "islands: etcd holds merge %lld of run %s, which no island at work has (this one has merge %lld): it is "
            "not believed, and training goes on, unmerged",
            (long long)r->merge, o->core.config->outer.run, (long long)o->core.merge);
    }
    if (since > most && is_best(o)) {
        log_warn("islands: nobody has brought merge %lld: going on from merge %lld", (long long)r->merge,
                 (long long)o->core.merge);
        make_head(o, p);
        o->doubt.since = o->core.now;
    }
    return true;
}

static status give_up_joining(const islands *o)
{
    if (outer_must_end(&o->core))
        return status_fail(STATUS_FAILED, "islands: this island is asked to stop before it has joined the others");
    return status_fail(STATUS_FAILED,
                       "islands: this island's model is that after merge %lld, the last one was %lld, and no island "
                       "that has it is at work: start one that has, or choose another outer.run",
                       (long long)o->core.merge, (long long)o->core.roster.merge);
}

/* Until this island's state is that after the last merge. */
status outer_join_all(islands *o, islands_position *p)
{
    outer *c = &o->core;
    TRY(outer_look(c));
    double until = c->now + c->config->outer.timeout, end = until + c->config->outer.timeout;
    while (!outer_is_at_head(c)) {
        if (outer_must_end(c) || (c->now > end && c->roster.reached && find_donor(o) < 0))
            return give_up_joining(o);
        if (c->roster.merge < c->merge && roster_is_in_line(&c->roster, c->merge, c->history))
            make_head(o, p);
        else if (find_donor(o) >= 0)
            TRY(outer_catch_up(o, p, false));
        else
            go_back(o, p, until);
        outer_nap(c);
        TRY(outer_look(c));
    }
    return STATUS_OK;
}
