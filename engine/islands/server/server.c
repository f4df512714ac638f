/* The job that holds the model for islands of outer.topology server: `phalanx server`.
 *
 * Islands push their changes and take the model at their own pace. The server fetches an offered change, merges it
 * alone, scaled by its age (merge/rule.h), and answers in etcd (meet/roster.h); it refuses changes that are too old or
 * not finite. Each of its ranks holds and merges some units of the model (merge/units.h), with their outer optimizer
 * state, in one arena planned before; the model's bits are a function of the changes and their order, not of the ranks.
 * A change is on the disk before its island is told that it was taken (server_journal.c), so a server that is killed
 * loses none. No GPU, no data and no programs.
 *
 * All ranks see the same roster, broadcast by rank 0, and so take the same decisions. */

#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/islands/server/server_internal.h"
#include "engine/state/rank/state.h"
#include "engine/state/weights/weights_copy.h"
#include "engine/state/weights/weights.h"
#include "engine/system/atomic.h"
#include "engine/system/direct.h"
#include "memory/arena.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/seal.h"
#include "memory/units.h"
#include "parallel/comm/agree.h"
#include "parallel/watch/signals.h"

/* A server's files: its initial model, checkpoints, merges.jsonl. */

#define META "server"

/* ---- the initial model ------------------------------------------------------------------------------------------- */

/* Draws the weights as training on one rank would. */
static void draw_model(outer *o)
{
    const model_shape *shape = &o->config->model.shape;
    decoder model = {0};
    pool p = {0};
    const int first = 0, layers = shape->layers;
    const decoder_layout whole = {
        .grid = recorder_alone(), .compute = DTYPE_FP32, .chunk_count = 1, .first_layer = &first, .layers = &layers};
    decoder_open(&model, &p, shape, &whole);
    for (int i = 0; i < o->units.mine_count; i++) {
        const unit *u = &o->units.list[o->units.mine[i].unit];
        state_initial_rows(o->memory.reference + o->units.mine[i].at, &model, o->units.tensors[u->tensor].name,
                           u->first, u->rows, (uint64_t)o->config->train.seed);
    }
    pool_free(&p);
}

static status read_units(outer *o, state_reader *read, void *from)
{
    for (int i = 0; i < o->units.mine_count; i++) {
        rectangle of;
        box_memory to;
        units_rectangle(&of, &to, &o->units.list[o->units.mine[i].unit], o->units.tensors,
                        o->memory.reference + o->units.mine[i].at);
        TRY(read(from, &of, &to));
    }
    return STATUS_OK;
}

static status read_dense(server *v, weights *dense)
{
    AUTO(upcycle) *u = NULL;
    TRY(upcycle_open(&u, dense, &v->config->model.shape));
    return read_units(&v->core, upcycle_read, u);
}

/* Collective. */
static status begin_model(server *v)
{
    const char *from = v->config->model.from;
    const bool dense = v->config->model.upcycle;
    AUTO(weights) *w = NULL;
    if (!from || dense)
        draw_model(&v->core);
    if (!from)
        return STATUS_OK;
    status s = weights_open(&w, from);
    AUTO_FREE char *identity = s == STATUS_OK ? weights_identity(w) : NULL;
    TRY(agree_on(comm_world(v->world), s, "model.from", identity));
    s = dense ? read_dense(v, w) : read_units(&v->core, weights_read, w);
    TRY(comm_all_status(comm_world(v->world), s));
    log_info("server: weights from %s", weights_folder(w));
    return STATUS_OK;
}

static status take_checkpoint(server *v, checkpoint *from)
{
    roster head = {0};
    const json_t *meta = json_object_get(checkpoint_meta(from), META);
    if (!json_is_object(meta))
        return status_fail(STATUS_FAILED, "%s is a training run's, no server's: give the server another run.folder",
                           checkpoint_folder(from));
    TRY(outer_read_sections(&v->core, from));
    roster_read_head(&head, meta, 0);
    server_take_head(v, &head);
    v->saved = v->core.merge = head.merge;
    log_info("server: resumed from %s after merge %lld", checkpoint_folder(from), (long long)head.merge);
    return STATUS_OK;
}

