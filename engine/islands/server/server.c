/* The job that holds the model for islands of outer.topology server: `phalanx server`.
 *
 * Islands push their changes and take the model when they like. The server fetches a change that is offered, merges it
 * by itself, scaled by its age (merge/rule.h), and answers in etcd (meet/roster.h); what is too old, or not finite, it
 * refuses. Each of its ranks holds and merges some units of the model (merge/units.h), the outer optimizer's state of
 * them with it, in one arena planned before; the model's bits are a function of the changes and their order, not of the
 * ranks. A change is on the disk before its island is told that it was taken (server_journal.c), so a server that is
 * killed loses none. No GPU, no data and no programs.
 *
 * All ranks see the same roster, broadcast by rank 0, and so take the same decisions. */
#include <string.h>

#include "engine/islands/server/server_internal.h"
#include "memory/arena.h"
#include "memory/log.h"
#include "memory/seal.h"
#include "memory/units.h"
#include "parallel/watch/signals.h"

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Tokens are relative to the mean of the last changes of the islands that there are. */
static double share_of(const server *v, const roster_part *part, int64_t base)
{
    int64_t staleness = v->core.merge - base, all = 0;
    int count = 0;
    if (v->config->outer.weights == CONFIG_OUTER_EQUAL)
        return rule_share(staleness, 1, 1, 1);
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        const roster_part *p = s == part->slot ? part : &v->answer[s];
        all += p->tokens;
        count += p->tokens > 0;
    }
    return rule_share(staleness, part->tokens, all, count);
}

/* The answer is in etcd: so it is. */
static void conclude(server *v)
{
    static const char *const why[ROSTER_REFUSALS] = {
        [ROSTER_STALE] = "older than outer.staleness",
        [ROSTER_UNSOUND] = "not finite, too large, or not to be had",
        [ROSTER_IMPOSSIBLE] = "based on a merge that has not been",
    };
    outer *o = &v->core;
    const roster_part *p = &v->wanted;
    const char *name = o->roster.member[p->slot].name;
    int64_t age = o->merge - v->base;
    if (p->refusal == ROSTER_TAKEN) {
        server_merge(v, p->slot, v->share);
        if (!o->roster.member[p->slot].parting) /* what an island leaves with may be the change of one step */
            outer_note_norm(o, p->slot);
        o->merge++;
        v->entries++;
        o->counts.merges++;
        v->step = p->offer > v->step ? p->offer : v->step;
        v->updates = o->roster.updates;
        outer_announce(o, v->step, v->updates);
        log_info("server: merge %lld: %s after its step %lld, %lld merges old", (long long)o->merge, name,
                 (long long)p->offer, (long long)age);
    } else {
        v->refused++;
        if (outer_first_rank(o))
            log_warn("server: refused the change of island %s after its step %lld: %lld merges old, %s", name,
                     (long long)p->offer, (long long)age, why[p->refusal]);
    }
    v->answer[p->slot] = *p;
    v->last = p->slot;
    server_files_line(v, p, v->base, v->share);
    outer_drop_fetch(o, p->slot);
}

/* ---- offers ------------------------------------------------------------------------------------------------------ */

/* Of an offer's age alone. */
static roster_refusal judge(const server *v, const roster_member *m)
{
    int64_t base = m->offer_merge - 1;
    if (base < 0 || base > v->core.merge)
        return ROSTER_IMPOSSIBLE;
    return v->core.merge - base > v->config->outer.staleness ? ROSTER_STALE : ROSTER_TAKEN;
}

static bool is_open(const server *v, int slot)
{
    const roster_member *m = &v->core.roster.member[slot];
    return m->ready && m->offers && m->offer_id != 0 && m->offer_id != v->answer[slot].id;
}

/* Goes on fetching; bits of the slots whose change this rank has. */
static uint64_t fetch_offers(server *v)
{
    uint64_t here = 0;
    for (int s = 0; s < v->config->outer.slots; s++) {
        const roster_member *m = &v->core.roster.member[s];
        if (!is_open(v, s))
            outer_drop_fetch(&v->core, s);
        else if (judge(v, m) == ROSTER_TAKEN)
            here |= (uint64_t)outer_fetch_offer(&v->core, s, m->offer_id) << s;
    }
    return here;
}

