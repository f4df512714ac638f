/* A server's files: the model it begins from, checkpoints, what it has merged. */
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint_find.h"
#include "engine/system/direct.h"
#include "engine/islands/server/server_internal.h"
#include "engine/state/rank/state.h"
#include "engine/state/weights/weights_copy.h"
#include "engine/state/weights/weights.h"
#include "memory/arena.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

#define META "server"

static bool first_rank(const server *v)
{
    return comm_rank(v->world) == 0;
}

/* ---- where the model begins -------------------------------------------------------------------------------------- */

/* As training on one rank would have it. */
static void draw_model(outer *o)
{
    const model_shape *shape = &o->config->model.shape;
    decoder model = {0};
    pool p = {0};
    const int first = 0, layers = shape->layers;
    const decoder_layout whole = {.grid = recorder_alone(),
                                  .compute = DTYPE_FP32,
                                  .chunk_count = 1,
                                  .first_layer = &first,
                                  .layers = &layers,
                                  .total_layers = layers};
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

static status begin_model(server *v)
{
    const char *from = v->config->model.from;
    const bool dense = v->config->model.upcycle;
    AUTO(weights) *w = NULL;
    if (!from || dense)
        draw_model(&v->core);
    if (!from)
        return STATUS_OK;
    TRY(weights_open(&w, from));
    if (dense) {
        AUTO(upcycle) *u = NULL;
        TRY(upcycle_open(&u, w, &v->config->model.shape));
        TRY(read_units(&v->core, upcycle_read, u));
    } else {
        TRY(read_units(&v->core, weights_read, w));
    }
    log_info("server: weights from %s", weights_folder(w));
    return STATUS_OK;
}

static status load(server *v, const char *folder)
{
    AUTO(checkpoint) *from = NULL;
    roster head = {0};
    TRY(checkpoint_open(&from, folder));
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

/* The latest checkpoint that can be read, rank 0 naming them in turn; *found false: there is none. */
static status restore(bool *found, server *v)
{
    comm_group *all = comm_world(v->world);
    checkpoint_offers offers = {0};
    status s = first_rank(v) ? checkpoint_offers_find(&offers, v->checkpoints) : STATUS_OK;
    s = comm_all_status(all, s);
    comm_broadcast_bytes(all, &offers.count, sizeof offers.count, 0);
    *found = s == STATUS_OK && offers.count > 0;
    for (int i = 0; i < offers.count && *found; i++) {
        char path[4096] = "";
        if (first_rank(v))
            snprintf(path, sizeof path, "%s", offers.folder[i]);
        comm_broadcast_bytes(all, path, sizeof path, 0);
        s = comm_all_status(all, load(v, path));
        if (s == STATUS_OK || !v->config->checkpoint.fallback || i + 1 == offers.count)
            break;
        if (first_rank(v))
            log_warn("%s; going on from an older checkpoint", status_message());
    }
    if (!first_rank(v))
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
    TRY(restore(&found, v));
    return found ? STATUS_OK : comm_all_status(comm_world(v->world), begin_model(v));
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static status open_first(server *v)
{
    static const double LEASE = 30; /* seconds */
    const config *c = v->config;
    TRY(atomic_make_folders(c->run.folder));
    AUTO_FREE char *lock_path = must_format("%s/lock", c->run.folder), *text = config_text(c);
    AUTO_FREE char *config_path = must_format("%s/config.yaml", c->run.folder);
    AUTO_FREE char *lines_path = must_format("%s/merges.jsonl", c->run.folder);
    if (c->run.lock)
        TRY(lock_take(&v->lock, lock_path, v->run, LEASE));
    TRY(atomic_replace(config_path, text, (int64_t)strlen(text)));
    TRY(checkpoint_tidy(v->checkpoints));
    return lines_open(&v->lines, lines_path);
}

status server_files_open(server *v)
{
    comm_group *all = comm_world(v->world);
    v->checkpoints = must_format("%s/checkpoints", v->config->run.folder);
    v->saved = -1;
    snprintf(v->run, sizeof v->run, "%s", watchdog_run(v->watchdog));
    TRY(comm_all_status(all, first_rank(v) ? open_first(v) : STATUS_OK));
    TRY(open_model(v));
    v->buffer = aligned_alloc(DIRECT_ALIGNMENT, CHECKPOINT_WRITER_BUFFER);
    MUST(v->buffer, "out of host memory");
    v->writer = checkpoint_writer_open(
        &(checkpoint_writer_options){.share = {v->core.memory.pieces, v->core.memory.piece_count, comm_rank(v->world),
                                               comm_ranks(v->world), v->run, false},
                                     .buffer = v->buffer});
    if (first_rank(v))
        v->publisher = checkpoint_publisher_open(comm_ranks(v->world), v->run, v->buffer);
    return STATUS_OK;
}

void server_files_close(server *v)
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

static status publish(server *v, const char *name)
{
    AUTO_FREE char *text = config_text(v->config);
    json_auto_t *meta = json_pack("{s:s, s:I, s:o}", "config", text, "step", (json_int_t)v->step, META,
                                  server_head(v, NULL, v->core.merge));
    if (v->lock && !lock_confirm(v->lock))
        return status_fail(STATUS_FAILED, "the server's folder belongs to another process by now");
    TRY(checkpoint_publisher_publish(v->publisher, v->checkpoints, name, meta));
    if (checkpoint_prune(v->checkpoints, v->config->checkpoint.keep, v->config->checkpoint.keep_every, NULL) !=
        STATUS_OK)
        log_warn("%s; an older checkpoint stays", status_message());
    return STATUS_OK;
}

status server_files_save(server *v)
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
        s = comm_all_status(all, first_rank(v) ? publish(v, name) : STATUS_OK);
    watchdog_enter(v->watchdog, DURING_STEP, false, v->core.merge, "serving islands");
    if (s != STATUS_OK) {
        if (first_rank(v))
            checkpoint_clean(v->checkpoints, name);
        return s;
    }
    v->saved = v->core.merge;
    server_journal_saved(v);
    log_info("server: saved %s/%s in %.2f s", v->checkpoints, name, clock_seconds() - began);
    return STATUS_OK;
}

void server_files_line(server *v, const roster_part *part, int64_t base, double share)
{
    static const char *const words[ROSTER_REFUSALS] = {"taken", "stale", "unsound", "impossible"};
    if (!first_rank(v))
        return;
    json_auto_t *o =
        json_pack("{s:I, s:i, s:s, s:I, s:I, s:I, s:f, s:s}", "merge", (json_int_t)part->merge, "slot", part->slot,
                  "island", v->core.roster.member[part->slot].name, "offer", (json_int_t)part->offer, "base",
                  (json_int_t)base, "tokens", (json_int_t)part->tokens, "share", share, "answer", words[part->refusal]);
    AUTO_FREE char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    AUTO_FREE char *line = text ? must_format("%s\n", text) : NULL;
    if (line && lines_write(v->lines, line, false) != STATUS_OK)
        log_warn("%s; the server goes on", status_message());
}

status server_files_summary(server *v, bool stopped)
{
    islands_counts c = outer_counted(&v->core);
    if (!first_rank(v))
        return STATUS_OK;
    AUTO_FREE char *path = must_format("%s/summary.json", v->config->run.folder);
    json_auto_t *o =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i}", "run", v->run, "ended",
                  stopped ? "stopped" : "done", "merge", (json_int_t)v->core.merge, "step", (json_int_t)v->step,
                  "merges", (json_int_t)c.merges, "refused", (json_int_t)v->refused, "refused_messages",
                  (json_int_t)c.refused, "bytes_sent", (json_int_t)c.sent, "bytes_received", (json_int_t)c.received,
                  "arena_bytes", (json_int_t)arena_bytes(v->core.memory.arena), "ranks", comm_ranks(v->world));
    AUTO_FREE char *text = json_dumps(o, JSON_INDENT(2));
    return atomic_replace(path, text, (int64_t)strlen(text));
}
