/* A merge between islands: offering, fetching, reporting, deciding, taking the result. All ranks see the same roster,
 * broadcast by rank 0, and so take the same decisions. */

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/islands/merge/outer_island_internal.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/units.h"

/* outer.undo: islands keep the state before the last merge, and go back to it when more than half of the islands in the
 * next merge have seen their loss jump at the first step after it.
 *
 * An island votes with its next offer. The decision is then no merge of changes: `head` goes on by one and names the
 * merge that it undoes, so that all islands undo alike, and a late one does not mistake it for a merge. Changes since
 * that merge began with bad weights, and are dropped too. The incident names all islands in the merge, since it is
 * unknown which one spoiled it. */

/* Keeps the state that the roster's merge may be undone to. */
static void outer_undo_keep(islands *o)
{
    if (!o->core.memory.reference_before)
        return;
    const roster *r = &o->core.roster;
    outer_copy(&o->core, o->core.memory.reference_before, o->core.memory.reference);
    outer_copy(&o->core, o->core.memory.momentum_before, o->core.memory.momentum);
    o->undo.merge = r->merge;
    o->undo.taken = -1;
    o->undo.wanted = false;
    *o->undo.of = 0;
    for (int i = 0; i < r->parts; i++)
        outer_add_name(o->undo.of, sizeof o->undo.of, r->part[i].name);
}

/* Notes that the weights have taken the merge. */
static void outer_undo_taken(islands *o)
{
    if (o->undo.merge == o->core.merge)
        o->undo.taken = o->core.step;
}

void islands_found_spike(islands *o, int64_t step)
{
    if (!outer_undo_holds(o) || o->undo.wanted || step != o->undo.taken + 1)
        return;
    o->undo.wanted = true;
    if (outer_first_rank(&o->core))
        log_warn("islands: the loss jumps after merge %lld, of the changes of %s: this island wants it undone",
                 (long long)o->core.merge, o->undo.of);
}

/* True if more than half of the slots want the last merge undone rather than a merge of their changes. */
static bool outer_undo_wins(const islands *o, uint64_t takes)
{
    int votes = 0;
    for (int s = 0; s < o->core.config->outer.slots; s++)
        votes += takes >> s & 1 && o->core.roster.member[s].undo;
    return o->core.memory.reference_before && 2 * votes > __builtin_popcountll(takes);
}

/* Drops this island's change since the reference, and the error feedback of its sent changes. */
static void outer_undo_forget(islands *o)
{
    if (o->core.memory.error)
        memset(o->core.memory.error, 0, (size_t)o->core.units.elements * sizeof *o->core.memory.error);
    outer_give_reference(o, 0);
    o->merged_at[0] = o->core.step;
}

/* Undoes this island's last merge, as the roster's head says: restores reference, momentum and weights. */
static void outer_undo_take(islands *o)
{
    int64_t merge = o->undo.merge;
    outer_hide_state(&o->core);
    outer_copy(&o->core, o->core.memory.reference, o->core.memory.reference_before);
    outer_copy(&o->core, o->core.memory.momentum, o->core.memory.momentum_before);
    outer_undo_forget(o);
    o->undo.merge = 0;
    o->undo.wanted = false;
    o->core.merge = o->core.roster.merge;
    o->core.history = o->core.roster.history;
    o->stage = OUTER_IDLE;
    o->core.counts.undone++;
    outer_announce(&o->core, o->core.roster.step, o->core.roster.updates);
    outer_clear_offer(&o->core);
    if (outer_first_rank(&o->core))
        outer_say_incident(
            &o->core,
            must_format("islands: merge %lld, of the changes of %s, is undone by merge %lld: more than half of the "
                        "islands saw their loss jump; the model is that before it, without what was learnt since",
                        (long long)merge, o->undo.of, (long long)o->core.merge),
            1);
}

static const double LATE = 0.1; /* fraction of outer.timeout after which a late island is named */
static const double GRACE = 5;  /* seconds after the deadline during which another island may still decide */

/* ---- taking over ------------------------------------------------------------------------------------------------- */

/* Returns an island with the state after the last merge, or, without a merge common to all, with the latest state
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

/* Fetches all of one kind of state, fragment by fragment. *done false: the donor has gone on, or away. */
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
    *done = *done && o->core.roster.member[donor].history == began; /* the same state still has this number */
    if (*done) {
        o->core.history = began;
        log_info("islands: took the model after merge %lld (step %lld) from %s", (long long)*merge, (long long)*step,
                 o->core.roster.member[donor].name);
    }
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

