#include "engine/mirror/mirror.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/system/lock.h"
#include "engine/system/reading.h"
#include "engine/store/download.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_MANIFEST = 1 << 30, MOST_FILES = 1000000 };
static const double SHOWN_EVERY = 0.2; /* seconds */

/* A checkpoint being fetched. */
typedef struct job {
    object_store *s;
    const mirror_prefix *prefix;
    const mirror_fetch *how;
    const char *name; /* name in the mirror */
    char *temporary;  /* path on the disk */
    char *text;       /* the manifest */
    int64_t text_bytes;
    manifest *manifest;
    object_listing listing; /* objects found */
    int64_t total;
    bool damaged; /* the mirror is at fault, not the disk or the network */
    bool wrong;   /* and a file's bytes are not the manifest's */
} job;

/* ---- the checkpoint's objects ------------------------------------------------------------------------------------ */

static status fail_damaged(job *j, const char *file, const char *what)
{
    j->damaged = true;
    return status_fail(STATUS_FAILED, "%s/%s/%s %s", j->prefix->url, j->name, file, what);
}

static int compare_key(const void *key, const void *entry)
{
    return strcmp(key, ((const object_entry *)entry)->key);
}

static const object_entry *find_entry(const job *j, const char *file)
{
    AUTO_FREE char *key = mirror_prefix_key(j->prefix, j->name, file);
    const object_listing *l = &j->listing;
    return l->count ? bsearch(key, l->entry, (size_t)l->count, sizeof *l->entry, compare_key) : NULL;
}

/* Checks that it is this run's, and of the step in its name, before anything large is fetched. */
static status check_manifest(job *j)
{
    checkpoint_place place;
    const char *run = json_string_value(json_object_get(j->manifest->meta, "run_id"));
    checkpoint_place_take(&place, j->manifest->meta);
    if (j->how->run && run && strcmp(run, j->how->run) != 0)
        return fail_damaged(j, "manifest.json", "is another run's");
    return place.step == mirror_prefix_step(j->name)
               ? STATUS_OK
               : fail_damaged(j, "manifest.json", "is not of the step that its name says");
}

static status read_manifest(job *j)
{
    AUTO_FREE char *key = mirror_prefix_key(j->prefix, j->name, "manifest.json");
    AUTO_FREE char *where = must_format("%s/%s/manifest.json", j->prefix->url, j->name);
    TRY(object_read_whole(&j->text, &j->text_bytes, j->s, key, MOST_MANIFEST));
    if (!j->text)
        return fail_damaged(j, "manifest.json", "is not there");
    status parsed = manifest_parse(&j->manifest, j->text, j->text_bytes, where);
    j->damaged |= parsed != STATUS_OK;
    return parsed == STATUS_OK ? check_manifest(j) : parsed;
}