/* It is on the disk; or it waits, and its island with it, until it can be. */
static bool is_durable(server *v)
{
    static const double PATIENCE = 5; /* seconds until the next attempt */
    if (server_journal_write(v) == STATUS_OK)
        return true;
    if (outer_first_rank(&v->core))
        log_warn("%s; nothing is merged until the journal can be written", status_message());
    v->waits = v->core.now + PATIENCE;
    v->slot = -1;
    return false;
}

static void decide(server *v, int slot, roster_refusal refusal)
{
    outer *o = &v->core;
    const roster_member *m = &o->roster.member[slot];
    bool taken = refusal == ROSTER_TAKEN;
    int64_t revisions[ROSTER_SLOTS] = {0}, after = o->merge + taken, step = v->step, updates = v->updates;
    v->slot = slot;
    v->base = m->offer_merge - 1;
    v->wanted = (roster_part){.slot = slot,
                              .offer = m->offer,
                              .tokens = taken ? m->tokens : v->answer[slot].tokens,
                              .merge = after,
                              .id = m->offer_id,
                              .refusal = refusal};
    revisions[slot] = m->offer_revision;
    if (taken && m->offer > step) { /* the model is where the island that has come furthest is */
        v->step = m->offer;
        v->updates = m->updates;
    }
    /* outer.robust clip: what any rank wants the change to be scaled by. The journal has it with the share, so that a
     * replay needs to know of no merge before. */
    double scale = taken ? -comm_all_max(comm_world(v->world), -(double)outer_norm_scale(o, slot)) : 0;
    v->share = taken ? share_of(v, &v->wanted, v->base) * scale : 0;
    bool durable = !taken || is_durable(v);
    json_t *head = server_head(v, &v->wanted, after);
    v->step = step;
    v->updates = updates;
    if (!durable) {
        json_decref(head);
        return;
    }
    if (outer_first_rank(o))
        v->number = membership_decide(o->membership, head, o->roster.revision, 1ull << slot, revisions);
    else
        json_decref(head);
    comm_broadcast_bytes(comm_world(v->world), &v->number, sizeof v->number, 0);
}

/* The next slot in turn that there is an answer for. */
static void decide_next(server *v)
{
    outer *o = &v->core;
    uint64_t here = outer_everywhere(o, fetch_offers(v)), bad = outer_refused(o);
    for (int k = 1; k <= ROSTER_SLOTS && v->slot < 0 && o->roster.reached; k++) {
        int s = (v->last + k) % ROSTER_SLOTS;
        if (s >= v->config->outer.slots || !is_open(v, s) || o->now < v->waits)
            continue;
        roster_refusal r = judge(v, &o->roster.member[s]);
        if (r != ROSTER_TAKEN || bad >> s & 1)
            decide(v, s, r != ROSTER_TAKEN ? r : ROSTER_UNSOUND);
        else if (here >> s & 1)
            decide(v, s, r);
    }
}

