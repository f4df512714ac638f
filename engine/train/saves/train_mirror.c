/* A run's mirror in an object store (engine/mirror/): its owner, and the checkpoints that the run fetches at its start.
 * Rank 0 asks the store; the others learn the result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/system/atomic.h"
#include "engine/system/lock.h"
#include "engine/system/reading.h"
#include "engine/mirror/mirror.h"
#include "engine/train/report/report.h"
#include "engine/train/saves/training_saves.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "engine/train/report/training_report.h"
#include "memory/units.h"

/* FOLDER/mirror: "ID URL", the run's id and its claimed mirror. */
#define ID_FILE "mirror"

/* Seconds until the store of a mirror that the run has claimed before counts as unreachable. */
static const double PATIENCE = 20;
/* Share of run.setup_seconds that all questions to the store may take at a start. */
static const double SHARE = 0.5;

/* Rank 0's facts of the run at its start. */
typedef struct beginning {
    mirror_prefix prefix;
    object_store *s;
    char id[MANIFEST_RUN];  /* id of the run; "": none yet */
    bool claimed;           /* it has owned this mirror before */
    bool empty;             /* the folder holds no files of a run */
    checkpoint_place place; /* place of the newest checkpoint on disk; step -1: none */
    bool went_back;         /* the user made the folder name an earlier checkpoint */
    int64_t mirrored;       /* step of the last checkpoint that it mirrored; -1: none */
} beginning;

/* ---- the run's id ------------------------------------------------------------------------------------------------ */

/* Examines the folder; if that fails it counts as not empty, without a checkpoint. */
static status look_at_folder(beginning *b, const training *t)
{
    RELEASED_BY(training_found_free) training_found f = {.place = {.step = -1}};
    AUTO_FREE char *path = must_format("%s/" ID_FILE, t->folder), *text = NULL;
    int64_t bytes;
    int end = 0;
    status s = reading_file(&text, &bytes, path);
    if (text && sscanf(text, "%32[0-9a-f] %n", b->id, &end) == 1 && end > 0) {
        text[strcspn(text, "\n")] = 0;
        b->claimed = strcmp(text + end, b->prefix.url) == 0;
    }
    TRY(s);
    b->empty = training_find(&f, t) == STATUS_OK && f.offers.count == 0 && !*b->id;
    b->place = f.place;
    b->went_back = f.went_back;
    b->mirrored = f.mirrored;
    if (f.offers.count > 0 && f.named == INT64_MAX)
        b->place.step = INT64_MAX; /* a custom name counts as the newest */
    return STATUS_OK;
}

/* ---- ownership of the mirror ------------------------------------------------------------------------------------- */

static bool begins_anew(const training *t)
{
    return strcmp(t->config->checkpoint.resume, "never") == 0;
}

/* True if checkpoint.resume names the mirror itself: then a run of another folder's name continues from it. */
static bool names_mirror(const training *t)
{
    RELEASED_BY(mirror_prefix_free) mirror_prefix a = {0}, b = {0};
    const char *resume = t->config->checkpoint.resume, *url = t->config->checkpoint.mirror;
    return url && object_is_url(resume) && mirror_prefix_make(&a, resume) == STATUS_OK &&
           mirror_prefix_make(&b, url) == STATUS_OK && strcmp(a.url, b.url) == 0;
}

static status refuse_mirror(const training *t, const beginning *b, const mirror_owner *there)
{
    return status_fail(
        STATUS_FAILED,
        "checkpoint.mirror: %s is the mirror of another run (%s, of run.folder %s): give this run a prefix "
        "of its own%s%s%s",
        b->prefix.url, there->run, there->folder,
        b->empty && !begins_anew(t) ? ", or go on with that run from there by checkpoint.resume=" : "",
        b->empty && !begins_anew(t) ? b->prefix.url : "", " (nothing was changed)");
}