/* Collective. */
static status load_checkpoint(server *v, const char *folder)
{
    AUTO(checkpoint) *from = NULL;
    status s = checkpoint_open(&from, folder);
    AUTO_FREE char *identity = s == STATUS_OK ? checkpoint_identity(from) : NULL;
    TRY(agree_on(comm_world(v->world), s, "the checkpoint", identity));
    return comm_all_status(comm_world(v->world), take_checkpoint(v, from));
}

/* Restores the latest readable checkpoint, named by rank 0 in turn; *found false: there is none. */
static status restore_latest(bool *found, server *v)
{
    comm_group *all = comm_world(v->world);
    checkpoint_offers offers = {0};
    status s = outer_first_rank(&v->core) ? checkpoint_offers_find(&offers, v->checkpoints) : STATUS_OK;
    s = comm_all_status(all, s);
    comm_broadcast_bytes(all, &offers.count, sizeof offers.count, 0);
    *found = s == STATUS_OK && offers.count > 0;
    for (int i = 0; i < offers.count && *found; i++) {
        char path[4096] = "";
        if (outer_first_rank(&v->core))
            snprintf(path, sizeof path, "%s", offers.folder[i]);
        comm_broadcast_bytes(all, path, sizeof path, 0);
        s = load_checkpoint(v, path);
        if (s != STATUS_FAILED || !v->config->checkpoint.fallback || i + 1 == offers.count)
            break;
        if (outer_first_rank(&v->core))
            log_warn("%s; going on from an older checkpoint", status_message());
    }
    if (!outer_first_rank(&v->core))
        offers.count = 0;
    checkpoint_offers_free(&offers);
    return s;
}

