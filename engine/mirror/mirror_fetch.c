#include "engine/mirror/mirror_fetch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/atomic.h"
#include "engine/files/direct.h"
#include "memory/clock.h"
#include "memory/log.h"

enum { HELPERS = 4, PIECE = 8 << 20, MOST_MANIFEST = 1 << 30, MOST_FILES = 1000000 };

/* One checkpoint that is fetched, by several threads. */
typedef struct job {
    s3 *s;
    const mirror_prefix *prefix;
    const mirror_fetch *how;
    const char *name; /* in the mirror */
    char *temporary;  /* on the disk */
    char *text;       /* the manifest */
    int64_t text_bytes;
    manifest *manifest;
    s3_listing listing; /* what is there of it */
    int64_t total;

    atomic_bool stop;
    _Atomic int64_t done;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int next, working;
    status result;
    atomic_bool unread; /* an object could not be read */
    bool damaged;       /* the failure is the mirror's, not the disk's or the network's */
    char message[2048];
} job;

/* ---- what is there ----------------------------------------------------------------------------------------------- */

static status damage(job *j, const char *file, const char *what)
{
    j->damaged = true;
    return status_fail(STATUS_FAILED, "%s/%s/%s %s", j->prefix->url, j->name, file, what);
}

static const s3_entry *find_entry(const job *j, const char *file)
{
    char *key = mirror_prefix_key(j->prefix, j->name, file);
    const s3_entry *found = NULL;
    for (int64_t low = 0, high = j->listing.count; low < high && !found;) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(key, j->listing.entry[middle].key);
        if (order == 0)
            found = &j->listing.entry[middle];
        else if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    free(key);
    return found;
}

static status read_manifest(job *j)
{
    char *key = mirror_prefix_key(j->prefix, j->name, "manifest.json");
    char *where = must_format("%s/%s/manifest.json", j->prefix->url, j->name);
    status result = s3_get_all(&j->text, &j->text_bytes, j->s, key, MOST_MANIFEST);
    if (result == STATUS_OK && !j->text)
        result = damage(j, "manifest.json", "is not there");
    if (result == STATUS_OK && manifest_parse(&j->manifest, j->text, j->text_bytes, where) != STATUS_OK) {
        j->damaged = true;
        result = STATUS_FAILED;
    }
    free(where);
    free(key);
    return result;
}

/* Is it of this run, and are all files there, as long as the manifest says? */
static status check_manifest(job *j)
{
    const manifest *m = j->manifest;
    const char *run = json_string_value(json_object_get(m->meta, "run_id"));
    if (j->how->run && run && strcmp(run, j->how->run) != 0)
        return damage(j, "manifest.json", "is another run's");
    for (int i = 0; i < m->file_count; i++) {
        const s3_entry *e = find_entry(j, m->files[i].name);
        if (!e)
            return damage(j, m->files[i].name, "is not there");
        if (e->bytes != m->files[i].bytes)
            return damage(j, m->files[i].name, "has another size than the manifest says");
        j->total += e->bytes;
    }
    return STATUS_OK;
}

