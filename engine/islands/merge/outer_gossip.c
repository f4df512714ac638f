/* Gossip (NoLoCo, 2506.10911): an exchange is between a few islands, drawn anew every time, and waits for nobody else.
 *
 * After outer.every steps an island offers its weights, and takes those of its group (groups.h,
 * rule.h). A partner that has gone, gone on, or does not come within outer.timeout is left out. What is offered
 * stays to be had while training goes on, until the partners say that they hold it. Islands differ, and *the* model is
 * their mean: the last exchange of a run, after train.steps, is with all of them, and its result is the mean itself. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/islands/merge/groups.h"
#include "engine/islands/merge/outer_internal.h"
#include "memory/clock.h"
#include "memory/log.h"

static bool at_the_end(const islands *o, int64_t step)
{
    return step == o->config->train.steps;
}

/* ---- offering ---------------------------------------------------------------------------------------------------- */

static void offer(islands *o, const islands_position *p, int fragment)
{
    int64_t number = outer_gossip_number(p->step, fragment);
    uint64_t ready = roster_ready(&o->roster);
    outer_serve_change(o, -1, -1, 0);
    for (int s = 0; s < o->config->outer.slots; s++)
        outer_drop_fetch(o, s);
    o->fragment = fragment;
    if (!outer_encode(o, fragment)) {
        o->counts.refused += outer_first_rank(o);
        if (outer_first_rank(o))
            log_warn("islands: this island's weights are not finite at step %lld: they are not offered",
                     (long long)p->step);
        return;
    }
    o->stage = OUTER_OFFERED;
    o->gossip.number = number;
    o->offered.step = p->step;
    o->offered.settle_at = p->step + (at_the_end(o, p->step) ? 0 : o->config->outer.delay);
    o->offered.deadline = o->now + o->config->outer.timeout;
    o->gossip.partners = at_the_end(o, p->step) ? ready
                                                : groups_draw(ready, o->slot, o->config->outer.group,
                                                              (uint64_t)o->config->train.seed, number);
    o->gossip.partners &= ~(1ull << o->slot);
    for (int s = 0; s < o->config->outer.slots; s++)
        if (o->gossip.partners >> s & 1)
            memcpy(o->gossip.name[s], o->roster.member[s].name, ROSTER_NAME);
    outer_serve_change(o, number, o->offered.step, fragment);
    (void)outer_everywhere(o, 0); /* every rank serves what is now offered */
    if (outer_first_rank(o))
        membership_set_offer(o->membership,
                             json_pack("{s:I, s:I, s:I, s:I, s:i, s:b}", "merge", (json_int_t)number, "offer",
                                       (json_int_t)o->offered.step, "tokens", (json_int_t)0, "updates",
                                       (json_int_t)p->updates, "fragment", fragment, "parting", false));
}

/* ---- exchanging -------------------------------------------------------------------------------------------------- */

static void leave_out(islands *o, int slot, const char *why)
{
    o->gossip.partners &= ~(1ull << slot);
    o->counts.missed++;
    log_info("islands: the exchange after step %lld goes without %s: it %s", (long long)o->offered.step,
             o->gossip.name[slot], why);
}

/* Partners whose weights are not here, and will not come any more. `bad`: what some rank refused of theirs. */
static void drop_partners(islands *o, uint64_t here, uint64_t bad)
{
    const roster *r = &o->roster;
    for (int s = 0; s < o->config->outer.slots; s++) {
        const roster_member *m = &r->member[s];
        if (!((o->gossip.partners & ~here) >> s & 1))
            continue;
        if (bad >> s & 1)
            leave_out(o, s, "offers what cannot be used");
        else if (!m->ready)
            leave_out(o, s, "is gone");
        else if (m->offers && m->offer_merge > o->gossip.number && m->fragment != o->fragment)
            leave_out(o, s, "has gone on");
        else if (outer_must_end(o))
            leave_out(o, s, "did not come before this island was asked to stop");
        else if (o->now > o->offered.deadline)
            leave_out(o, s, "did not come within outer.timeout");
    }
}

static void say_exchanged(const islands *o)
{
    char names[256] = "";
    for (int s = 0; s < o->config->outer.slots; s++) {
        size_t used = strlen(names);
        if (o->gossip.partners >> s & 1)
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", o->gossip.name[s]);
    }
    log_info("islands: exchange after step %lld with %s; disagreement %.3g", (long long)o->offered.step,
             *names ? names : "nobody", o->counts.disagreement);
}

/* Partners that have not said yet that they hold what this island offered, and still may fetch it. */
static uint64_t still_fetching(const islands *o)
{
    uint64_t waiting = 0;
    for (int s = 0; s < o->config->outer.slots; s++) {
        const roster_member *m = &o->roster.member[s];
        bool holds = m->have_merge > o->gossip.number || (m->have_merge == o->gossip.number && m->have >> o->slot & 1);
        if (o->gossip.owed >> s & 1 && m->ready && m->offers && m->offer_merge == o->gossip.number && !holds)
            waiting |= 1ull << s;
    }
    return waiting;
}