/* Checks that all files are there with the manifest's lengths. */
static status check_lengths(job *j)
{
    const manifest *m = j->manifest;
    for (int i = 0; i < m->file_count; i++) {
        const object_entry *e = find_entry(j, m->files[i].name);
        if (!e)
            return fail_damaged(j, m->files[i].name, "is not there");
        if (e->bytes != m->files[i].bytes)
            return fail_damaged(j, m->files[i].name, "has another size than the manifest says");
        j->total += e->bytes;
    }
    return STATUS_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Blames the object for a failed read, if the store answers otherwise. Keeps the failure's message. */
static void note_fault(job *j, download_fault fault)
{
    RELEASED_BY(mirror_owner_free) mirror_owner owner = {0};
    AUTO_FREE char *words = must_strdup(status_message());
    j->wrong = fault == DOWNLOAD_DAMAGED;
    j->damaged |= j->wrong || (fault == DOWNLOAD_UNREAD && mirror_prefix_owner(&owner, j->s, j->prefix) == STATUS_OK);
    (void)status_fail(STATUS_FAILED, "%s", words);
}

static void show_progress(void *context, int64_t done)
{
    const job *j = context;
    if (j->how->progress)
        j->how->progress(j->how->context, (double)done, (double)j->total);
}

static status fetch_files(job *j)
{
    int count = j->manifest->file_count;
    AUTO_FREE download_item *items = must_calloc((unsigned long)count + 1, sizeof *items);
    download_fault fault = DOWNLOAD_ELSEWHERE;
    for (int i = 0; i < count; i++) {
        const manifest_file *f = &j->manifest->files[i];
        const object_entry *e = find_entry(j, f->name);
        items[i] = (download_item){.key = e->key,
                                   .etag = e->etag,
                                   .path = must_format("%s/%s", j->temporary, f->name),
                                   .bytes = e->bytes,
                                   .has_crc32c = f->has_crc32c,
                                   .crc32c = f->crc32c};
    }
    const download_watcher watcher = {.progress = show_progress, .every = SHOWN_EVERY, .context = j};
    status result = download(j->prefix->bucket, items, count, 0666, &watcher, &fault);
    if (result != STATUS_OK)
        note_fault(j, fault);
    for (int i = 0; i < count; i++)
        free((char *)items[i].path);
    return result;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* Fails if FOLDER/refused has a line for this version, which was fetched and had wrong bytes: its name, a checksum of
 * its manifest and its objects' ETags, the reason. A run without a checkpoint of its own tries again. */
static status check_refusals(char **version, job *j, const char *path)
{
    AUTO_FREE char *text = NULL;
    uint32_t sum = crc32c(0, j->text, j->text_bytes);
    int64_t bytes;
    for (int64_t i = 0; i < j->listing.count; i++)
        sum = crc32c(sum, j->listing.entry[i].etag, (int64_t)strlen(j->listing.entry[i].etag));
    *version = must_format("%s %08x ", j->name, (unsigned)sum);
    TRY(reading_file(&text, &bytes, path));
    char *line = text && j->how->after ? strstr(text, *version) : NULL;
    if (!line)
        return STATUS_OK;
    line[strcspn(line, "\n")] = 0;
    j->damaged = true;
    return status_fail(STATUS_FAILED,
                       "%s/%s is not fetched again until its objects change, or %s is removed, since it was refused: "
                       "%s",
                       j->prefix->url, j->name, path, line + strlen(*version));
}

static status note_refusal(const job *j, const char *path, const char *version, const char *words)
{
    AUTO_FREE char *before = NULL, *reason = must_strdup(words);
    int64_t bytes;
    TRY(reading_file(&before, &bytes, path));
    TRY(lock_check(j->how->owner));
    log_make_printable(reason);
    AUTO_FREE char *text = must_format("%s%s%s\n", before ? before : "", version, reason);
    return atomic_replace(path, text, (int64_t)strlen(text));
}

/* ---- one checkpoint ---------------------------------------------------------------------------------------------- */

/* Publishes it. A folder already of that name has no manifest, or belongs to a run that has been lost. */
static status publish_folder(const job *j, const char *name)
{
    AUTO_FREE char *path = must_format("%s/manifest.json", j->temporary),
                   *final = must_format("%s/%s", j->how->folder, name);
    TRY(lock_check(j->how->owner));
    TRY(atomic_replace(path, j->text, j->text_bytes));
    TRY(atomic_remove(final));
    return atomic_rename(j->temporary, final);
}

static status fetch_into(job *j, const char *name)
{
    AUTO_FREE char *below = mirror_prefix_key(j->prefix, j->name, "");
    TRY(read_manifest(j));
    TRY(object_list(&j->listing, j->s, below, true, MOST_FILES));
    TRY(check_lengths(j));
    AUTO_FREE char *refused = must_format("%s/refused", j->how->folder), *version = NULL;
    TRY(check_refusals(&version, j, refused));
    TRY(lock_check(j->how->owner));
    TRY(atomic_make_folders(j->how->folder));
    TRY(atomic_remove(j->temporary));
    TRY(atomic_make_own_folder(j->temporary));
    status result = fetch_files(j);
    if (result == STATUS_OK)
        result = publish_folder(j, name);
    if (result != STATUS_OK && result != STATUS_LOST) {
        AUTO_FREE char *words = must_strdup(status_message());
        (void)atomic_remove(j->temporary);
        if (j->wrong && j->how->after)
            (void)note_refusal(j, refused, version, words);
        result = status_fail(result, "%s", words);
    }
    return result;
}

static void free_job(job *j)
{
    object_listing_free(&j->listing);
    manifest_free(j->manifest);
    free(j->text);
    free(j->temporary);
}

/* Fetches the checkpoint `name` of the mirror as FOLDER/step-N. */
static status fetch(bool *damaged, object_store *s, const mirror_prefix *p, const char *name, const mirror_fetch *how)
{
    char local[MIRROR_NAME];
    int64_t step = mirror_prefix_step(name);
    snprintf(local, sizeof local, "step-%08lld", (long long)step);
    RELEASED_BY(free_job) job j = {.s = s, .prefix = p, .how = how, .name = name};
    j.temporary = must_format("%s/.tmp-%s", how->folder, local);
    status result = fetch_into(&j, local);
    *damaged = j.damaged;
    return result;
}

static status set_latest(const mirror_fetch *how, int64_t step)
{
    AUTO_FREE char *path = must_format("%s/latest", how->folder), *line = must_format("step-%08lld\n", (long long)step);
    TRY(lock_check(how->owner));
    return atomic_replace(path, line, (int64_t)strlen(line));
}

/* ---- choosing a checkpoint --------------------------------------------------------------------------------------- */

static void say_trouble(mirror_fetched *out, char *words)
{
    log_make_printable(words);
    log_warn("checkpoint.mirror: %s", words);
    if (out->trouble)
        free(words);
    else
        out->trouble = words;
}

/* The mirror's checkpoints during the choice of one. */
typedef struct choice {
    mirror_fetched *out;
    object_store *s;
    const mirror_prefix *prefix;
    const mirror_fetch *how;
    char latest[MIRROR_NAME];
    mirror_checkpoints all;
    checkpoint_place *place; /* [all.count], if looked at; step -1: unknown, or tried already */
    checkpoint_place head;   /* checkpoint that defines the history; step -1: unknown */
} choice;

/* Reads a checkpoint's place from its manifest; step -1 if that is damaged. Fails if the store does not answer. */
static status look_at_place(checkpoint_place *out, const choice *c, const char *name)
{
    RELEASED_BY(free_job) job j = {.s = c->s, .prefix = c->prefix, .how = c->how, .name = name};
    *out = (checkpoint_place){.step = -1};
    status result = read_manifest(&j);
    if (result == STATUS_OK)
        checkpoint_place_take(out, j.manifest->meta);
    return j.damaged ? STATUS_OK : result;
}

/* Looks at the checkpoints before `latest`, which may replace it. A step after it has been undone, and its branch's
 * number is taken. */
static status look_at_others(choice *c, int latest)
{
    int64_t last = mirror_prefix_step(c->latest);
    for (int i = 0; i < c->all.count; i++) {
        const mirror_checkpoint *x = &c->all.item[i];
        if (i == latest || !x->whole)
            continue;
        TRY(look_at_place(&c->place[i], c, x->name));
        if (checkpoint_place_later(&c->place[i], &c->out->newest))
            c->out->newest = c->place[i];
        if (*c->latest && x->step >= last)
            c->place[i].step = -1;
    }
    return STATUS_OK;
}

/* Returns the latest remaining one; -1: none. */
static int choose_latest(const choice *c)
{
    int best = -1;
    for (int i = 0; i < c->all.count; i++) {
        const checkpoint_place *p = &c->place[i];
        bool fits = p->step >= 0 && (c->head.step < 0 || checkpoint_place_within(p, &c->head)) &&
                    (!c->how->after || checkpoint_place_later(p, c->how->after));
        if (fits && (best < 0 || checkpoint_place_later(p, &c->place[best])))
            best = i;
    }
    return best;
}

/* Skips damaged checkpoints, if that is allowed. */
static status try_one(bool *done, choice *c, int i)
{
    const mirror_checkpoint *x = &c->all.item[i];
    bool damaged = false;
    status result = c->out->trouble && !c->how->fallback ? status_fail(STATUS_FAILED, "%s", c->out->trouble)
                                                         : fetch(&damaged, c->s, c->prefix, x->name, c->how);
    *done = result == STATUS_OK;
    if (*done) {
        c->out->step = x->step;
        return set_latest(c->how, x->step);
    }
    if (!damaged || !c->how->fallback)
        return result;
    say_trouble(c->out, must_format("%s; an older checkpoint is looked for", status_message()));
    c->place[i].step = -1;
    return STATUS_OK;
}

static status try_others(choice *c)
{
    bool done = false;
    for (int i; (i = choose_latest(c)) >= 0 && !done;) {
        if (c->head.step < 0)
            c->head = c->place[i];
        TRY(try_one(&done, c, i));
    }
    return done || c->how->after || !c->out->trouble
               ? STATUS_OK
               : status_fail(STATUS_FAILED, "%s; and there is no other checkpoint", c->out->trouble);
}

/* True if `latest` may be later than the local one; a damaged one has only its name to go by. */
static bool may_be_later(const choice *c)
{
    const checkpoint_place *after = c->how->after;
    if (!after)
        return true;
    return c->head.step < 0 ? mirror_prefix_step(c->latest) > after->step : checkpoint_place_later(&c->head, after);
}

static status fetch_best(choice *c)
{
    int latest = -1;
    bool done = false;
    for (int i = 0; i < c->all.count; i++) {
        latest = c->all.item[i].whole && strcmp(c->all.item[i].name, c->latest) == 0 ? i : latest;
        c->place[i].step = -1;
    }
    if (latest >= 0)
        TRY(look_at_place(&c->head, c, c->latest));
    c->out->newest = c->head;
    /* a whole checkpoint of a later step: the run has gone back */
    bool later = *c->latest && c->all.count > 0 && c->all.item[0].step > mirror_prefix_step(c->latest);
    if (latest < 0 || later)
        TRY(look_at_others(c, latest));
    if (latest >= 0 && !may_be_later(c))
        return STATUS_OK;
    if (latest >= 0)
        TRY(try_one(&done, c, latest));
    else if (*c->latest && choose_latest(c) >= 0)
        say_trouble(c->out, must_format("%s/latest names %s, which is not there", c->prefix->url, c->latest));
    if (!done && latest >= 0)
        TRY(look_at_others(c, latest));
    return done ? STATUS_OK : try_others(c);
}

status mirror_fetch_newest(mirror_fetched *out, object_store *s, const mirror_prefix *p, const mirror_fetch *how)
{
    choice c = {.out = out, .s = s, .prefix = p, .how = how, .head = {.step = -1}};
    *out = (mirror_fetched){.step = -1, .newest = {.step = -1}, .named = -1};
    TRY(mirror_prefix_latest(c.latest, s, p));
    out->named = mirror_prefix_step(c.latest);
    TRY(mirror_prefix_list(&c.all, s, p));
    c.place = must_calloc((unsigned long)c.all.count + 1, sizeof *c.place);
    status result = fetch_best(&c);
    free(c.place);
    mirror_prefix_list_free(&c.all);
    return result;
}

/* ---- by URL ------------------------------------------------------------------------------------------------------ */

static status fetch_from(int64_t *step, const char *url, const mirror_prefix *p, object_store *s,
                         const mirror_fetch *how)
{
    bool damaged;
    mirror_fetched got;
    if (*step >= 0) { /* PREFIX/step-N */
        TRY(fetch(&damaged, s, p, url + strlen(p->url) + 1, how));
        return set_latest(how, *step);
    }
    status result = mirror_fetch_newest(&got, s, p, how);
    free(got.trouble);
    *step = got.step;
    if (result == STATUS_OK && got.step < 0)
        result = status_fail(STATUS_FAILED, "%s holds no checkpoint: neither latest nor a step-N with a manifest.json",
                             p->url);
    return result;
}

status mirror_fetch_url(char **out, const char *url, const mirror_fetch *how)
{
    RELEASED_BY(mirror_prefix_free) mirror_prefix p = {0};
    AUTO(object_store) *s = NULL;
    int64_t step = -1;
    AUTO_FREE char *path = must_strdup(url);
    for (size_t n = strlen(path); n > 0 && path[n - 1] == '/';)
        path[--n] = 0;
    AUTO_FREE char *above = must_strdup(path);
    char *slash = object_is_folder(path) ? NULL : strrchr(above, '/');
    if (slash && (step = mirror_prefix_step(slash + 1)) >= 0)
        *slash = 0;
    TRY(mirror_prefix_make(&p, above));
    TRY(object_open(&s, p.bucket, NULL));
    TRY(fetch_from(&step, path, &p, s, how));
    *out = must_format("%s/step-%08lld", how->folder, (long long)step);
    return STATUS_OK;
}