/* Takes over the mirror of a run that has lost its folder, if this start has the same name, or names the mirror. */
static status take_ownership(beginning *b, const training *t, const mirror_owner *there)
{
    bool same_name = strcmp(there->folder, t->config->run.folder) == 0;
    if (*b->id)
        return strcmp(b->id, there->run) == 0 ? STATUS_OK : refuse_mirror(t, b, there);
    if (!b->empty || begins_anew(t) || !(same_name || names_mirror(t)))
        return refuse_mirror(t, b, there);
    snprintf(b->id, sizeof b->id, "%s", there->run);
    log_info("checkpoint.mirror: %s holds nothing of this run, whose mirror is %s: it goes on from there", t->folder,
             b->prefix.url);
    return STATUS_OK;
}

/* Makes the mirror this run's. Writes the id to disk before the store, so that the next start recognises a claim
 * interrupted in between. */
static status identify_run(training *t, beginning *b, const mirror_owner *there)
{
    if (*there->run)
        TRY(take_ownership(b, t, there));
    else if (!*b->id)
        TRY(manifest_draw_run_id(b->id));
    AUTO_FREE char *path = must_format("%s/" ID_FILE, t->folder), *text = must_format("%s %s\n", b->id, b->prefix.url);
    TRY(lock_check(t->lock));
    return atomic_replace(path, text, (int64_t)strlen(text));
}

static status claim_mirror(training *t, beginning *b, const mirror_owner *there)
{
    mirror_owner mine = {.folder = t->config->run.folder};
    snprintf(mine.run, sizeof mine.run, "%s", b->id);
    if (!*there->run)
        TRY(mirror_prefix_claim(b->s, &b->prefix, &mine));
    TRY(mirror_prefix_hold(b->s, &b->prefix, t->run));
    t->saves->mirroring.held = true;
    return STATUS_OK;
}

/* ---- start of a run ---------------------------------------------------------------------------------------------- */

typedef struct bar {
    report_progress bar;
    bool begun;
} bar;

static void show_progress(void *context, double done, double total)
{
    bar *b = context;
    if (!b->begun)
        b->bar = report_progress_begin(stderr, "fetching a checkpoint", total, true);
    b->begun = true;
    report_progress_update(&b->bar, done);
}

static void end_progress(bar *b)
{
    if (b->begun)
        report_progress_end(&b->bar);
}

/* Chooses the position after which the mirror is newer. If the user names one of the run's checkpoints, the mirror
 * never is; if the user made the folder go back, only a later branch is. */
static status choose_after(checkpoint_place *after, const training *t, const beginning *b)
{
    bool own = false;
    *after = b->place;
    if (strcmp(t->resume, "auto") != 0)
        TRY(checkpoint_is_of_run(&own, t->resume, t->folder));
    if (own)
        after->branch = INT64_MAX;
    if (own || (b->went_back && !names_mirror(t)))
        after->step = INT64_MAX;
    return STATUS_OK;
}

/* Fetches a checkpoint of the mirror that is newer than all on disk. */
static status fetch_newer(training *t, const beginning *b)
{
    mirror_fetched got = {.step = -1};
    checkpoint_place after;
    bar shown = {0};
    TRY(choose_after(&after, t, b));
    const mirror_fetch how = {.folder = t->checkpoints,
                              .owner = t->lock,
                              .run = b->id,
                              .after = after.step < 0 ? NULL : &after,
                              .fallback = t->config->checkpoint.fallback,
                              .progress = show_progress,
                              .context = &shown};
    status s = mirror_fetch_newest(&got, b->s, &b->prefix, &how);
    end_progress(&shown);
    t->saves->mirroring.newest = got.newest;
    if (s == STATUS_OK && got.step >= 0)
        log_info("fetched step %lld from %s", (long long)got.step, b->prefix.url);
    if (s == STATUS_OK && b->claimed && got.named >= 0 && got.named < b->mirrored &&
        !checkpoint_place_later(&got.newest, &b->place))
        log_warn("checkpoint.mirror: %s/latest names step %lld, but this run has mirrored step %lld: the mirror was "
                 "rolled back; the run goes on from its folder and mirrors over it",
                 b->prefix.url, (long long)got.named, (long long)b->mirrored);
    if (s == STATUS_OK && got.trouble) {
        free(t->fell_back);
        t->fell_back = must_strdup(got.trouble);
    }
    free(got.trouble);
    return s;
}