/* Before what is offered goes. */
static status let_them_fetch(islands *o)
{
    double began = clock_seconds(), until = o->now + o->config->outer.timeout;
    TRY(outer_look(o));
    while (o->gossip.owed && o->now < until && o->roster.reached && still_fetching(o) && !outer_must_end(o)) {
        outer_nap(o);
        TRY(outer_look(o));
    }
    if (o->gossip.owed)
        o->counts.waited += clock_seconds() - began;
    o->gossip.owed = 0;
    return STATUS_OK;
}

static void say_held(const islands *o)
{
    json_t *slots = json_array();
    for (int s = 0; s < o->config->outer.slots; s++)
        if ((o->gossip.partners | 1ull << o->slot) >> s & 1)
            json_array_append_new(slots, json_integer(s));
    membership_set_have(o->membership, json_pack("{s:I, s:o}", "merge", (json_int_t)o->gossip.number, "slots", slots));
}

static void exchange(islands *o, const islands_position *p)
{
    transport_lock(o->transport);
    o->serves.state = -1;
    transport_unlock(o->transport);
    outer_merge_weights(o, at_the_end(o, o->offered.step));
    for (int s = 0; s < o->config->outer.slots; s++)
        if (o->gossip.partners >> s & 1)
            outer_note_norm(o, o->fragment, s);
    o->counts.merges += o->gossip.partners != 0;
    o->merge = o->gossip.number;
    o->merged_at[o->fragment] = o->offered.step;
    o->stage = OUTER_MERGED;
    outer_announce(o, o->offered.step, p->updates - (p->step - o->offered.step));
    o->gossip.owed = o->gossip.partners;
    if (outer_first_rank(o))
        say_held(o);
    say_exchanged(o);
}

static status push(islands *o, const islands_position *p)
{
    TRY(outer_look(o));
    uint64_t here = outer_everywhere(o, outer_fetch_changes(o, o->gossip.number, o->gossip.partners));
    drop_partners(o, here, outer_refused(o));
    if ((here & o->gossip.partners) == o->gossip.partners)
        exchange(o, p);
    return STATUS_OK;
}

static status wait_for_partners(islands *o, const islands_position *p)
{
    double began = clock_seconds();
    status s = STATUS_OK;
    while (s == STATUS_OK && o->stage == OUTER_OFFERED) {
        s = push(o, p);
        if (o->stage == OUTER_OFFERED)
            outer_nap(o);
    }
    o->counts.waited += clock_seconds() - began;
    return s;
}

static void settle(islands *o)
{
    if (at_the_end(o, o->offered.step))
        outer_give_reference(o, o->fragment);
    else
        outer_settle(o, o->fragment);
    o->stage = OUTER_IDLE;
}

static status finish(islands *o, const islands_position *p)
{
    if (o->stage == OUTER_OFFERED)
        TRY(wait_for_partners(o, p));
    if (o->stage == OUTER_MERGED)
        settle(o);
    return STATUS_OK;
}

static status begin(islands *o, const islands_position *p, int fragment)
{
    TRY(let_them_fetch(o));
    if (o->roster.reached) /* else said by the thread that asks */
        offer(o, p, fragment);
    else
        o->counts.missed++;
    return STATUS_OK;
}

/* Every fragment with every island. */
static status meet_all(islands *o, const islands_position *p)
{
    TRY(finish(o, p));
    for (int f = 0; f < o->config->outer.fragments; f++) {
        TRY(begin(o, p, f));
        TRY(finish(o, p));
    }
    return let_them_fetch(o);
}

status outer_gossip_step(islands *o, islands_position *p, int fragment)
{
    if (at_the_end(o, p->step))
        return meet_all(o, p);
    if (o->stage == OUTER_OFFERED)
        TRY(push(o, p));
    if (o->stage != OUTER_IDLE && p->step >= o->offered.settle_at)
        TRY(finish(o, p));
    if (fragment >= 0 && o->stage == OUTER_IDLE)
        TRY(begin(o, p, fragment));
    return o->stage != OUTER_IDLE && p->step >= o->offered.settle_at ? finish(o, p) : STATUS_OK;
}

status outer_gossip_save(islands *o, islands_position *p)
{
    return o->stage == OUTER_OFFERED ? wait_for_partners(o, p) : STATUS_OK;
}

status outer_gossip_leave(islands *o, islands_position *p)
{
    TRY(outer_gossip_save(o, p));
    return let_them_fetch(o);
}

double islands_disagreement(int64_t *step, const islands *o)
{
    *step = o->counts.disagreement_step;
    return o->counts.disagreement;
}