/* Is the answer that was to be written the last one to its slot? */
static void look_for_decision(server *v)
{
    const roster *r = &v->core.roster;
    bool won = false;
    for (int i = 0; i < r->parts; i++)
        won |= r->part[i].slot == v->slot && r->part[i].id == v->wanted.id;
    if (won)
        conclude(v);
    bool lost = !won && r->reached && r->settled >= v->number; /* it was withdrawn before, and stays the island's */
    if (lost && v->wanted.refusal == ROSTER_TAKEN)
        server_journal_drop(v, v->core.merge + 1);
    if (won || lost)
        v->slot = -1;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* Every island has ended, and the model has done its steps. */
static bool is_over(server *v)
{
    const outer *o = &v->core;
    if (roster_here(&o->roster) || !o->roster.reached)
        v->alone = o->now;
    return v->step >= v->config->train.steps && o->now - v->alone > v->config->outer.timeout;
}

/* A save that fails is tried again after the next merge. */
static void save_in_passing(server *v)
{
    if (server_files_save(v) != STATUS_OK && outer_first_rank(&v->core))
        log_warn("%s; the server goes on", status_message());
}

static status work(bool *stopped, server *v)
{
    int64_t every = v->config->checkpoint.every;
    for (;;) {
        int64_t before = v->core.merge;
        TRY(outer_look(&v->core));
        if (v->slot >= 0)
            look_for_decision(v);
        if (v->slot < 0)
            decide_next(v);
        bool merged = v->core.merge != before;
        bool due = merged && ((every > 0 && v->core.merge % every == 0) || server_journal_is_long(v));
        signals_request asked = (signals_request)comm_all_max(comm_world(v->world), signals_pending());
        *stopped = asked == SIGNALS_STOP;
        if (*stopped || is_over(v))
            return STATUS_OK;
        if (asked == SIGNALS_SAVE || due)
            save_in_passing(v);
        if (asked == SIGNALS_SAVE)
            signals_saved();
        outer_nap(&v->core);
    }
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* Merges have one sequence: what a server that was killed had merged since its last checkpoint is merged again. What
 * the journal lacks is lost, but its numbers are not given again. `head` shows the merge that this server goes on
 * from. */
static status agree_on_head(server *v)
{
    outer *o = &v->core;
    TRY(outer_look(o));
    const roster *r = &o->roster;
    double until = o->now + v->config->outer.timeout;
    TRY(server_journal_replay(v, r));
    if (r->merge >= o->merge) {
        bool lost = r->merge > o->merge;
        if (lost)
            log_warn("server: merges %lld to %lld are lost: neither a checkpoint nor the journal has them",
                     (long long)o->merge + 1, (long long)r->merge);
        o->merge = r->merge;
        server_take_head(v, r);
        if (lost) /* the journal has a gap: it begins anew */
            save_in_passing(v);
        return STATUS_OK;
    }
    for (; r->merge != o->merge; outer_nap(o)) {
        if (outer_first_rank(o))
            membership_decide(o->membership, server_head(v, NULL, o->merge), r->revision, 0, NULL);
        TRY(outer_look(o));
        if (o->now > until)
            return status_fail(STATUS_FAILED, "etcd does not take what this server holds");
    }
    return STATUS_OK;
}

static status run(bool *stopped, server *v)
{
    watchdog_enter(v->watchdog, DURING_SETUP, true, 0, "opening the server");
    TRY(outer_open(&v->core, v->config, v->world, v->watchdog, true));
    watchdog_enter(v->watchdog, DURING_LOAD, true, 0, "reading the model");
    TRY(server_files_open(v));
    TRY(server_journal_open(v));
    watchdog_enter(v->watchdog, DURING_SETUP, false, v->core.merge, "claiming the server's place");
    TRY(outer_claim(&v->core, -1));
    TRY(agree_on_head(v));
    v->alone = v->core.now;
    outer_announce(&v->core, v->step, v->updates);
    char bytes[UNITS_TEXT];
    units_bytes(bytes, (double)arena_bytes(v->core.memory.arena));
    log_info("server: holds the model of outer.run %s after merge %lld, on %d rank%s, in %s of host memory on this one",
             v->config->outer.run, (long long)v->core.merge, comm_ranks(v->world), comm_ranks(v->world) > 1 ? "s" : "",
             bytes);
    seal_close();
    status s = work(stopped, v);
    seal_open();
    TRY(s);
    TRY(server_files_save(v));
    watchdog_enter(v->watchdog, DURING_END, true, v->core.merge, "writing the summary");
    return comm_all_status(comm_world(v->world), server_files_summary(v, *stopped));
}

status islands_serve(bool *stopped, const config *c, comm *world, watchdog *w)
{
    server v = {.config = c, .world = world, .watchdog = w, .slot = -1, .last = -1};
    *stopped = false;
    status s = run(stopped, &v);
    outer_close(&v.core);
    server_files_close(&v);
    return s;
}
