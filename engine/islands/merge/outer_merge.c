/* A merge as it goes on between islands: offering, fetching, reporting, deciding, taking the result. All ranks see the
 * same roster, broadcast by rank 0, and so take the same decisions. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/config/batch_ramp.h"
#include "engine/islands/merge/outer_internal.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/units.h"

static const double LATE = 0.1; /* of outer.timeout: who is waited for longer is named */
static const double GRACE = 5;  /* seconds after the deadline in which another island may still decide */

/* ---- offering ---------------------------------------------------------------------------------------------------- */

static int64_t tokens_since(const islands *o, const islands_position *p)
{
    return batch_ramp_total(o->config, o->merged_at[o->fragment], p->step) * o->config->train.sequence;
}

/* Of an offer: not another's, nor that of a former process of this island. */
static int64_t draw_id(const islands *o)
{
    uint64_t id;
    MUST(getrandom(&id, sizeof id, 0) == sizeof id, "the system has no random numbers");
    comm_broadcast_bytes(comm_world(o->world), &id, sizeof id, 0);
    return (int64_t)(id >> 1);
}

void outer_offer(islands *o, const islands_position *p, int fragment)
{
    outer_serve_change(o, -1, -1, 0);
    for (int s = 0; s < o->config->outer.slots; s++)
        outer_drop_fetch(o, s);
    o->fragment = fragment;
    if (!outer_encode(o, fragment)) {
        o->counts.refused += outer_first_rank(o);
        if (outer_first_rank(o))
            log_warn("islands: this island's change is not finite at step %lld: it is not offered", (long long)p->step);
        return;
    }
    o->stage = OUTER_OFFERED;
    o->offered.step = p->step;
    o->offered.settle_at = p->step + o->config->outer.delay;
    o->offered.deadline = o->now + o->config->outer.timeout;
    o->all.reported = 0;
    o->all.named_late = 0;
    o->all.whole_since = 0;
    o->offered.id = draw_id(o);
    outer_serve_change(o, o->merge + 1, o->offered.step, fragment);
    (void)outer_everywhere(o, 0); /* every rank serves what is now offered */
    if (!outer_first_rank(o))
        return;
    membership_set_have(o->membership, NULL);
    json_t *words = json_pack("{s:I, s:I, s:I, s:I, s:I, s:i, s:b}", "merge", (json_int_t)(o->merge + 1), "offer",
                              (json_int_t)o->offered.step, "id", (json_int_t)o->offered.id, "tokens",
                              (json_int_t)tokens_since(o, p), "updates", (json_int_t)p->updates, "fragment", fragment,
                              "parting", o->parting);
    json_object_set_new(words, "history", json_integer(o->all.history));
    if (o->all.undo.wanted && outer_undo_holds(o)) /* and not of a merge that others have gone beyond */
        json_object_set_new(words, "undo", json_true());
    membership_set_offer(o->membership, words);
}

/* ---- reporting and deciding -------------------------------------------------------------------------------------- */

static void report(islands *o, uint64_t held)
{
    if (held == o->all.reported)
        return;
    o->all.reported = held;
    json_t *slots = json_array();
    for (int s = 0; s < ROSTER_SLOTS; s++)
        if (held >> s & 1)
            json_array_append_new(slots, json_integer(s));
    membership_set_have(o->membership, json_pack("{s:I, s:o}", "merge", (json_int_t)(o->merge + 1), "slots", slots));
}

static void decide(islands *o, uint64_t takes)
{
    const roster *r = &o->roster;
    json_t *parts = json_array();
    int64_t revisions[ROSTER_SLOTS] = {0}, step = 0, updates = 0;
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        const roster_member *m = &r->member[s];
        if (!(takes >> s & 1))
            continue;
        revisions[s] = m->offer_revision;
        if (m->offer > step) {
            step = m->offer;
            updates = m->updates;
        }
        json_array_append_new(parts, json_pack("{s:i, s:I, s:I, s:s}", "slot", s, "offer", (json_int_t)m->offer,
                                               "tokens", (json_int_t)m->tokens, "name", m->name));
    }
    json_t *head = json_pack("{s:I, s:I, s:I, s:o}", "merge", (json_int_t)(o->merge + 1), "step", (json_int_t)step,
                             "updates", (json_int_t)updates, "parts", parts);
    outer_name_history(o, head, r->history > 0);
    if (outer_undo_wins(o, takes))
        json_object_set_new(head, "undoes", json_integer(o->merge));
    membership_decide(o->membership, head, r->revision, takes, revisions);
}

