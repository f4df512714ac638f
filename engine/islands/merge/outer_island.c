/* A job that is an island: its interface to training, and the parts common to all topologies. An offer goes out when a
 * fragment is due, is awaited outer.delay steps later, and then the weights take the result of the merge. */
#include "engine/islands/merge/outer_island_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/config/config.h"
#include "engine/islands/merge/rule.h"
#include "memory/clock.h"
#include "memory/log.h"

/* ---- opening ----------------------------------------------------------------------------------------------------- */

status islands_open(islands **out, const config *c, compiled *k, executor *e, comm *world, watchdog *w)
{
    static const outer_topology *const topologies[] = {
        [CONFIG_OUTER_ALL] = &outer_topology_all,
        [CONFIG_OUTER_GOSSIP] = &outer_topology_gossip,
        [CONFIG_OUTER_SERVER] = &outer_topology_server,
    };
    AUTO(islands) *o = must_calloc(1, sizeof *o);
    o->compiled = k;
    o->executor = e;
    o->hint = -1;
    o->topology = topologies[c->outer.topology];
    TRY(outer_open(&o->core, c, world, w, false));
    TRY(comm_all_status(comm_world(world), outer_move_open(&o->move, k, e, &o->core)));
    *out = TAKE(o);
    return STATUS_OK;
}

void islands_close(islands *o)
{
    if (!o)
        return;
    outer_move_close(o->move);
    outer_close(&o->core);
    free(o);
}

islands_counts islands_counted(islands *o)
{
    islands_counts c = outer_counted(&o->core);
    c.releases = o->releases;
    c.epsilon = o->releases > 0 ? privacy_epsilon(o->releases, o->core.config->outer.noise, ISLANDS_DELTA) : 0;
    return c;
}

