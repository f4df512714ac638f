/* Finds the beginning of a run: a checkpoint, weights from elsewhere, or fresh weights. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/tokens.h"
#include "engine/islands/islands.h"
#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_find.h"
#include "engine/state/rank/state.h"
#include "engine/state/weights/weights_copy.h"
#include "engine/train/rank/train_meta.h"
#include "engine/train/report/training_report.h"
#include "engine/train/saves/training_saves.h"
#include "engine/state/weights/weights.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/seal.h"
#include "parallel/comm/agree.h"

/* ---- one checkpoint -------------------------------------------------------------------------------------------- */

/* Verdicts on a checkpoint to continue from. */
typedef enum verdict {
    WHOLE,
    DAMAGED, /* an older one may be good */
    REFUSED, /* another would be, too, or the user has to look */
} verdict;

static void say_changed(void *context, const char *key, const char *before, const char *now)
{
    (void)context;
    log_info("resume: %s changes from %s to %s", key, before, now);
}

/* Checks that it is this run's, or its predecessor's, and that its position is possible. */
static status check_meta(training_position *out, const config *saved, const training *t, const json_t *meta,
                         const char *where)
{
    TRY(config_compare_for_resume(saved, t->config, t->new_stage, say_changed, NULL));
    TRY(train_meta_read(out, meta, saved, where));
    bool other_data = t->new_stage && !config_same(saved, t->config, "data.train");
    return comm_rank(t->world) == 0
               ? train_meta_check_data(meta, t->config, t->data.train, t->data.validation, other_data, where)
               : STATUS_OK;
}

/* True if the capacity buckets are the same size: these keys are equal. */
static bool same_buckets(const config *saved, const config *now)
{
    static const char *const keys[] = {"parallel.tensor",    "parallel.context",  "parallel.expert",
                                       "train.sequence",     "train.micro_batch", "model.expert_capacity",
                                       "model.expert_spill", "model.expert_drop", "parallel.expert_dispatch"};
    bool same = true;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        same &= config_same(saved, now, keys[i]);
    return same;
}

/* Begins a stage: it always takes over weights, the optimizer's state and the count of its updates. */
static void begin_stage(training *t, training_position *m, const config *saved, const char *from)
{
    const char *anew = !config_same(saved, t->config, "data.train") ? "data.train" /* numbers name other samples */
                       : !config_same(saved, t->config, "train.sequence") ? "train.sequence"
                       : t->config->checkpoint.restart_data               ? "checkpoint.restart_data"
                                                                          : NULL;
    bool restart = t->config->checkpoint.restart_schedule;
    m->stage_step = m->step;
    m->samples = m->stage_samples = anew ? 0 : m->samples;
    if (restart) {
        m->schedule_step = m->step;
        m->schedule_updates = m->updates;
    }
    if (!config_same(saved, t->config, "train.batch_ramp"))
        m->ramp_step = m->step;
    m->past = (train_past){.began = m->step};
    free(t->stage);
    AUTO_FREE char *data = anew ? must_format("from their first sample (%s)", anew)
                                : must_format("go on at sample %lld", (long long)m->samples);
    t->stage = must_format("begins after step %lld of %s; data %s, the learning rate's schedule %s", (long long)m->step,
                           from, data, restart ? "begins anew (checkpoint.restart_schedule)" : "goes on");
}

/* Warns if other steps, rates or warm-ups bend the learning rate's schedule at the resume point. */
static void say_rate(const training *t, const config *saved, const training_position *m)
{
    learning_rate before = config_learning_rate(saved);
    before.steps -= m->schedule_step;
    int64_t next = m->updates + 1 - m->schedule_updates;
    double was = learning_rate_at(&before, next), is = learning_rate_at(&t->schedule, next);
    bool began_anew = t->new_stage && t->config->checkpoint.restart_schedule;
    if (!began_anew && fabs(was - is) > 0.01 * fmax(fabs(was), fabs(is)))
        log_info(
            "resume: the learning rate jumps: of step %lld it is %.4g, and was to be %.4g: its schedule is of %lld "
            "steps now, and was of %lld (checkpoint.restart_schedule in a new run.folder would begin it anew)",
            (long long)m->step + 1, is, was, (long long)t->schedule.steps, (long long)before.steps);
}

