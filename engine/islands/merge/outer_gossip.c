/* Gossip (NoLoCo, 2506.10911): an exchange is among a few islands, drawn anew every time, and waits for no others.
 * After outer.every steps an island offers its weights, and fetches those of its group (rule.h). A partner that leaves,
 * moves on, or does not come within outer.timeout is left out. An offer stays available during training until all
 * partners confirm that they hold it. The model is the mean of the islands: the last exchange of a run, after
 * train.steps, is among all of them and makes the mean. */
#include <stdlib.h>
#include <string.h>

#include "engine/islands/merge/outer_island_internal.h"
#include "memory/clock.h"
#include "memory/log.h"

/* Numbers an exchange by step and fragment, so that islands at the same step agree without communication. */
static int64_t exchange_number(int64_t step, int fragment)
{
    enum { FRAGMENTS = 64 };
    return step * FRAGMENTS + fragment;
}

static bool at_the_end(const islands *o, int64_t step)
{
    return step == o->core.config->train.steps;
}

/* ---- exchanging -------------------------------------------------------------------------------------------------- */

static void leave_out(islands *o, int slot, const char *why)
{
    o->gossip.partners &= ~(1ull << slot);
    o->core.counts.missed++;
    log_info("islands: the exchange after step %lld goes without %s: it %s", (long long)o->offered.step,
             o->gossip.name[slot], why);
}

/* Leaves out partners with weights that cannot arrive any more. `bad`: slots that some rank refused. */
static void drop_partners(islands *o, uint64_t here, uint64_t bad)
{
    const roster *r = &o->core.roster;
    for (int s = 0; s < o->core.config->outer.slots; s++) {
        const roster_member *m = &r->member[s];
        if (!((o->gossip.partners & ~here) >> s & 1))
            continue;
        if (bad >> s & 1)
            leave_out(o, s, "offers what cannot be used");
        else if (!m->ready)
            leave_out(o, s, "is gone");
        else if (m->offers && m->offer_merge > o->gossip.number && m->fragment != o->core.fragment)
            leave_out(o, s, "has gone on");
        else if (outer_must_end(&o->core))
            leave_out(o, s, "did not come before this island was asked to stop");
        else if (o->core.now > o->offered.deadline)
            leave_out(o, s, "did not come within outer.timeout");
    }
}

/* Returns partners that may still fetch this island's offer: they have not said that they hold it. */
static uint64_t still_fetching(const islands *o)
{
    uint64_t waiting = 0;
    for (int s = 0; s < o->core.config->outer.slots; s++) {
        const roster_member *m = &o->core.roster.member[s];
        bool holds =
            m->have_merge > o->gossip.number || (m->have_merge == o->gossip.number && m->have >> o->core.slot & 1);
        if (o->gossip.owed >> s & 1 && m->ready && m->offers && m->offer_merge == o->gossip.number && !holds)
            waiting |= 1ull << s;
    }
    return waiting;
}

/* Waits until all partners have fetched, or outer.timeout, before the offer ends. */
static status let_them_fetch(islands *o)
{
    double began = clock_seconds(), until = o->core.now + o->core.config->outer.timeout;
    TRY(outer_look(&o->core));
    while (o->gossip.owed && o->core.now < until && o->core.roster.reached && still_fetching(o) &&
           !outer_must_end(&o->core)) {
        outer_nap(&o->core);
        TRY(outer_look(&o->core));
    }
    if (o->gossip.owed)
        o->core.counts.waited += clock_seconds() - began;
    o->gossip.owed = 0;
    return STATUS_OK;
}

static void exchange_weights(islands *o, const islands_position *p)
{
    outer_hide_state(&o->core);
    outer_merge_weights(o, at_the_end(o, o->offered.step));
    for (int s = 0; s < o->core.config->outer.slots; s++)
        if (o->gossip.partners >> s & 1)
            outer_note_norm(&o->core, s);
    o->core.counts.merges += o->gossip.partners != 0;
    o->core.merge = o->gossip.number;
    o->merged_at[o->core.fragment] = o->offered.step;
    o->stage = OUTER_MERGED;
    outer_announce(&o->core, o->offered.step, p->updates - (p->step - o->offered.step));
    o->gossip.owed = o->gossip.partners;
    if (outer_first_rank(&o->core))
        outer_report_held(&o->core, o->gossip.number, o->gossip.partners | 1ull << o->core.slot);
    char names[256] = "";
    for (int s = 0; s < o->core.config->outer.slots; s++)
        if (o->gossip.partners >> s & 1)
            outer_add_name(names, sizeof names, o->gossip.name[s]);
    log_info("islands: exchange after step %lld with %s; disagreement %.3g", (long long)o->offered.step,
             *names ? names : "nobody", o->core.counts.disagreement);
}

static status push_round(islands *o, islands_position *p)
{
    TRY(outer_look(&o->core));
    if (o->stage != OUTER_OFFERED)
        return STATUS_OK;
    uint64_t here = outer_fetch_offers(&o->core, o->gossip.number, o->gossip.partners);
    drop_partners(o, here, outer_refused(&o->core));
    if ((here & o->gossip.partners) == o->gossip.partners)
        exchange_weights(o, p);
    return STATUS_OK;
}

static void finish_merge(islands *o, const islands_position *p)
{
    (void)p;
    if (at_the_end(o, o->offered.step))
        outer_give_reference(o, o->core.fragment);
    else
        outer_apply_merge(o, o->core.fragment);
}

static status begin_round(islands *o, islands_position *p, int fragment)
{
    outer *c = &o->core;
    bool last = at_the_end(o, p->step);
    int64_t number = exchange_number(p->step, fragment);
    TRY(let_them_fetch(o));
    if (!c->roster.reached) { /* the asking thread has reported it */
        c->counts.missed++;
        return STATUS_OK;
    }
    uint64_t ready = roster_ready(&c->roster);
    outer_offer(o, p, fragment, number);
    if (o->stage != OUTER_OFFERED)
        return STATUS_OK;
    if (last)
        o->offered.apply_at = p->step;
    o->gossip.number = number;
    o->gossip.partners =
        last ? ready : rule_group(ready, c->slot, c->config->outer.group, (uint64_t)c->config->train.seed, number);
    o->gossip.partners &= ~(1ull << c->slot);
    for (int s = 0; s < c->config->outer.slots; s++)
        if (o->gossip.partners >> s & 1)
            memcpy(o->gossip.name[s], c->roster.member[s].name, ROSTER_NAME);
    return STATUS_OK;
}

static status leave_round(islands *o, islands_position *p)
{
    (void)p;
    return let_them_fetch(o);
}

/* Exchanges every fragment with all islands. */
static status end_round(islands *o, islands_position *p)
{
    TRY(outer_finish(o, p));
    for (int f = 0; f < o->core.config->outer.fragments; f++) {
        TRY(begin_round(o, p, f));
        TRY(outer_finish(o, p));
    }
    return let_them_fetch(o);
}

/* Takes over the state of a more advanced island, if this one begins or has missed more than one exchange. */
static status join_round(islands *o, islands_position *p)
{
    int64_t ahead = exchange_number(p->step + o->core.config->outer.every, 0);
    TRY(outer_look(&o->core));
    for (int s = 0; s < o->core.config->outer.slots; s++)
        if (s != o->core.slot && o->core.roster.member[s].ready &&
            o->core.roster.member[s].merge > (p->step ? ahead : 0))
            return outer_catch_up(o, p, false);
    return STATUS_OK;
}

const outer_topology outer_topology_gossip = {join_round,   begin_round, push_round,
                                              finish_merge, leave_round, end_round};