static status open_model(server *v)
{
    const char *resume = v->config->checkpoint.resume;
    bool found = false;
    if (strcmp(resume, "auto") != 0)
        return status_fail(
            STATUS_USAGE,
            "checkpoint.resume %s: a server goes on from its own folder's latest checkpoint; to begin anew, "
            "give it another run.folder (and the islands another outer.run), with model.from",
            resume);
    TRY(restore_latest(&found, v));
    return found ? STATUS_OK : begin_model(v);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static const double LEASE = 30; /* seconds */

static status open_first(server *v, const char *path)
{
    const config *c = v->config;
    TRY(atomic_make_folders(c->run.folder));
    AUTO_FREE char *text = config_text(c);
    AUTO_FREE char *config_path = must_format("%s/config.yaml", c->run.folder);
    AUTO_FREE char *lines_path = must_format("%s/merges.jsonl", c->run.folder);
    if (c->run.lock)
        TRY(lock_take(&v->lock, path, v->run, LEASE));
    TRY(atomic_replace(config_path, text, (int64_t)strlen(text)));
    TRY(checkpoint_tidy(v->checkpoints));
    TRY(atomic_make_folders(v->journal));
    return lines_open(&v->lines, lines_path, v->lock);
}

/* Opens the server's files and the model. */
static status server_files_open(server *v)
{
    comm_group *all = comm_world(v->world);
    v->checkpoints = must_format("%s/checkpoints", v->config->run.folder);
    v->journal = must_format("%s/journal", v->config->run.folder);
    v->saved = -1;
    snprintf(v->run, sizeof v->run, "%s", watchdog_run(v->watchdog));
    AUTO_FREE char *path = must_format("%s/lock", v->config->run.folder);
    TRY(comm_all_status(all, outer_first_rank(&v->core) ? open_first(v, path) : STATUS_OK));
    if (v->config->run.lock && !outer_first_rank(&v->core))
        v->lock = lock_join(path, v->run, LEASE);
    TRY(open_model(v));
    v->buffer = aligned_alloc(DIRECT_ALIGNMENT, CHECKPOINT_WRITER_BUFFER);
    MUST(v->buffer, "out of host memory");
    v->writer = checkpoint_writer_open(
        &(checkpoint_writer_options){.share = {v->core.memory.pieces, v->core.memory.piece_count, comm_rank(v->world),
                                               comm_ranks(v->world), v->run, false},
                                     .buffer = v->buffer,
                                     .owner = v->lock});
    if (outer_first_rank(&v->core))
        v->publisher = checkpoint_publisher_open(comm_ranks(v->world), v->run, v->buffer, v->lock);
    return STATUS_OK;
}

static void server_files_close(server *v)
{
    checkpoint_publisher_close(v->publisher);
    checkpoint_writer_close(v->writer);
    lines_close(v->lines);
    lock_release(v->lock);
    free(v->buffer);
    free(v->checkpoints);
    free(v->journal);
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

static status publish_checkpoint(server *v, const char *name)
{
    AUTO_FREE char *text = config_text(v->config);
    json_auto_t *meta = json_pack("{s:s, s:I, s:o}", "config", text, "step", (json_int_t)v->step, META,
                                  server_head(v, NULL, v->core.merge));
    TRY(checkpoint_publisher_publish(v->publisher, v->checkpoints, name, meta));
    if (lock_check(v->lock) != STATUS_OK || checkpoint_prune(v->checkpoints, v->config->checkpoint.keep,
                                                             v->config->checkpoint.keep_every, NULL) != STATUS_OK)
        log_warn("%s; an older checkpoint stays", status_message());
    return STATUS_OK;
}

/* Saves a checkpoint. */
static status server_files_save(server *v)
{
    comm_group *all = comm_world(v->world);
    char name[32];
    double began = clock_seconds();
    if (v->saved == v->core.merge)
        return STATUS_OK;
    watchdog_enter(v->watchdog, DURING_SAVE, true, v->core.merge, "writing a checkpoint");
    snprintf(name, sizeof name, "step-%08lld", (long long)v->core.merge);
    status s = comm_all_status(all, checkpoint_writer_share(v->writer, v->checkpoints, name));
    if (s == STATUS_OK)
        s = comm_all_status(all, outer_first_rank(&v->core) ? publish_checkpoint(v, name) : STATUS_OK);
    watchdog_enter(v->watchdog, DURING_STEP, false, v->core.merge, "serving islands");
    if (s != STATUS_OK) {
        if (outer_first_rank(&v->core) && s != STATUS_LOST)
            checkpoint_clean(v->checkpoints, name);
        return s;
    }
    v->saved = v->core.merge;
    server_journal_saved(v);
    log_info("server: saved %s/%s in %.2f s", v->checkpoints, name, clock_seconds() - began);
    return STATUS_OK;
}

/* Appends a line to merges.jsonl, on rank 0. */
static void server_files_line(server *v, const roster_part *part, int64_t base, double share)
{
    static const char *const words[ROSTER_REFUSALS] = {"taken", "stale", "unsound", "impossible"};
    if (!outer_first_rank(&v->core))
        return;
    json_auto_t *o =
        json_pack("{s:I, s:i, s:s, s:I, s:I, s:I, s:f, s:s}", "merge", (json_int_t)part->merge, "slot", part->slot,
                  "island", v->core.roster.member[part->slot].name, "offer", (json_int_t)part->offer, "base",
                  (json_int_t)base, "tokens", (json_int_t)part->tokens, "share", share, "answer", words[part->refusal]);
    AUTO_FREE char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    AUTO_FREE char *line = text ? must_format("%s\n", text) : NULL;
    if (line && lines_write(v->lines, line, (int64_t)strlen(line), false) != STATUS_OK)
        log_warn("%s; the server goes on", status_message());
}

/* `stopped`: a signal ended the run. */
static status server_files_summary(server *v, bool stopped)
{
    islands_counts c = outer_counted(&v->core);
    if (!outer_first_rank(&v->core))
        return STATUS_OK;
    AUTO_FREE char *path = must_format("%s/summary.json", v->config->run.folder);
    json_auto_t *o =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i}", "run", v->run, "ended",
                  stopped ? "stopped" : "done", "merge", (json_int_t)v->core.merge, "step", (json_int_t)v->step,
                  "merges", (json_int_t)c.merges, "refused", (json_int_t)v->refused, "refused_messages",
                  (json_int_t)c.refused, "bytes_sent", (json_int_t)c.sent, "bytes_received", (json_int_t)c.received,
                  "arena_bytes", (json_int_t)arena_bytes(v->core.memory.arena), "ranks", comm_ranks(v->world));
    AUTO_FREE char *text = json_dumps(o, JSON_INDENT(2));
    TRY(lock_check(v->lock));
    return atomic_replace(path, text, (int64_t)strlen(text));
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Returns the change's factor. Its tokens are relative to the mean of the last changes of the present islands. */
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

/* Carries out an answer that etcd has. */
static void apply_answer(server *v)
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
        if (!o->roster.member[p->slot].parting) /* a leaving island's change may be of one step */
            outer_note_norm(o, p->slot);
        o->merge++;
        v->journal_entries++;
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
    v->last_slot = p->slot;
    server_files_line(v, p, v->base, v->share);
    outer_drop_fetch(o, p->slot);
}