double islands_disagreement(int64_t *step, const islands *o)
{
    *step = o->core.counts.disagreement_step;
    return o->core.counts.disagreement;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

const checkpoint_piece *islands_pieces(int *count, const islands *o)
{
    *count = o->core.memory.piece_count;
    return o->core.memory.pieces;
}

json_t *islands_meta(const islands *o)
{
    json_t *at = json_array();
    for (int f = 0; f < o->core.config->outer.fragments; f++)
        json_array_append_new(at, json_integer(o->merged_at[f]));
    return json_pack("{s:I, s:I, s:I, s:i, s:o, s:i, s:I}", "releases", (json_int_t)o->releases, "merge",
                     (json_int_t)o->core.merge, "history", (json_int_t)o->core.history, "slot", o->core.slot,
                     "merged_at", at, "fragment", o->core.fragment, "settle_at",
                     (json_int_t)(o->stage == OUTER_MERGED ? o->offered.apply_at : 0));
}

static int64_t clamped_integer(const json_t *object, const char *key, int64_t low, int64_t high)
{
    int64_t n = (int64_t)json_integer_value(json_object_get(object, key));
    return n < low ? low : n > high ? high : n;
}

static void read_meta(islands *o, const json_t *meta)
{
    const int64_t most = (int64_t)1 << 40;
    const json_t *at = json_object_get(meta, "merged_at");
    o->releases = clamped_integer(meta, "releases", 0, most);
    o->core.merge = clamped_integer(meta, "merge", 0, most);
    o->core.history = clamped_integer(meta, "history", 0, INT64_MAX);
    o->hint = (int)clamped_integer(meta, "slot", 0, ROSTER_SLOTS - 1);
    o->core.fragment = (int)clamped_integer(meta, "fragment", 0, o->core.config->outer.fragments - 1);
    o->offered.apply_at = clamped_integer(meta, "settle_at", 0, most);
    o->stage = o->offered.apply_at > 0 ? OUTER_MERGED : OUTER_IDLE;
    for (int f = 0; f < o->core.config->outer.fragments; f++)
        o->merged_at[f] = (int64_t)json_integer_value(json_array_get(at, (size_t)f));
    o->resumed = true;
}

status islands_restore(islands *o, checkpoint *from)
{
    const json_t *meta = from ? json_object_get(checkpoint_meta(from), "outer") : NULL;
    if (json_is_object(meta)) {
        read_meta(o, meta);
        return comm_all_status(comm_world(o->core.world), outer_read_sections(&o->core, from));
    }
    for (int f = 0; f < o->core.config->outer.fragments; f++) /* the weights are the reference of merge 0 */
        outer_take_weights(o, f);
    return STATUS_OK;
}

/* ---- offering ---------------------------------------------------------------------------------------------------- */

bool outer_undo_holds(const islands *o)
{
    return o->core.memory.reference_before && o->undo.merge > 0 && o->undo.merge == o->core.merge;
}

void outer_offer(islands *o, const islands_position *p, int fragment, int64_t merge)
{
    outer *c = &o->core;
    bool gossip = c->config->outer.topology == CONFIG_OUTER_GOSSIP;
    outer_serve_change(c, -1, -1, 0);
    for (int s = 0; s < c->config->outer.slots; s++)
        outer_drop_fetch(c, s);
    c->fragment = fragment;
    if (!outer_encode(o, fragment)) {
        c->counts.refused += outer_first_rank(c);
        if (outer_first_rank(c))
            log_warn("islands: this island's %s not finite at step %lld: %s not offered",
                     gossip ? "weights are" : "change is", (long long)p->step, gossip ? "they are" : "it is");
        return;
    }
    uint64_t id; /* differs from other offers' ids, and former processes' */
    MUST(getrandom(&id, sizeof id, 0) == sizeof id, "the system has no random numbers");
    comm_broadcast_bytes(comm_world(c->world), &id, sizeof id, 0);
    o->stage = OUTER_OFFERED;
    o->offered = (outer_offered){.step = p->step,
                                 .id = (int64_t)(id >> 1),
                                 .apply_at = p->step + c->config->outer.delay,
                                 .deadline = c->now + c->config->outer.timeout,
                                 .end = c->now + 2 * c->config->outer.timeout};
    outer_serve_change(c, merge, p->step, fragment);
    (void)outer_everywhere(c, 0); /* wait until every rank serves the offer */
    if (!outer_first_rank(c))
        return;
    int64_t tokens = batch_ramp_total(c->config, o->merged_at[fragment], p->step) * c->config->train.sequence;
    json_t *words =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:i, s:b, s:I}", "merge", (json_int_t)merge, "offer", (json_int_t)p->step,
                  "id", (json_int_t)o->offered.id, "tokens", (json_int_t)tokens, "updates", (json_int_t)p->updates,
                  "fragment", fragment, "parting", o->parting, "history", (json_int_t)c->history);
    if (o->undo.wanted && outer_undo_holds(o)) /* unless others have gone beyond that merge */
        json_object_set_new(words, "undo", json_true());
    membership_set_offer(c->membership, words);
}

bool outer_is_overdue(const islands *o, double grace)
{
    return o->core.now > o->offered.deadline + grace || o->core.now > o->offered.end;
}

void outer_withdraw(islands *o, const char *why)
{
    o->stage = OUTER_WITHDRAWING;
    log_info("islands: merge %lld is given up: %s; the change stays for the next one", (long long)(o->core.merge + 1),
             why);
    o->offered.withdrawn = outer_clear_offer(&o->core);
}

void outer_end_withdrawal(islands *o)
{
    const outer *c = &o->core;
    bool heard = !outer_first_rank(c) || (c->roster.reached && c->roster.settled >= o->offered.withdrawn);
    if (outer_everywhere(c, heard)) {
        o->stage = OUTER_IDLE; /* withdrawn for all islands */
        o->core.counts.missed++;
    }
}

/* ---- awaiting and settling --------------------------------------------------------------------------------------- */

static bool is_under_way(const islands *o)
{
    return o->stage == OUTER_OFFERED || o->stage == OUTER_PULLING ||
           (o->stage == OUTER_WITHDRAWING && o->core.roster.reached && o->core.now < o->offered.end);
}