/* Checks that a folder step-N holds the state after step N, so that folders were not swapped. */
static status check_name(const training_position *m, const char *folder)
{
    const char *name = basename(folder);
    long long step;
    int end = 0;
    if (sscanf(name, "step-%lld%n", &step, &end) != 1 || name[end] || step == m->step)
        return STATUS_OK;
    return status_fail(STATUS_FAILED,
                       "%s holds the state after step %lld, and not what its name says: give it back "
                       "its name, or remove it",
                       folder, (long long)m->step);
}

/* Loads a checkpoint. Collective: the same verdict on every rank, with the message of the first that objects. */
static verdict load_state(status *said, training *t, checkpoint *from, const config *saved)
{
    comm_group *all = comm_world(t->world);
    bool has_states = false;
    training_position m = {0};
    *said = comm_all_status(all, check_meta(&m, saved, t, checkpoint_meta(from), checkpoint_folder(from)));
    if (*said != STATUS_OK)
        return REFUSED;
    *said = comm_all_status(all, check_name(&m, checkpoint_folder(from)));
    if (*said != STATUS_OK)
        return DAMAGED;
    *said = comm_all_status(all, state_load(&t->compiled, t->executor, from, &has_states));
    if (*said != STATUS_OK)
        return DAMAGED;
    if (!has_states && m.step > 0) {
        *said = status_fail(STATUS_FAILED,
                            "%s holds no optimizer state to resume from; use model.from to start from its weights",
                            checkpoint_folder(from));
        return REFUSED;
    }
    if (t->new_stage)
        begin_stage(t, &m, saved, checkpoint_folder(from));
    if (!same_buckets(saved, t->config) || m.bucket.at >= compile_buckets(&t->compiled.options))
        m.bucket = (bucket_state){0};
    double configured = t->at.loss_scale;
    t->schedule.steps = t->config->train.steps - m.schedule_step;
    t->at = m;
    if (!precision_row_of(t->config->train.precision)->scales_loss || m.loss_scale <= 0)
        t->at.loss_scale = configured;
    say_rate(t, saved, &m);
    if (t->islands && (*said = islands_restore(t->islands, from)) != STATUS_OK)
        return DAMAGED;
    checkpoint_place_take(&t->saves->branch.loaded, checkpoint_meta(from));
    free(t->saves->origin);
    t->saves->origin = must_strdup(checkpoint_folder(from));
    log_info("resumed from %s after step %lld", checkpoint_folder(from), (long long)t->at.step);
    return WHOLE;
}

/* Tells all ranks whether a checkpoint is another run's; rank 0 looks. */
static status share_elsewhere(bool *out, const training *t, const char *path)
{
    comm_group *all = comm_world(t->world);
    bool within = false;
    TRY(comm_all_status(all, comm_rank(t->world) == 0 ? checkpoint_is_of_run(&within, path, t->folder) : STATUS_OK));
    *out = !within;
    comm_broadcast_bytes(all, out, sizeof *out, 0);
    return STATUS_OK;
}

static verdict restore_from(status *said, training *t, const char *path)
{
    AUTO(checkpoint) *from = NULL;
    *said = share_elsewhere(&t->new_stage, t, path);
    if (*said != STATUS_OK)
        return REFUSED;
    *said = checkpoint_open(&from, path);
    AUTO_FREE char *identity = *said == STATUS_OK ? checkpoint_identity(from) : NULL;
    *said = agree_on(comm_world(t->world), *said, "the checkpoint", identity);
    if (*said == STATUS_USAGE)
        return (void)status_context(*said, "%s", path), REFUSED;
    if (*said != STATUS_OK)
        return DAMAGED;
    RELEASED_BY(config_free) config saved = {0};
    const char *where = checkpoint_folder(from);
    const char *text = json_string_value(json_object_get(checkpoint_meta(from), "config"));
    *said = comm_all_status(comm_world(t->world),
                            text ? config_parse(&saved, where, text, strlen(text), 0, NULL)
                                 : status_fail(STATUS_FAILED, "%s: the manifest holds no configuration", where));
    return *said == STATUS_OK ? load_state(said, t, from, &saved) : REFUSED;
}