static bool everybody_leaves(const roster *r, uint64_t offers)
{
    bool all = offers == roster_ready(r);
    for (int s = 0; s < ROSTER_SLOTS; s++)
        all &= !(offers >> s & 1) || r->member[s].parting;
    return all;
}

void outer_withdraw(islands *o, const char *why)
{
    o->stage = OUTER_WITHDRAWING;
    log_info("islands: merge %lld is given up: %s; the change stays for the next one", (long long)(o->merge + 1), why);
    if (!outer_first_rank(o))
        return;
    membership_set_have(o->membership, NULL);
    o->offered.withdrawn = membership_set_offer(o->membership, NULL);
}

void outer_end_withdrawal(islands *o)
{
    int64_t settled = outer_first_rank(o) && o->roster.reached ? o->roster.settled - o->offered.withdrawn : -1;
    if (outer_everywhere(o, !outer_first_rank(o) || settled >= 0)) {
        o->stage = OUTER_IDLE; /* nobody can take it any more */
        o->counts.missed++;
    }
}

/* Whom this merge waits for, once each. An island that lacks the change of another one is not to blame for it at
 * once. */
static void say_late(islands *o, uint64_t offers, uint64_t held, uint64_t refused)
{
    const roster *r = &o->roster;
    double late = LATE * o->config->outer.timeout;
    uint64_t silent = roster_ready(r) & ~offers, coming = offers & ~(held | refused);
    o->all.whole_since = silent | coming ? 0 : o->all.whole_since > 0 ? o->all.whole_since : o->now;
    if (o->all.stalled_since <= 0 || !r->reached || o->now - o->all.stalled_since < late)
        return;
    bool others_lack = o->all.whole_since > 0 && o->now - o->all.whole_since >= late;
    for (int s = 0; s < o->config->outer.slots; s++) {
        const roster_member *m = &r->member[s];
        bool lacks = others_lack && (offers >> s & 1) && m->have_merge != o->merge + 1;
        const char *why = silent >> s & 1   ? "it offers no change yet"
                          : coming >> s & 1 ? "its change has not arrived"
                          : lacks           ? "it lacks somebody's change"
                                            : NULL;
        if (!why || s == o->slot || o->all.named_late >> s & 1)
            continue;
        o->all.named_late |= 1ull << s;
        log_info("islands: merge %lld waits for %s (slot %d): %s, after %.1f s", (long long)(o->merge + 1), m->name, s,
                 why, o->now - o->all.stalled_since);
    }
}

/* Islands that take the model would not get it whole if merges went by meanwhile: these wait, for outer.timeout at
 * most. */
static bool is_held_up(islands *o)
{
    double most = o->config->outer.timeout;
    uint64_t taking = roster_taking(&o->roster) & ~(1ull << o->slot);
    o->all.blocked_since = !taking ? 0 : o->all.blocked_since > 0 ? o->all.blocked_since : o->now;
    bool held_up = taking && o->now < o->all.blocked_since + most;
    if (held_up && o->offered.deadline < o->all.blocked_since + most)
        o->offered.deadline = o->all.blocked_since + most;
    for (int s = 0; s < o->config->outer.slots && held_up; s++)
        if ((taking & ~o->all.named_late) >> s & 1) {
            o->all.named_late |= 1ull << s;
            log_info("islands: merge %lld waits for %s (slot %d): it is taking the model", (long long)(o->merge + 1),
                     o->roster.member[s].name, s);
        }
    return held_up;
}