/* Lets a run that has a checkpoint and has owned this mirror before continue if the store does not answer. */
static status forgive_silence(const beginning *b, status s)
{
    if (s == STATUS_OK || !b->claimed || b->place.step < 0 || s == STATUS_USAGE || s == STATUS_LOST)
        return s;
    log_warn("checkpoint.mirror: %s; the run goes on from its folder, and the mirror is tried again beside training",
             status_message());
    return STATUS_OK;
}

static status ask_store(training *t, beginning *b)
{
    mirror_owner there;
    const object_limits limits = {.patience = b->claimed && b->place.step >= 0 ? PATIENCE : 0,
                                  .until = clock_seconds() + SHARE * t->config->run.setup_seconds};
    status s = object_open(&b->s, b->prefix.bucket, &limits);
    if (s == STATUS_OK)
        s = mirror_prefix_owner(&there, b->s, &b->prefix);
    if (s != STATUS_OK)
        return forgive_silence(b, s);
    AUTO_FREE char *folder = there.folder;
    TRY(identify_run(t, b, &there)); /* the mirror of another run is refused for good */
    s = claim_mirror(t, b, &there);
    if (s == STATUS_OK)
        s = fetch_newer(t, b);
    return forgive_silence(b, s);
}

static void end_beginning(beginning *b)
{
    object_close(b->s);
    mirror_prefix_free(&b->prefix);
}

static status begin_mirror(training *t)
{
    RELEASED_BY(end_beginning) beginning b = {.place = {.step = -1}};
    TRY(mirror_prefix_make(&b.prefix, t->config->checkpoint.mirror));
    TRY(look_at_folder(&b, t));
    status s = ask_store(t, &b);
    snprintf(t->saves->mirroring.id, sizeof t->saves->mirroring.id, "%s", b.id);
    return s;
}

/* Checks, with checkpoint.resume=never, that the mirror has no owner. */
static status check_free(const training *t)
{
    RELEASED_BY(end_beginning) beginning b = {0};
    mirror_owner there;
    TRY(mirror_prefix_make(&b.prefix, t->config->checkpoint.mirror));
    TRY(object_open(&b.s, b.prefix.bucket, NULL));
    TRY(mirror_prefix_owner(&there, b.s, &b.prefix));
    AUTO_FREE char *folder = there.folder;
    return *there.run ? refuse_mirror(t, &b, &there) : STATUS_OK;
}

/* Fetches the checkpoint of another run's mirror to FOLDER/origin once, if a stage begins from it. */
static status fetch_origin(training *t)
{
    RELEASED_BY(checkpoint_offers_free) checkpoint_offers own = {0};
    AUTO_FREE char *fetched = NULL, *to = must_format("%s/" CHECKPOINT_ORIGIN, t->folder);
    bar shown = {0};
    const mirror_fetch how = {
        .folder = to, .owner = t->lock, .fallback = false, .progress = show_progress, .context = &shown};
    status s = checkpoint_offers_find(&own, t->checkpoints);
    if (s == STATUS_OK && own.count == 0)
        s = mirror_fetch_url(&fetched, t->config->checkpoint.resume, &how);
    end_progress(&shown);
    return s == STATUS_OK ? s : status_context(s, "checkpoint.resume");
}

