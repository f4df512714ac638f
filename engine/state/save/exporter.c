#include "engine/state/save/exporter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "engine/state/weights/weights_copy.h"
#include "memory/clock.h"
#include "memory/log.h"

enum { MOST_WAITING = 256, NAME = 32 };

struct exporter {
    exporter_options options;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    char waiting[MOST_WAITING][NAME]; /* the first is under way */
    int count;
    atomic_bool ends;
};

static int64_t step_of(const char *name)
{
    return strtoll(name + strlen("step-"), NULL, 10);
}

/* ---- one export -------------------------------------------------------------------------------------------------- */

static status go_on(void *context, int64_t done, int64_t total)
{
    const exporter *e = context;
    (void)done, (void)total;
    return atomic_load(&e->ends) ? status_fail(STATUS_FAILED, "the run ends") : STATUS_OK;
}

static status name_latest(const exporter *e, const char *name)
{
    char *path = must_format("%s/latest", e->options.exports), *line = must_format("%s\n", name);
    status s = atomic_replace(path, line, (int64_t)strlen(line));
    free(line);
    free(path);
    return s;
}

static status make_export(exporter *e, const char *name)
{
    char *from = must_format("%s/%s", e->options.checkpoints, name);
    char *to = must_format("%s/%s", e->options.exports, name);
    char *card = e->options.card(e->options.context, step_of(name));
    const weights_copy_options o = {.format = WEIGHTS_HUGGINGFACE,
                                    .type = WEIGHTS_KEEP,
                                    .replace = true,
                                    .card = card,
                                    .progress = go_on,
                                    .context = e};
    weights *w = NULL;
    status s = weights_open(&w, from);
    if (s == STATUS_OK)
        s = atomic_make_folders(e->options.exports);
    if (s == STATUS_OK)
        s = weights_copy(w, to, &o);
    if (s == STATUS_OK)
        s = name_latest(e, name);
    weights_close(w);
    free(card);
    free(to);
    free(from);
    return s;
}

/* Copies the name of the next one; false: the thread ends. */
static bool take_next(char name[NAME], exporter *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->count == 0 && !atomic_load(&e->ends))
        pthread_cond_wait(&e->changed, &e->lock);
    bool go = !atomic_load(&e->ends);
    if (go)
        memcpy(name, e->waiting[0], NAME);
    pthread_mutex_unlock(&e->lock);
    return go;
}

static void drop_first(exporter *e)
{
    pthread_mutex_lock(&e->lock);
    e->count--;
    memmove(e->waiting, e->waiting + 1, (size_t)e->count * sizeof *e->waiting);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void *run_thread(void *context)
{
    exporter *e = context;
    char name[NAME];
    while (take_next(name, e)) {
        double began = clock_seconds();
        status s = make_export(e, name);
        if (s == STATUS_OK || !atomic_load(&e->ends))
            e->options.tell(e->options.context, name, clock_seconds() - began,
                            s == STATUS_OK ? NULL : status_message());
        drop_first(e);
    }
    return NULL;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* "step-00000100.tmp" and "step-00000100.old", where the latter is not all that is left of the export. */
static status tidy(const char *exports)
{
    reading_names all;
    TRY(reading_folder(&all, exports));
    status s = STATUS_OK;
    for (int i = 0; i < all.count && s == STATUS_OK; i++) {
        char *name = all.name[i], *dot = strrchr(name, '.');
        if (strncmp(name, "step-", 5) != 0 || !dot || (strcmp(dot, ".tmp") != 0 && strcmp(dot, ".old") != 0))
            continue;
        char *path = must_format("%s/%s", exports, name);
        char *whole = must_format("%s/%.*s", exports, (int)(dot - name), name);
        bool there = true;
        if (strcmp(dot, ".old") == 0)
            s = atomic_look(&there, whole);
        if (s == STATUS_OK)
            s = there ? atomic_remove(path) : atomic_rename(path, whole);
        free(whole);
        free(path);
    }
    reading_names_free(&all);
    return s;
}

status exporter_open(exporter **out, const exporter_options *options)
{
    TRY(tidy(options->exports));
    exporter *e = must_calloc(1, sizeof *e);
    e->options = *options;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->started = pthread_create(&e->thread, NULL, run_thread, e) == 0;
    if (!e->started) {
        exporter_close(e);
        return status_fail(STATUS_FAILED, "cannot start the thread that exports checkpoints");
    }
    *out = e;
    return STATUS_OK;
}

void exporter_add(exporter *e, const char *name)
{
    pthread_mutex_lock(&e->lock);
    while (e->count == MOST_WAITING) /* the storage is far too slow: training waits, as it does for checkpoints */
        pthread_cond_wait(&e->changed, &e->lock);
    snprintf(e->waiting[e->count++], NAME, "%s", name);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

status exporter_add_missing(exporter *e, const char *name)
{
    bool there;
    char *path = must_format("%s/%s", e->options.exports, name);
    status s = atomic_look(&there, path);
    free(path);
    if (s == STATUS_OK && !there)
        exporter_add(e, name);
    return s;
}

bool exporter_holds(exporter *e, const char *name)
{
    bool held = false;
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < e->count; i++)
        held = held || strcmp(e->waiting[i], name) == 0;
    pthread_mutex_unlock(&e->lock);
    return held;
}

void exporter_wait(exporter *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->count > 0)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void exporter_close(exporter *e)
{
    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    atomic_store(&e->ends, true);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (e->started)
        pthread_join(e->thread, NULL);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->changed);
    free(e);
}