status outer_await(islands *o, islands_position *p)
{
    double began = clock_seconds();
    status s = STATUS_OK;
    o->stalled_since = o->core.now;
    while (s == STATUS_OK && is_under_way(o)) {
        s = o->topology->push(o, p);
        if (is_under_way(o))
            outer_nap(&o->core);
    }
    if (o->stage == OUTER_WITHDRAWING && o->core.roster.reached && !o->offered.reported) {
        o->offered.reported = true;
        if (outer_first_rank(&o->core))
            log_warn("islands: etcd does not show within 2 x outer.timeout what this island writes: training goes on, "
                     "unmerged until it does");
    }
    o->stalled_since = 0;
    o->core.counts.waited += clock_seconds() - began;
    return s;
}

static void finish_merge(islands *o, const islands_position *p)
{
    o->topology->finish_merge(o, p);
    o->stage = OUTER_IDLE;
}

status outer_finish(islands *o, islands_position *p)
{
    TRY(outer_await(o, p));
    if (o->stage == OUTER_MERGED)
        finish_merge(o, p);
    return STATUS_OK;
}

status outer_hand_over(islands *o, islands_position *p, const char *what)
{
    log_info("islands: handing over the change since the last %s before this island leaves", what);
    o->parting = true;
    TRY(o->topology->begin(o, p, 0));
    o->offered.apply_at = p->step;
    return outer_finish(o, p);
}

/* ---- interface to training --------------------------------------------------------------------------------------- */

static status wait_for_others(islands *o)
{
    outer *c = &o->core;
    int least = c->config->outer.min_islands;
    double until = c->now + c->config->outer.timeout;
    TRY(outer_look(c));
    if (__builtin_popcountll(roster_ready(&c->roster)) < least)
        log_info("islands: this island waits until %d are there (outer.min_islands), %.0f s at most", least,
                 c->config->outer.timeout);
    while (__builtin_popcountll(roster_ready(&c->roster)) < least && c->now < until && !outer_must_end(c)) {
        outer_nap(c);
        TRY(outer_look(c));
    }
    int there = __builtin_popcountll(roster_ready(&c->roster));
    if (there < least)
        log_info("islands: %d of at least %d islands are there: training begins, unmerged until more come", there,
                 least);
    return STATUS_OK;
}

status islands_join(islands *o, islands_position *p, int *slot)
{
    o->core.step = p->step;
    TRY(outer_claim(&o->core, o->hint));
    *slot = o->core.slot;
    TRY(o->topology->join(o, p));
    outer_announce(&o->core, p->step, p->updates);
    o->joined = true;
    status s = wait_for_others(o);
    o->began = clock_seconds();
    return s;
}

static status after_step(islands *o, islands_position *p)
{
    /* Fragment i is due i H / P steps into each round of H steps; -1: none is. */
    int64_t every = o->core.config->outer.every, each = every / o->core.config->outer.fragments;
    int fragment = p->step % each == 0 ? (int)(p->step % every / each) : -1;
    o->core.step = p->step;
    if (o->topology->end && p->step == o->core.config->train.steps)
        return o->topology->end(o, p);
    if (o->stage == OUTER_MERGED && p->step >= o->offered.apply_at)
        finish_merge(o, p);
    if (o->stage != OUTER_IDLE && o->stage != OUTER_MERGED)
        TRY(o->topology->push(o, p));
    if (fragment >= 0 && o->stage == OUTER_IDLE)
        TRY(o->topology->begin(o, p, fragment));
    return o->stage != OUTER_IDLE && p->step >= o->offered.apply_at ? outer_finish(o, p) : STATUS_OK;
}

status islands_step(islands *o, islands_position *p, islands_moment when)
{
    double began = clock_seconds();
    if (when == ISLANDS_LEAVING && !o->joined)
        return STATUS_OK;
    status s = when == ISLANDS_AFTER_STEP ? after_step(o, p) : outer_await(o, p);
    if (s == STATUS_OK && when == ISLANDS_LEAVING)
        s = o->topology->leave(o, p);
    double now = clock_seconds();
    o->core.counts.stood += now - began;
    o->core.counts.elapsed = now - o->began;
    return s;
}