static status look(job *j)
{
    char *below = mirror_prefix_key(j->prefix, j->name, "");
    status result = read_manifest(j);
    if (result == STATUS_OK)
        result = s3_list(&j->listing, j->s, below, true, MOST_FILES);
    free(below);
    return result == STATUS_OK ? check_manifest(j) : result;
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

static status copy_bytes(direct *out, job *j, s3 *s, const s3_entry *e)
{
    for (int64_t at = 0, now, room; at < e->bytes; at += now) {
        char *to = direct_room(out, &room);
        now = e->bytes - at < room ? e->bytes - at : room;
        if (s3_get(to, s, e->key, at, now, e->etag) != STATUS_OK) {
            atomic_store(&j->unread, true);
            return STATUS_FAILED;
        }
        TRY(direct_added(out, now, NULL));
        atomic_fetch_add(&j->done, now);
    }
    return STATUS_OK;
}

static status fetch_file(job *j, s3 *s, const manifest_file *f, char *buffer)
{
    direct out;
    int error;
    char *path = must_format("%s/%s", j->temporary, f->name);
    status result = direct_open(&out, path, buffer, PIECE);
    if (result == STATUS_OK) {
        result = copy_bytes(&out, j, s, find_entry(j, f->name));
        result = direct_close(&out, result);
    }
    if (result == STATUS_OK && f->has_crc32c && out.crc32c != f->crc32c)
        result = damage(j, f->name, "has another checksum than the manifest says");
    if (result == STATUS_OK)
        result = direct_verify(&error, path, f->bytes, out.crc32c, buffer, PIECE);
    free(path);
    return result;
}

/* A failed read of an object is the object's, if the store answers otherwise. */
static void note_failure(job *j, s3 *s, status result)
{
    char *words = must_strdup(status_message());
    mirror_owner owner;
    bool answers =
        s && !j->damaged && atomic_load(&j->unread) && mirror_prefix_owner(&owner, s, j->prefix) == STATUS_OK;
    pthread_mutex_lock(&j->lock);
    if (j->result == STATUS_OK) {
        j->result = result;
        j->damaged |= answers;
        snprintf(j->message, sizeof j->message, "%s", words);
    }
    pthread_mutex_unlock(&j->lock);
    atomic_store(&j->stop, true);
    if (answers)
        free(owner.folder);
    free(words);
}

static const manifest_file *take_file(job *j)
{
    pthread_mutex_lock(&j->lock);
    bool there = j->result == STATUS_OK && j->next < j->manifest->file_count;
    const manifest_file *f = there ? &j->manifest->files[j->next++] : NULL;
    pthread_mutex_unlock(&j->lock);
    return f;
}

static void *help(void *argument)
{
    job *j = argument;
    s3 *s = NULL;
    char *buffer = aligned_alloc(DIRECT_ALIGNMENT, PIECE);
    MUST(buffer, "out of host memory");
    status result = s3_open(&s, j->prefix->bucket, NULL);
    for (const manifest_file *f; result == STATUS_OK && (f = take_file(j));)
        result = fetch_file(j, s, f, buffer);
    if (result != STATUS_OK)
        note_failure(j, s, result);
    s3_close(s);
    free(buffer);
    pthread_mutex_lock(&j->lock);
    j->working--;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static void watch(job *j)
{
    pthread_mutex_lock(&j->lock);
    while (j->working > 0) {
        (void)clock_wait(&j->changed, &j->lock, clock_seconds() + 0.2);
        if (j->how->progress)
            j->how->progress(j->how->context, (double)atomic_load(&j->done), (double)j->total);
    }
    pthread_mutex_unlock(&j->lock);
}

static status fetch_files(job *j)
{
    pthread_t thread[HELPERS];
    int begun = 0;
    for (; begun < HELPERS && begun < j->manifest->file_count; begun++) {
        pthread_mutex_lock(&j->lock);
        j->working++;
        pthread_mutex_unlock(&j->lock);
        int failed = pthread_create(&thread[begun], NULL, help, j);
        MUST(!failed, "cannot start a thread that fetches a checkpoint");
    }
    watch(j);
    for (int i = 0; i < begun; i++)
        pthread_join(thread[i], NULL);
    return j->result == STATUS_OK ? STATUS_OK : status_fail(j->result, "%s", j->message);
}

/* ---- one checkpoint ---------------------------------------------------------------------------------------------- */

/* Whatever had the name has no manifest, or is of a run that has been lost. */
static status publish(const job *j, const char *name)
{
    char *path = must_format("%s/manifest.json", j->temporary), *final = must_format("%s/%s", j->how->folder, name);
    status result = atomic_replace(path, j->text, j->text_bytes);
    if (result == STATUS_OK)
        result = atomic_remove(final);
    if (result == STATUS_OK)
        result = atomic_rename(j->temporary, final);
    free(final);
    free(path);
    return result;
}

static status fetch_into(job *j, const char *name)
{
    TRY(look(j));
    TRY(atomic_make_folders(j->how->folder));
    TRY(atomic_remove(j->temporary));
    TRY(atomic_make_own_folder(j->temporary));
    status result = fetch_files(j);
    if (result == STATUS_OK)
        result = publish(j, name);
    if (result != STATUS_OK) {
        char *words = must_strdup(status_message());
        (void)atomic_remove(j->temporary);
        result = status_fail(result, "%s", words);
        free(words);
    }
    return result;
}

/* The checkpoint `name` of the mirror, as FOLDER/step-N. */
static status fetch(bool *damaged, s3 *s, const mirror_prefix *p, const char *name, const mirror_fetch *how)
{
    char local[MIRROR_NAME];
    int64_t step = mirror_prefix_step(name);
    snprintf(local, sizeof local, "step-%08lld", (long long)step);
    job j = {.s = s, .prefix = p, .how = how, .name = name};
    j.temporary = must_format("%s/.tmp-%s", how->folder, local);
    pthread_mutex_init(&j.lock, NULL);
    clock_condition(&j.changed);
    status result = fetch_into(&j, local);
    *damaged = j.damaged;
    pthread_mutex_destroy(&j.lock);
    pthread_cond_destroy(&j.changed);
    s3_listing_free(&j.listing);
    manifest_free(j.manifest);
    free(j.text);
    free(j.temporary);
    return result;
}

static status set_latest(const char *folder, int64_t step)
{
    char *path = must_format("%s/latest", folder), *line = must_format("step-%08lld\n", (long long)step);
    status result = atomic_replace(path, line, (int64_t)strlen(line));
    free(line);
    free(path);
    return result;
}

/* ---- which one --------------------------------------------------------------------------------------------------- */

static void say_trouble(mirror_fetched *out, char *words)
{
    log_make_printable(words);
    log_warn("checkpoint.mirror: %s", words);
    if (out->trouble)
        free(words);
    else
        out->trouble = words;
}

/* May it be offered: what `latest` names, or one before it? */
static bool is_offered(const mirror_checkpoint *c, const char *latest, int64_t last)
{
    return c->whole && (!*latest || strcmp(c->name, latest) == 0 || c->step < last);
}

static status fetch_best(mirror_fetched *out, s3 *s, const mirror_prefix *p, const mirror_fetch *how,
                         const mirror_checkpoints *all, const char *latest)
{
    int64_t last = mirror_prefix_step(latest);
    bool first = true;
    for (int i = 0; i < all->count; i++) {
        const mirror_checkpoint *c = &all->item[i];
        bool damaged = false;
        if (!is_offered(c, latest, last) || c->step <= how->after)
            continue;
        if (first && *latest && strcmp(c->name, latest) != 0)
            say_trouble(out, must_format("%s/latest names %s, which is not there", p->url, latest));
        first = false;
        status result = out->trouble && !how->fallback ? status_fail(STATUS_FAILED, "%s", out->trouble)
                                                       : fetch(&damaged, s, p, c->name, how);
        if (result == STATUS_OK) {
            out->step = c->step;
            return set_latest(how->folder, c->step);
        }
        out->no_answer = !damaged;
        if (!damaged || !how->fallback)
            return result;
        say_trouble(out, must_format("%s; an older checkpoint is looked for", status_message()));
    }
    return how->after < 0 && out->trouble
               ? status_fail(STATUS_FAILED, "%s; and there is no other checkpoint", out->trouble)
               : STATUS_OK;
}

status mirror_fetch_newest(mirror_fetched *out, s3 *s, const mirror_prefix *p, const mirror_fetch *how)
{
    char latest[MIRROR_NAME];
    mirror_checkpoints all = {0};
    *out = (mirror_fetched){.step = -1, .no_answer = true};
    TRY(mirror_prefix_latest(latest, s, p));
    if (*latest && mirror_prefix_step(latest) <= how->after)
        return STATUS_OK;
    TRY(mirror_prefix_list(&all, s, p));
    out->no_answer = false;
    status result = fetch_best(out, s, p, how, &all, latest);
    mirror_prefix_list_free(&all);
    return result;
}

/* ---- of a URL ---------------------------------------------------------------------------------------------------- */

static status fetch_from(int64_t *step, const char *url, const mirror_prefix *p, s3 *s, const mirror_fetch *how)
{
    const char *slash = strrchr(url, '/');
    bool damaged;
    mirror_fetched got;
    *step = mirror_prefix_step(slash + 1);
    if (*step >= 0) { /* PREFIX/step-N: the prefix is what is before it */
        TRY(fetch(&damaged, s, p, slash + 1, how));
        return set_latest(how->folder, *step);
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
    mirror_prefix p = {0};
    s3 *s = NULL;
    int64_t step = -1;
    char *path = must_strdup(url);
    for (size_t n = strlen(path); n > 0 && path[n - 1] == '/';)
        path[--n] = 0;
    char *above = must_strdup(path);
    if (strrchr(above, '/') && mirror_prefix_step(strrchr(above, '/') + 1) >= 0)
        *strrchr(above, '/') = 0;
    status result = mirror_prefix_make(&p, above);
    if (result == STATUS_OK)
        result = s3_open(&s, p.bucket, NULL);
    if (result == STATUS_OK)
        result = fetch_from(&step, path, &p, s, how);
    if (result == STATUS_OK)
        *out = must_format("%s/step-%08lld", how->folder, (long long)step);
    s3_close(s);
    mirror_prefix_free(&p);
    free(above);
    free(path);
    return result;
}