/* rest = weights - reference, for all units. */
static void keep_change(islands *o)
{
    const outer_memory *memory = &o->core.memory;
    const outer_units *all = &o->core.units;
    for (int u = 0; u < all->count; u++) {
        outer_move_gather(o->move, memory->values, u);
        int64_t at = all->mine_of[u] < 0 ? -1 : all->mine[all->mine_of[u]].at;
        for (int64_t i = 0; at >= 0 && i < all->list[u].elements; i++)
            memory->rest[at + i] = memory->values[i] - memory->reference[at + i];
    }
}

status outer_catch_up(islands *o, islands_position *p, bool keep)
{
    outer *c = &o->core;
    int64_t merge = -1, step = 0, updates = 0;
    double until = c->now + 2 * c->config->outer.timeout;
    /* stop serving the state while it is replaced; merges wait, or else they could outpace its transfer */
    outer_hide_state(c);
    if (outer_first_rank(c))
        membership_set_state(c->membership,
                             &(membership_state){.taking = true, .merge = c->merge, .history = c->history});
    if (keep)
        keep_change(o);
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
    if (!keep)
        outer_begin_anew(o, p, step, updates);
    outer_announce(c, step, updates);
    return STATUS_OK;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* Writes into `head` a history that begins after this island's merge. */
static void outer_name_history(islands *o, json_t *head)
{
    if (!o->doubt.drawn || o->doubt.base != o->core.merge) {
        uint64_t id;
        MUST(getrandom(&id, sizeof id, 0) == sizeof id, "the system has no random numbers");
        o->doubt.drawn = (int64_t)(id >> 1);
        o->doubt.base = o->core.merge;
    }
    json_object_set_new(head, "history", json_integer(o->doubt.drawn));
    json_object_set_new(head, "from", json_integer(o->core.history));
    json_object_set_new(head, "base", json_integer(o->core.merge));
}

/* Makes this island's state the one after the last merge, with which a history begins. */
static void make_head(islands *o, const islands_position *p)
{
    if (!outer_first_rank(&o->core))
        return;
    json_t *head = json_pack("{s:I, s:I, s:I, s:[]}", "merge", (json_int_t)o->core.merge, "step", (json_int_t)p->step,
                             "updates", (json_int_t)p->updates, "parts");
    outer_name_history(o, head);
    membership_decide(o->core.membership, head, o->core.roster.revision, 0, NULL);
}

/* True if this island has the latest state of all present, and the lowest slot among equals. */
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

/* Goes back to the latest checkpoint present, if no island has the last merge any more: once all are there or time is
 * up. */
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

/* True if the head is in doubt, since any writer of etcd can write one. A merge's head is trusted if this island, or
 * another one at work, has its state. If all lack it, the most advanced island writes a new head after outer.timeout;
 * meanwhile training goes on, unmerged. The same on all ranks. */
static bool outer_doubts_head(islands *o, const islands_position *p)
{
    static const double SAID = 0.1; /* fraction of outer.timeout: a merge's decider has reported by then */
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

/* Joins: waits until this island's state is the one after the last merge. Training begins unmerged if etcd is away, or
 * takes no writes, for that long. */
static status outer_join_all(islands *o, islands_position *p)
{
    outer *c = &o->core;
    TRY(outer_look(c));
    double until = c->now + c->config->outer.timeout, end = until + c->config->outer.timeout;
    while (!outer_is_at_head(c)) {
        bool over = c->now > end && find_donor(o) < 0;
        if (over && !outer_must_end(c) && (!c->roster.reached || c->roster.merge < c->merge)) {
            log_info("islands: etcd does not show what this island writes: training begins, unmerged until it does");
            return STATUS_OK;
        }
        if (over || outer_must_end(c))
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

/* ---- reporting and deciding -------------------------------------------------------------------------------------- */

static void decide_merge(islands *o, uint64_t takes)
{
    const roster *r = &o->core.roster;
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
    json_t *head = json_pack("{s:I, s:I, s:I, s:o}", "merge", (json_int_t)(o->core.merge + 1), "step", (json_int_t)step,
                             "updates", (json_int_t)updates, "parts", parts);
    outer_name_history(o, head); /* two states of a number, of an etcd that was forked or set back, are told apart */
    if (outer_undo_wins(o, takes))
        json_object_set_new(head, "undoes", json_integer(o->core.merge));
    membership_decide(o->core.membership, head, r->revision, takes, revisions);
}

/* Logs the islands that this merge waits for, once each. An island that lacks another's change is blamed only later. */
static void say_late(islands *o, uint64_t offers, uint64_t held, uint64_t refused)
{
    const roster *r = &o->core.roster;
    double late = LATE * o->core.config->outer.timeout;
    uint64_t silent = roster_ready(r) & ~offers, coming = offers & ~(held | refused);
    o->all.whole_since = silent | coming ? 0 : o->all.whole_since > 0 ? o->all.whole_since : o->core.now;
    if (o->stalled_since <= 0 || !r->reached || o->core.now - o->stalled_since < late)
        return;
    bool others_lack = o->all.whole_since > 0 && o->core.now - o->all.whole_since >= late;
    for (int s = 0; s < o->core.config->outer.slots; s++) {
        const roster_member *m = &r->member[s];
        bool lacks = others_lack && (offers >> s & 1) && m->have_merge != o->core.merge + 1;
        const char *why = silent >> s & 1   ? "it offers no change yet"
                          : coming >> s & 1 ? "its change has not arrived"
                          : lacks           ? "it lacks somebody's change"
                                            : NULL;
        if (!why || s == o->core.slot || o->all.named_late >> s & 1)
            continue;
        o->all.named_late |= 1ull << s;
        log_info("islands: merge %lld waits for %s (slot %d): %s, after %.1f s", (long long)(o->core.merge + 1),
                 m->name, s, why, o->core.now - o->stalled_since);
    }
}

/* True while merges must wait, for outer.timeout at most: islands are taking the model, and merges meanwhile would make
 * it inconsistent. */
static bool is_held_up(islands *o)
{
    double most = o->core.config->outer.timeout;
    uint64_t taking = 0;
    for (int s = 0; s < ROSTER_SLOTS; s++)
        taking |= (uint64_t)(s != o->core.slot && o->core.roster.member[s].taking) << s;
    o->all.blocked_since = !taking ? 0 : o->all.blocked_since > 0 ? o->all.blocked_since : o->core.now;
    bool held_up = taking && o->core.now < o->all.blocked_since + most;
    if (held_up && o->offered.deadline < o->all.blocked_since + most)
        o->offered.deadline = o->all.blocked_since + most;
    for (int s = 0; s < o->core.config->outer.slots && held_up; s++)
        if ((taking & ~o->all.named_late) >> s & 1) {
            o->all.named_late |= 1ull << s;
            log_info("islands: merge %lld waits for %s (slot %d): it is taking the model",
                     (long long)(o->core.merge + 1), o->core.roster.member[s].name, s);
        }
    return held_up;
}

static void push_offer(islands *o)
{
    const roster *r = &o->core.roster;
    uint64_t offers = roster_offers(r, o->core.merge + 1),
             held = outer_fetch_offers(&o->core, o->core.merge + 1, ~0ull), ready = roster_ready(r);
    uint64_t refused = outer_refused(&o->core);
    bool held_up = is_held_up(o), late = o->core.now > o->offered.deadline, all = false;
    say_late(o, offers, held, refused);
    bool all_leave = offers == ready;
    for (int s = 0; s < ROSTER_SLOTS; s++)
        all_leave &= !(offers >> s & 1) || r->member[s].parting;
    if (all_leave || outer_must_end(&o->core)) {
        outer_withdraw(o, outer_must_end(&o->core) ? "this island is asked to stop" : "everybody leaves");
        return;
    }
    bool whole = ((held | refused) & ready) == ready;
    if (outer_first_rank(&o->core) && (whole || late) && held != o->all.reported) {
        o->all.reported = held;
        outer_report_held(&o->core, o->core.merge + 1, held);
    }
    uint64_t takes = roster_takes(&all, r, o->core.merge + 1, o->core.config->outer.min_islands, refused);
    if (outer_first_rank(&o->core) && r->reached && takes && (all || late) && !held_up)
        decide_merge(o, takes);
    if (outer_is_overdue(o, GRACE)) {
        char why[96];
        snprintf(why, sizeof why, "not agreed on within outer.timeout (%d of %d islands offer a change%s)",
                 __builtin_popcountll(offers), __builtin_popcountll(ready), r->reached ? "" : ", etcd is away");
        outer_withdraw(o, why);
    }
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

static bool all_here(const islands *o)
{
    const roster *r = &o->core.roster;
    bool here = true;
    for (int i = 0; i < r->parts; i++) {
        int s = r->part[i].slot;
        here &= s == o->core.slot ? r->part[i].offer == o->offered.step
                                  : o->core.fetches.got[s].here && o->core.fetches.got[s].offer == r->part[i].offer;
    }
    return here && r->parts > 0;
}

static void say_merged(const islands *o, bool took_part)
{
    char with[256] = "", without[256] = "";
    const roster *r = &o->core.roster;
    uint64_t left_out = roster_ready(r) & ~(1ull << o->core.slot);
    for (int i = 0; i < r->parts; i++) {
        outer_add_name(with, sizeof with, *r->part[i].name ? r->part[i].name : "one without a name");
        left_out &= ~(1ull << r->part[i].slot);
    }
    for (int s = 0; s < o->core.config->outer.slots; s++)
        if (left_out >> s & 1)
            outer_add_name(without, sizeof without, r->member[s].name);
    log_info("islands: merge number %lld, of the changes of %d island%s: %s%s%s%s", (long long)r->merge, r->parts,
             r->parts == 1 ? "" : "s", with, left_out ? "; without " : "", without,
             took_part ? "" : "; without this one, whose change goes with the next");
}

/* Takes a merge: the head has moved by one, and all its parts are here. */
static status take_merge(islands *o)
{
    const roster *r = &o->core.roster;
    bool took_part = false, late = outer_is_late(o);
    for (int i = 0; i < r->parts; i++)
        took_part |= r->part[i].slot == o->core.slot && r->part[i].offer == o->offered.step;
    outer_hide_state(&o->core);
    outer_undo_keep(o);
    outer_merge_changes(o, took_part);
    TRY(outer_check_finite(&o->core, o->core.memory.reference, "the merged reference"));
    o->core.merge = o->core.roster.merge;
    o->core.history = o->core.roster.history;
    outer_announce(&o->core, o->core.roster.step, o->core.roster.updates);
    if (took_part) {
        o->core.counts.merges++;
        o->merged_at[o->core.fragment] = o->offered.step;
    } else {
        o->core.counts.missed++;
    }
    if (!took_part || late)
        outer_undo_taken(o); /* the weights take it at once */
    say_merged(o, took_part);
    o->stage = took_part && !late ? OUTER_MERGED : OUTER_IDLE;
    outer_clear_offer(&o->core);
    return STATUS_OK;
}

static status push_merge(islands *o, islands_position *p)
{
    TRY(outer_look(&o->core));
    const roster *r = &o->core.roster;
    bool doubted = outer_doubts_head(o, p);
    bool in_line = roster_is_in_line(r, o->core.merge, o->core.history);
    if (r->merge > o->core.merge || !in_line) {
        bool next = in_line && r->merge == o->core.merge + 1,
             undone = next && r->undoes > 0 && r->undoes == o->core.merge;
        bool here = next && !r->undoes && o->stage != OUTER_IDLE && all_here(o);
        if (outer_everywhere(&o->core, here))
            return take_merge(o);
        if (undone && outer_undo_holds(o)) {
            outer_undo_take(o);
            return STATUS_OK;
        }
        if (doubted) { /* the offer waits for a head without doubt, but no longer than for other islands */
            if (o->stage == OUTER_OFFERED && (outer_is_overdue(o, GRACE) || outer_must_end(&o->core)))
                outer_withdraw(o, "etcd holds a merge that no island at work has");
            if (o->stage == OUTER_WITHDRAWING)
                outer_end_withdrawal(o);
            return STATUS_OK;
        }
        o->core.counts.missed += r->merge > o->core.merge ? r->merge - o->core.merge : 1;
        outer_clear_offer(&o->core);
        o->stage = OUTER_IDLE;
        TRY(outer_catch_up(o, p, true));
        if (undone) /* the change since then is not one of the restored model */
            outer_undo_forget(o);
        return STATUS_OK;
    }
    if (o->stage == OUTER_OFFERED)
        push_offer(o);
    if (o->stage == OUTER_WITHDRAWING)
        outer_end_withdrawal(o);
    return STATUS_OK;
}

static void finish_merge(islands *o, const islands_position *p)
{
    (void)p;
    outer_apply_merge(o, o->core.fragment);
    outer_undo_taken(o);
}

static status begin_merge(islands *o, islands_position *p, int fragment)
{
    outer *c = &o->core;
    TRY(outer_look(c));
    if (!outer_is_at_head(c)) /* merged without this island */
        TRY(push_merge(o, p));
    if (!c->roster.reached) { /* the asking thread has reported it */
        c->counts.missed++;
        return STATUS_OK;
    }
    if (o->stage != OUTER_IDLE || !roster_is_in_line(&c->roster, c->merge, c->history) || c->roster.merge > c->merge)
        return STATUS_OK; /* others overtake a head that lags */
    o->all.reported = o->all.named_late = 0;
    o->all.whole_since = 0;
    if (outer_first_rank(c))
        membership_set_have(c->membership, NULL);
    outer_offer(o, p, fragment, c->merge + 1);
    return STATUS_OK;
}

static status leave_merges(islands *o, islands_position *p)
{
    uint64_t others = roster_ready(&o->core.roster) & ~(1ull << o->core.slot);
    bool changed = p->step > o->merged_at[0] && o->core.config->outer.fragments == 1;
    if (!changed || !others || o->stage != OUTER_IDLE) /* the checkpoint keeps the remaining change */
        return STATUS_OK;
    return outer_hand_over(o, p, "merge");
}

const outer_topology outer_topology_all = {outer_join_all, begin_merge, push_merge, finish_merge, leave_merges, NULL};