/* ---- going back to an earlier checkpoint of the run, which begins another branch of its history
 * (engine/checkpoint/checkpoint_place.h) ---- */

/* Finds the last checkpoints that the run saved and mirrored according to events.jsonl. */
static status find_saved(training_found *out, const training *t)
{
    AUTO_FREE char *path = must_format("%s/events.jsonl", t->folder), *text = NULL;
    int64_t bytes;
    TRY(reading_file(&text, &bytes, path));
    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        json_auto_t *event = json_loadb(line, (size_t)(end - line), 0, NULL);
        const char *what = json_string_value(json_object_get(event, "event"));
        const char *name = json_string_value(json_object_get(event, "words"));
        if (what && name && strcmp(what, "mirrored") == 0)
            out->mirrored = mirror_prefix_step(name);
        if (what && name && strcmp(what, "saved") == 0) {
            free(out->saved);
            out->saved = must_strdup(name);
        }
    }
    return STATUS_OK;
}

/* Returns the step in the name of a checkpoint; -1: another name, or none. */
static int64_t step_of(const char *name)
{
    return name ? mirror_prefix_step(strncmp(name, ".old-", strlen(".old-")) ? name : name + strlen(".old-")) : -1;
}

status training_find(training_found *out, const training *t)
{
    RELEASED_BY(training_found_free) training_found f = {.place = {.step = -1}, .mirrored = -1};
    TRY(checkpoint_offers_find(&f.offers, t->checkpoints));
    TRY(find_saved(&f, t));
    bool any = f.offers.count > 0;
    const char *name = any ? strrchr(f.offers.folder[0], '/') + 1 : f.saved;
    int64_t step = step_of(name);
    if (any && checkpoint_place_read(&f.place, f.offers.folder[0]) != STATUS_OK)
        f.place.step = step; /* damaged: only its name is known */
    f.named = name && step < 0 ? INT64_MAX : step;
    f.went_back = any && !f.offers.trouble && step >= 0 && step_of(f.saved) > step;
    *out = f;
    f = (training_found){0};
    return STATUS_OK;
}

void training_found_free(training_found *f)
{
    checkpoint_offers_free(&f->offers);
    free(f->saved);
}

/* Leaves out undone checkpoints, which are not in the history of the first offer. Keeps damaged checkpoints in the list
 * so that they are reported, unless a later one is readable. */
static void drop_unusable(checkpoint_offers *offers)
{
    AUTO_FREE checkpoint_place *place = must_calloc((unsigned long)offers->count + 1, sizeof *place);
    checkpoint_place *head = &place[0];
    bool went_back = false;
    for (int i = 0; i < offers->count; i++) {
        if (checkpoint_place_read(&place[i], offers->folder[i]) != STATUS_OK)
            place[i].step = -1;
        went_back |= place[i].branch > 0;
        if (place[0].step < 0 && checkpoint_place_later(&place[i], head))
            head = &place[i];
        if (i == 0 && place[0].step >= 0 && place[0].branch == 0)
            break; /* the run never went back */
    }
    int kept = 0;
    for (int i = 0; i < offers->count; i++)
        if (i == 0 || !went_back || place[i].step < 0 || checkpoint_place_within(&place[i], head))
            offers->folder[kept++] = offers->folder[i];
        else
            free(offers->folder[i]);
    offers->count = kept;
}