/* ---- offers ------------------------------------------------------------------------------------------------------ */

/* Judges an offer by its age alone. */
static roster_refusal refusal_of(const server *v, const roster_member *m)
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

/* Continues fetching; returns bits of the slots with changes that this rank has. */
static uint64_t fetch_offers(server *v)
{
    uint64_t here = 0;
    for (int s = 0; s < v->config->outer.slots; s++) {
        const roster_member *m = &v->core.roster.member[s];
        if (!is_open(v, s))
            outer_drop_fetch(&v->core, s);
        else if (refusal_of(v, m) == ROSTER_TAKEN)
            here |= (uint64_t)outer_fetch_offer(&v->core, s, m->offer_id) << s;
    }
    return here;
}

/* True once the change is on the disk; else it waits, and its island with it. */
static bool is_durable(server *v)
{
    static const double PATIENCE = 5; /* seconds until the next attempt */
    if (server_journal_write(v) == STATUS_OK)
        return true;
    if (outer_first_rank(&v->core))
        log_warn("%s; nothing is merged until the journal can be written", status_message());
    v->paused_until = v->core.now + PATIENCE;
    v->slot = -1;
    return false;
}

static void decide_offer(server *v, int slot, roster_refusal refusal)
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
    if (taken && m->offer > step) { /* the model's position is the most advanced island's */
        v->step = m->offer;
        v->updates = m->updates;
    }
    /* outer.robust clip: the smallest scale that any rank wants. The journal stores it within the share, so that a
     * replay needs no earlier merge. */
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

/* Answers the next slot with an open offer, in round-robin order. */
static void decide_next(server *v)
{
    outer *o = &v->core;
    uint64_t here = outer_everywhere(o, fetch_offers(v)), bad = outer_refused(o);
    for (int k = 1; k <= ROSTER_SLOTS && v->slot < 0 && o->roster.reached; k++) {
        int s = (v->last_slot + k) % ROSTER_SLOTS;
        if (s >= v->config->outer.slots || !is_open(v, s) || o->now < v->paused_until)
            continue;
        roster_refusal r = refusal_of(v, &o->roster.member[s]);
        if (r != ROSTER_TAKEN || bad >> s & 1)
            decide_offer(v, s, r != ROSTER_TAKEN ? r : ROSTER_UNSOUND);
        else if (here >> s & 1)
            decide_offer(v, s, r);
    }
}