static void push_offer(islands *o)
{
    const roster *r = &o->roster;
    uint64_t offers = roster_offers(r, o->merge + 1),
             held = outer_everywhere(o, outer_fetch_changes(o, o->merge + 1, ~0ull)), ready = roster_ready(r);
    uint64_t refused = outer_refused(o);
    bool held_up = is_held_up(o), late = o->now > o->offered.deadline, all = false;
    say_late(o, offers, held, refused);
    if (everybody_leaves(r, offers) || outer_must_end(o)) {
        outer_withdraw(o, outer_must_end(o) ? "this island is asked to stop" : "everybody leaves");
        return;
    }
    if (outer_first_rank(o) && (((held | refused) & ready) == ready || late))
        report(o, held);
    uint64_t takes = roster_takes(&all, r, o->merge + 1, o->config->outer.min_islands, refused);
    if (outer_first_rank(o) && r->reached && takes && (all || late) && !held_up)
        decide(o, takes);
    if (o->now > o->offered.deadline + GRACE) {
        char why[96];
        snprintf(why, sizeof why, "not agreed on within outer.timeout (%d of %d islands offer a change%s)",
                 __builtin_popcountll(offers), __builtin_popcountll(ready), r->reached ? "" : ", etcd is away");
        outer_withdraw(o, why);
    }
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

static const roster_part *own_part(const islands *o)
{
    const roster *r = &o->roster;
    for (int i = 0; i < r->parts; i++)
        if (r->part[i].slot == o->slot && r->part[i].offer == o->offered.step)
            return &r->part[i];
    return NULL;
}

static bool all_here(const islands *o)
{
    const roster *r = &o->roster;
    bool here = true;
    for (int i = 0; i < r->parts; i++) {
        int s = r->part[i].slot;
        here &= s == o->slot ? r->part[i].offer == o->offered.step
                             : o->fetches.got[s].here && o->fetches.got[s].offer == r->part[i].offer;
    }
    return here && r->parts > 0;
}

/* A list of names, with commas between. */
static void add_name(char *names, size_t bytes, const char *name)
{
    size_t used = strlen(names);
    snprintf(names + used, bytes - used, "%s%s", used ? ", " : "", name);
}

static void say_merged(const islands *o, bool took_part)
{
    char with[256] = "", without[256] = "";
    const roster *r = &o->roster;
    uint64_t left_out = roster_ready(r) & ~(1ull << o->slot);
    for (int i = 0; i < r->parts; i++) {
        add_name(with, sizeof with, *r->part[i].name ? r->part[i].name : "one without a name");
        left_out &= ~(1ull << r->part[i].slot);
    }
    for (int s = 0; s < o->config->outer.slots; s++)
        if (left_out >> s & 1)
            add_name(without, sizeof without, r->member[s].name);
    log_info("islands: merge number %lld, of the changes of %d island%s: %s%s%s%s", (long long)r->merge, r->parts,
             r->parts == 1 ? "" : "s", with, left_out ? "; without " : "", without,
             took_part ? "" : "; without this one, whose change goes with the next");
}

/* The head has moved by one, and everything it is made of is here. */
static status take_merge(islands *o)
{
    bool took_part = own_part(o) != NULL;
    transport_lock(o->transport);
    o->serves.state = -1;
    transport_unlock(o->transport);
    outer_undo_keep(o);
    outer_merge_changes(o, took_part);
    TRY(outer_check_finite(o, o->memory.reference, "the merged reference"));
    o->merge = o->roster.merge;
    o->all.history = o->roster.history;
    outer_announce(o, o->roster.step, o->roster.updates);
    if (took_part) {
        o->counts.merges++;
        o->merged_at[o->fragment] = o->offered.step;
    } else {
        o->counts.missed++;
        outer_undo_taken(o); /* by the weights, at once */
    }
    say_merged(o, took_part);
    o->stage = took_part ? OUTER_MERGED : OUTER_IDLE;
    if (!outer_first_rank(o))
        return STATUS_OK;
    membership_set_have(o->membership, NULL);
    membership_set_offer(o->membership, NULL);
    return STATUS_OK;
}

/* What is offered waits for a head that can be believed, and no longer than for others. */
static void hold_out(islands *o)
{
    if (o->stage == OUTER_OFFERED && (o->now > o->offered.deadline + GRACE || outer_must_end(o)))
        outer_withdraw(o, "etcd holds a merge that no island at work has");
    if (o->stage == OUTER_WITHDRAWING)
        outer_end_withdrawal(o);
}

static status push(islands *o, islands_position *p)
{
    TRY(outer_look(o));
    const roster *r = &o->roster;
    bool doubted = outer_doubts_head(o, p);
    bool in_line = roster_is_in_line(r, o->merge, o->all.history);
    if (r->merge > o->merge || !in_line) {
        bool next = in_line && r->merge == o->merge + 1, undone = next && r->undoes > 0 && r->undoes == o->merge;
        bool here = next && !r->undoes && o->stage != OUTER_IDLE && all_here(o);
        if (outer_everywhere(o, here))
            return take_merge(o);
        if (undone && outer_undo_holds(o)) {
            outer_undo_take(o);
            return STATUS_OK;
        }
        if (doubted) {
            hold_out(o);
            return STATUS_OK;
        }
        o->counts.missed += r->merge > o->merge ? r->merge - o->merge : 1;
        if (outer_first_rank(o)) {
            membership_set_have(o->membership, NULL);
            membership_set_offer(o->membership, NULL);
        }
        o->stage = OUTER_IDLE;
        TRY(outer_catch_up(o, p, true));
        if (undone) /* what was learnt since is no change of the model before */
            outer_undo_forget(o);
        return STATUS_OK;
    }
    if (o->stage == OUTER_OFFERED)
        push_offer(o);
    if (o->stage == OUTER_WITHDRAWING)
        outer_end_withdrawal(o);
    return STATUS_OK;
}

static void settle(islands *o)
{
    outer_settle(o, o->fragment);
    outer_undo_taken(o);
    o->stage = OUTER_IDLE;
}

/* Until what is offered is merged, or is not offered any more. Without etcd nobody knows, and training goes on. */
static status wait_for_merge(islands *o, islands_position *p)
{
    double began = clock_seconds();
    status s = STATUS_OK;
    o->all.stalled_since = o->now;
    while (s == STATUS_OK && (o->stage == OUTER_OFFERED || (o->stage == OUTER_WITHDRAWING && o->roster.reached))) {
        s = push(o, p);
        outer_nap(o);
    }
    o->all.stalled_since = 0;
    o->counts.waited += clock_seconds() - began;
    return s;
}

static status begin(islands *o, islands_position *p, int fragment)
{
    TRY(outer_look(o));
    if (!outer_is_at_head(o)) /* merged without this island */
        TRY(push(o, p));
    if (!o->roster.reached) { /* said by the thread that asks */
        o->counts.missed++;
        return STATUS_OK;
    }
    bool in_line = roster_is_in_line(&o->roster, o->merge, o->all.history);
    if (o->stage == OUTER_IDLE && in_line && o->roster.merge <= o->merge) /* one that is behind is overtaken */
        outer_offer(o, p, fragment);
    return STATUS_OK;
}

status outer_merge_step(islands *o, islands_position *p, int fragment)
{
    if (o->stage == OUTER_MERGED && p->step >= o->offered.settle_at)
        settle(o);
    if (o->stage != OUTER_IDLE && o->stage != OUTER_MERGED)
        TRY(push(o, p));
    if (fragment >= 0 && o->stage == OUTER_IDLE)
        TRY(begin(o, p, fragment));
    if (o->stage == OUTER_OFFERED && p->step >= o->offered.settle_at)
        TRY(wait_for_merge(o, p));
    if (o->stage == OUTER_MERGED && p->step >= o->offered.settle_at)
        settle(o);
    return STATUS_OK;
}

status outer_merge_save(islands *o, islands_position *p)
{
    return o->stage == OUTER_OFFERED ? wait_for_merge(o, p) : STATUS_OK;
}

status outer_merge_leave(islands *o, islands_position *p)
{
    TRY(outer_merge_save(o, p));
    if (o->stage == OUTER_MERGED)
        return STATUS_OK; /* the checkpoint knows what is left to do */
    uint64_t others = roster_ready(&o->roster) & ~(1ull << o->slot);
    bool new = p->step > o->merged_at[0] && o->config->outer.fragments == 1;
    if (!new || !others || o->stage != OUTER_IDLE)
        return STATUS_OK;
    log_info("islands: handing over the change since the last merge before this island leaves");
    o->parting = true;
    TRY(begin(o, p, 0));
    o->offered.settle_at = p->step;
    TRY(wait_for_merge(o, p));
    if (o->stage == OUTER_MERGED)
        settle(o);
    return STATUS_OK;
}