/* Begins a branch if the loaded state is earlier than the last one. */
static status begin_branch(training *t)
{
    RELEASED_BY(training_found_free) training_found here = {0};
    checkpoint_place *now = &t->saves->branch.now;
    const checkpoint_place *there = &t->saves->mirroring.newest;
    *now = (checkpoint_place){0};
    if (!t->saves->origin || t->new_stage)
        return STATUS_OK;
    TRY(training_find(&here, t));
    *now = t->saves->branch.loaded;
    bool later = checkpoint_place_later(&here.place, now), later_there = checkpoint_place_later(there, now);
    if (!here.went_back && !later && !later_there)
        return STATUS_OK;
    int64_t newest = here.place.branch;
    if (there->step >= 0 && there->branch > newest)
        newest = there->branch;
    checkpoint_place_go_back(now, newest);
    log_info("the run has been further than step %lld: what came after it is undone", (long long)t->at.step);
    return STATUS_OK;
}

/* ---- choice of a checkpoint -------------------------------------------------------------------------------------- */

/* Rank 0: finds checkpoints to continue from. If there are none, fails if one was ever saved: the disk of the
 * checkpoints may not be mounted. */
static status find_offers(checkpoint_offers *out, const training *t)
{
    RELEASED_BY(training_found_free) training_found f = {0};
    TRY(training_find(&f, t));
    drop_unusable(&f.offers);
    if (f.offers.count == 0 && f.saved) {
        log_make_printable(f.saved);
        return status_fail(STATUS_FAILED,
                           "%s holds no checkpoint, but %s/events.jsonl says that the run has saved %s there: mount "
                           "the disk or mend the link; if they are gone for good, checkpoint.resume=never moves what "
                           "is left of the run aside and begins anew (nothing was changed)",
                           t->checkpoints, t->folder, f.saved);
    }
    if (f.offers.count == 0)
        TRY(training_check_folder(t, true));
    *out = f.offers;
    f.offers = (checkpoint_offers){0};
    return STATUS_OK;
}

/* Returns rank 0's text, or NULL, on all ranks; each frees its own. */
static char *share_text(comm_group *all, char *text)
{
    int64_t bytes = text ? (int64_t)strlen(text) + 1 : 0;
    comm_broadcast_bytes(all, &bytes, sizeof bytes, 0);
    if (bytes > 0 && !text)
        text = must_alloc((unsigned long)bytes);
    if (bytes > 0)
        comm_broadcast_bytes(all, text, bytes, 0);
    return text;
}

/* Broadcasts the offers that rank 0 finds, so that no rank starts afresh where another resumes. */
static status share_offers(checkpoint_offers *offers, const training *t)
{
    comm_group *all = comm_world(t->world);
    TRY(comm_all_status(all, comm_rank(t->world) == 0 ? find_offers(offers, t) : STATUS_OK));
    comm_broadcast_bytes(all, &offers->count, sizeof offers->count, 0);
    if (comm_rank(t->world) > 0)
        offers->folder = must_calloc((unsigned long)offers->count, sizeof *offers->folder);
    for (int i = 0; i < offers->count; i++)
        offers->folder[i] = share_text(all, offers->folder[i]);
    return STATUS_OK;
}

/* Warns that the run continues from an older state because of a fault. */
static void say_fallen_back(training *t, const char *words)
{
    if (comm_rank(t->world) > 0)
        return;
    log_warn("%s; going on from an older checkpoint", words);
    free(t->fell_back);
    t->fell_back = must_strdup(words);
}

/* Restores the best offer that can be loaded. */
static status restore_best(training *t, const checkpoint_offers *offers)
{
    bool may = t->config->checkpoint.fallback;
    if (offers->trouble && may)
        say_fallen_back(t, offers->trouble);
    status s = STATUS_OK;
    if (comm_rank(t->world) == 0 && offers->trouble && !may)
        s = status_fail(
            STATUS_FAILED,
            "%s: name a checkpoint (checkpoint.resume=FOLDER), or let an older one do (checkpoint.fallback)",
            offers->trouble);
    TRY(comm_all_status(comm_world(t->world), s));
    AUTO_FREE char *first = NULL;
    for (int i = 0; i < offers->count; i++) {
        verdict v = restore_from(&s, t, offers->folder[i]);
        if (v != DAMAGED || !may)
            break;
        if (!first)
            first = must_strdup(status_message());
        if (i + 1 < offers->count)
            say_fallen_back(t, status_message());
        else if (i > 0)
            s = status_fail(s, "%s; and none of the %d checkpoints before it can be loaded", first, i);
    }
    return s;
}