/* Checks whether the answer being written has become the last one to its slot. */
static void look_for_decision(server *v)
{
    const roster *r = &v->core.roster;
    bool won = false;
    for (int i = 0; i < r->parts; i++)
        won |= r->part[i].slot == v->slot && r->part[i].id == v->wanted.id;
    if (won)
        apply_answer(v);
    bool lost = !won && r->reached && r->settled >= v->number; /* withdrawn: the island keeps its change */
    if (lost && v->wanted.refusal == ROSTER_TAKEN)
        server_journal_drop(v, v->core.merge + 1);
    if (won || lost) {
        v->slot = -1;
        v->waits_since = v->core.now;
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* True if every island has ended, and the model has done its steps. */
static bool is_over(server *v)
{
    const outer *o = &v->core;
    if (roster_here(&o->roster) || !o->roster.reached)
        v->alone_since = o->now;
    return v->step >= v->config->train.steps && o->now - v->alone_since > v->config->outer.timeout;
}

/* Fails once etcd has not shown a decision, or has not answered once all steps are done, for 2 x outer.timeout.
 * While etcd is away before that, islands train on, and the server waits for it with them. */
static status check_etcd(server *v)
{
    const outer *o = &v->core;
    double most = 2 * v->config->outer.timeout;
    bool shows = o->roster.reached;
    if (shows ? v->slot < 0 : v->step < v->config->train.steps)
        v->waits_since = o->now;
    return o->now - v->waits_since <= most
               ? STATUS_OK
               : status_fail(STATUS_FAILED,
                             "etcd %s for %.0f s (2 x outer.timeout): the server ends, and the journal keeps its "
                             "merges: start it again once etcd is well",
                             shows ? "answers, but has not shown what this server writes" : "has not answered", most);
}

/* Saves; a failure is retried after the next merge. */
static void save_in_passing(server *v)
{
    if (server_files_save(v) != STATUS_OK && outer_first_rank(&v->core))
        log_warn("%s; the server goes on", status_message());
}

static status merge_offers(bool *stopped, server *v)
{
    int64_t every = v->config->checkpoint.every;
    for (;;) {
        int64_t before = v->core.merge;
        TRY(outer_look(&v->core));
        TRY(comm_all_status(comm_world(v->world), lock_check(v->lock)));
        if (v->slot >= 0)
            look_for_decision(v);
        if (v->slot < 0)
            decide_next(v);
        TRY(check_etcd(v));
        bool merged = v->core.merge != before;
        bool due = merged && ((every > 0 && v->core.merge % every == 0) || server_journal_is_long(v));
        signals_request asked = (signals_request)comm_all_max(comm_world(v->world),
                                                              lock_removed(v->lock) ? SIGNALS_STOP : signals_pending());
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

/* Agrees with etcd's head. Merges have one sequence: a killed server's merges since its last checkpoint are repeated
 * from the journal. Merges missing there are lost, but their numbers are not reused. `head` shows the merge that this
 * server goes on from. */
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
        if (lost) /* the journal has a gap: start it anew */
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

static status run_server(bool *stopped, server *v)
{
    watchdog_enter(v->watchdog, DURING_SETUP, true, 0, "opening the server");
    TRY(outer_open(&v->core, v->config, v->world, v->watchdog, true));
    watchdog_enter(v->watchdog, DURING_LOAD, true, 0, "reading the model");
    TRY(server_files_open(v));
    watchdog_enter(v->watchdog, DURING_SETUP, false, v->core.merge, "claiming the server's place");
    TRY(outer_claim(&v->core, -1));
    TRY(agree_on_head(v));
    v->alone_since = v->waits_since = v->core.now;
    outer_announce(&v->core, v->step, v->updates);
    log_info("server: holds the model of outer.run %s after merge %lld, on %d rank%s, in %s of host memory on this one",
             v->config->outer.run, (long long)v->core.merge, comm_ranks(v->world), comm_ranks(v->world) > 1 ? "s" : "",
             BYTES_TEXT(arena_bytes(v->core.memory.arena)));
    seal_close();
    status s = merge_offers(stopped, v);
    seal_open();
    TRY(s);
    TRY(server_files_save(v));
    watchdog_enter(v->watchdog, DURING_END, true, v->core.merge, "writing the summary");
    return comm_all_status(comm_world(v->world), server_files_summary(v, *stopped));
}

status islands_serve(bool *stopped, const config *c, comm *world, watchdog *w)
{
    server v = {.config = c, .world = world, .watchdog = w, .slot = -1, .last_slot = -1};
    *stopped = false;
    status s = run_server(stopped, &v);
    outer_close(&v.core);
    server_files_close(&v);
    return s;
}