/* Checks the mirror first: a run that may not have it does not move the existing one aside. */
status training_mirror_begin(training *t, bool aside)
{
    const char *resume = t->config->checkpoint.resume;
    bool other = object_is_url(resume) && !names_mirror(t), first = comm_rank(t->world) == 0;
    free(t->resume);
    t->resume = names_mirror(t) ? must_strdup("auto")
                : other         ? must_format("%s/" CHECKPOINT_ORIGIN, t->folder)
                                : must_strdup(resume);
    status s = STATUS_OK;
    if (first && t->config->checkpoint.mirror && begins_anew(t) == aside)
        s = begin_mirror(t);
    else if (first && t->config->checkpoint.mirror && begins_anew(t))
        s = check_free(t);
    if (first && s == STATUS_OK && other && !aside)
        s = fetch_origin(t);
    return comm_all_status(comm_world(t->world), s);
}

/* ---- uploads: rank 0's thread and its reports ---- */

/* Most seconds that a run waits for its last upload if asked to stop. */
static const double MOST_AFTER_STOP = 60;

status training_upload_open(training *t)
{
    training_mirroring *m = &t->saves->mirroring;
    const config *c = t->config;
    if (!c->checkpoint.mirror || comm_rank(t->world) > 0)
        return STATUS_OK;
    mirror_owner owner = {.folder = c->run.folder};
    snprintf(owner.run, sizeof owner.run, "%s", m->id);
    TRY(mirror_open(&m->thread, &(mirror_options){.url = c->checkpoint.mirror,
                                                  .start = t->run,
                                                  .folder = t->folder,
                                                  .largest = t->saving.copy_bytes,
                                                  .keep = c->checkpoint.keep,
                                                  .keep_every = c->checkpoint.keep_every,
                                                  .held = m->held,
                                                  .owner = &owner}));
    t->saving.mirror = &m->facts;
    const char *slash = t->saves->origin ? strrchr(t->saves->origin, '/') : NULL;
    if (slash && !t->new_stage && mirror_prefix_step(slash + 1) >= 0)
        mirror_offer(m->thread, slash + 1);
    return STATUS_OK;
}

/* Reports changes since the last call as events. */
void training_upload_look(training *t)
{
    training_mirroring *m = &t->saves->mirroring;
    if (!m->thread)
        return;
    mirror_facts before = m->facts;
    m->facts = mirror_now(m->thread);
    if (m->facts.uploaded > before.uploaded)
        training_event(t, "mirrored", m->facts.step, m->facts.name);
    if (m->facts.failing && !before.failing)
        training_event(t, "mirror failing", t->at.step, m->facts.why);
}

/* The watchdog allows run.save_seconds for a save. */
void training_upload_finish(training *t, bool stopped)
{
    double most = 0.8 * t->config->run.save_seconds;
    most = stopped && most > MOST_AFTER_STOP ? MOST_AFTER_STOP : most;
    if (!t->config->checkpoint.mirror)
        return;
    watchdog_enter(t->watchdog, DURING_SAVE, comm_rank(t->world) == 0, t->at.step, "waiting for the mirror");
    training_upload_look(t);
    const mirror_facts *f = &t->saves->mirroring.facts;
    if (t->saves->mirroring.thread && f->behind_bytes > 0)
        log_info("waiting for %s to %s, for %.0f s at most", BYTES_TEXT(f->behind_bytes), t->config->checkpoint.mirror,
                 most);
    bool all = !t->saves->mirroring.thread || mirror_finish(t->saves->mirroring.thread, most);
    training_upload_look(t);
    if (!all && !f->ended)
        log_warn("checkpoint.mirror: %s of the last checkpoint are not in %s yet%s%s: it is in %s; the same command "
                 "begins with what is missing, and trains on only if steps are left",
                 BYTES_TEXT(f->behind_bytes), t->config->checkpoint.mirror, *f->why ? ": " : "", f->why,
                 t->checkpoints);
    (void)comm_all_status(comm_world(t->world), STATUS_OK);
}