/* Makes a checkpoint of the nodes' memory if it is newer than those on disk; removes it if the run begins elsewhere. A
 * stage that began from another run has copies of its own. */
static status take_from_memory(training *t)
{
    comm_group *all = comm_world(t->world);
    const char *resume = t->resume;
    int64_t step = -1;
    AUTO_FREE char *trouble = NULL;
    RELEASED_BY(training_found_free) training_found disk = {.named = -1};
    bool own = !strcmp(resume, "auto");
    if (!own && strcmp(resume, "never") != 0)
        TRY(share_elsewhere(&own, t, resume));
    if (!own) {
        node_copies_forget(t->saves->copies);
        return STATUS_OK;
    }
    bool looks = comm_rank(t->world) == 0 && node_copies_count(t->saves->copies);
    TRY(comm_all_status(all, looks ? training_find(&disk, t) : STATUS_OK));
    comm_broadcast_bytes(all, &disk.named, sizeof disk.named, 0);
    TRY(node_copies_adopt(&step, &trouble, t->saves->copies, t->checkpoints, disk.named));
    if (step >= 0)
        log_info("the copies of step %lld in the memory of nodes are a checkpoint now", (long long)step);
    if (trouble)
        say_fallen_back(t, trouble);
    return STATUS_OK;
}

/* Copies the dense model's MLP into all experts; routers stay randomly initialised. */
static status begin_as_dense(training *t, weights *dense)
{
    AUTO(upcycle) *u = NULL;
    TRY(upcycle_open(&u, dense, &t->compiled.options.shape));
    TRY(state_load_weights(&t->compiled, t->executor, upcycle_read, u));
    if (!t->compiled.options.shape.router_renormalise)
        log_warn("model.upcycle: the weights of a token's experts do not sum to 1, so the model does not begin as the "
                 "dense one: model.router_renormalise=true makes them");
    return STATUS_OK;
}

/* Starts with fresh optimizer state; weights are drawn, or model.from's, or some of each. Collective. */
static status start_fresh(training *t)
{
    const config *c = t->config;
    comm_group *all = comm_world(t->world);
    if (!c->model.from || c->model.upcycle)
        state_initialise(&t->compiled, t->executor, (uint64_t)c->train.seed);
    if (!c->model.from)
        return STATUS_OK;
    AUTO(weights) *w = NULL;
    status s = weights_open(&w, c->model.from);
    AUTO_FREE char *identity = s == STATUS_OK ? weights_identity(w) : NULL;
    TRY(agree_on(all, s, "model.from", identity));
    s = c->model.upcycle ? begin_as_dense(t, w) : state_load_weights(&t->compiled, t->executor, weights_read, w);
    TRY(comm_all_status(all, s));
    log_info("weights from %s%s", weights_folder(w), c->model.upcycle ? ", its mlp in each expert" : "");
    return STATUS_OK;
}

/* Restores from the folder that checkpoint.resume names. If it is another run's, a stage begins here, once: from then
 * on the same command resumes the stage's own latest checkpoint (*own). */
static status restore_named(bool *own, training *t)
{
    RELEASED_BY(checkpoint_offers_free) checkpoint_offers offers = {0};
    bool elsewhere = false;
    TRY(share_elsewhere(&elsewhere, t, t->resume));
    if (elsewhere)
        TRY(share_offers(&offers, t));
    *own = offers.count > 0;
    if (*own)
        return restore_best(t, &offers);
    status s;
    (void)restore_from(&s, t, t->resume);
    return s;
}

/* Sets the checkpoint to go back to: the last one of the schedule, as in a run without the restart. `own`: resumed from
 * a checkpoint of its own, by default. */
static void place_back(training *t, bool own)
{
    const config *c = t->config;
    if (!own)
        t->at.past.began = t->at.step;
    if (!t->saves->origin)
        return;
    int64_t scheduled = c->checkpoint.every > 0 ? t->at.step / c->checkpoint.every * c->checkpoint.every : t->at.step;
    const char *slash = strrchr(t->saves->origin, '/');
    if (scheduled > t->at.past.began && slash)
        t->saves->back =
            must_format("%.*s/step-%08lld", (int)(slash - t->saves->origin), t->saves->origin, (long long)scheduled);
    else if (t->at.past.began > 0)
        t->saves->back = must_strdup(t->saves->origin);
}

static status restore_run(training *t, bool *own)
{
    RELEASED_BY(checkpoint_offers_free) checkpoint_offers offers = {0};
    comm_group *all = comm_world(t->world);
    TRY(comm_all_status(all, node_copies_open(&t->saves->copies, t->world, t->folder, t->lock)));
    TRY(take_from_memory(t));
    *own = !strcmp(t->resume, "auto");
    if (*own)
        TRY(share_offers(&offers, t));
    if (offers.count > 0)
        TRY(restore_best(t, &offers));
    else if (*own || strcmp(t->resume, "never") == 0)
        TRY(start_fresh(t));
    else
        TRY(restore_named(own, t));
    if (t->at.step == 0 && t->islands)
        TRY(islands_restore(t->islands, NULL));
    return comm_all_status(all, comm_rank(t->world) == 0 ? begin_branch(t) : STATUS_OK);
}

status training_restore(training *t)
{
    bool own = false;
    watchdog_enter(t->watchdog, DURING_LOAD, true, 0, "reading weights and state");
    status s = restore_run(t, &own);
    if (s == STATUS_OK)
        place_back(t, own);
    watchdog_enter(t->watchdog, DURING_SETUP, true, t->at.step, "opening the run's files");
    return s;
}

/* ---- going back ------------------------------------------------------------------------------------------------- */

/* Rank 0: returns the folder to go back to, which the caller frees; NULL: the run begins anew. Saves on request may
 * since have removed the scheduled one. */
static status choose_back(char **out, const training *t)
{
    bool there;
    *out = NULL;
    if (!t->saves->back)
        return STATUS_OK;
    AUTO_FREE char *path = must_format("%s/manifest.json", t->saves->back);
    TRY(atomic_look(&there, path));
    if (there)
        *out = must_strdup(t->saves->back);
    return there ? STATUS_OK : checkpoint_resolve(out, t->checkpoints);
}

static status go_back(training *t)
{
    comm_group *all = comm_world(t->world);
    AUTO_FREE char *folder = NULL;
    status s = comm_all_status(all, comm_rank(t->world) == 0 ? choose_back(&folder, t) : STATUS_OK);
    folder = share_text(all, folder);
    if (s == STATUS_OK && folder)
        (void)restore_from(&s, t, folder);
    if (s != STATUS_OK || folder)
        return s;
    TRY(start_fresh(t)); /* starts like a new process */
    t->at.step = t->at.updates = t->at.samples = t->at.good_steps = t->at.skipped = 0;
    t->at.past = (train_past){0};
    if (precision_row_of(t->config->train.precision)->scales_loss)
        t->at.loss_scale = t->config->train.loss_scale;
    return STATUS_OK;
}

status training_go_back(training *t)
{
    int64_t from = t->at.step;
    if (training_save_finish(t) != STATUS_OK && comm_rank(t->world) == 0)
        log_warn("%s; the run goes on", status_message());
    seal_open();
    watchdog_enter(t->watchdog, DURING_LOAD, true, from, "going back to a checkpoint");
    state_clear(&t->compiled, t->executor);
    status s = go_back(t);
    t->saved = t->at.step; /* it is on disk, or there is no state to save */
    t->now.ahead = -1;
    t->guards.times_back++;
    watchdog_enter(t->watchdog, DURING_STEP, false, t->at.step, "going on after having gone back");
    if (t->counts.trained_steps > 0)
        seal_close();
    return s;
}
