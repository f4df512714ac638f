#include "engine/state/save/exporter.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "engine/system/worker.h"
#include "engine/state/weights/weights_copy.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_WAITING = 256, NAME = 32 };

struct exporter {
    exporter_options options;
    worker worker;
    char waiting[MOST_WAITING][NAME]; /* the first is under way */
    int count;
};

/* ---- one export -------------------------------------------------------------------------------------------------- */

static status go_on(void *context, int64_t done, int64_t total)
{
    const exporter *e = context;
    (void)done, (void)total;
    return atomic_load(&e->worker.stop) ? status_fail(STATUS_FAILED, "the run ends") : STATUS_OK;
}

static status make_export(exporter *e, const char *name)
{
    AUTO_FREE char *from = must_format("%s/%s", e->options.checkpoints, name);
    AUTO_FREE char *to = must_format("%s/%s", e->options.exports, name);
    AUTO_FREE char *card = e->options.card(e->options.context, strtoll(name + strlen("step-"), NULL, 10));
    AUTO_FREE char *latest = must_format("%s/latest", e->options.exports);
    AUTO_FREE char *line = must_format("%s\n", name);
    const weights_copy_options o = {.format = WEIGHTS_HUGGINGFACE,
                                    .type = WEIGHTS_KEEP,
                                    .replace = true,
                                    .card = card,
                                    .progress = go_on,
                                    .context = e};
    AUTO(weights) *w = NULL;
    TRY(weights_open(&w, from));
    TRY(atomic_make_folders(e->options.exports));
    TRY(weights_copy(w, to, &o));
    return atomic_replace(latest, line, (int64_t)strlen(line));
}

/* Copies the name of the next one; false: the thread ends. */
static bool take_next(char name[NAME], exporter *e)
{
    WORKER_HELD(&e->worker);
    while (e->count == 0 && worker_wait(&e->worker))
        continue;
    memcpy(name, e->waiting[0], NAME);
    return !atomic_load(&e->worker.stop);
}

static void export_all(void *context)
{
    exporter *e = context;
    char name[NAME];
    while (take_next(name, e)) {
        double began = clock_seconds();
        status s = make_export(e, name);
        if (s == STATUS_OK || !atomic_load(&e->worker.stop))
            e->options.tell(e->options.context, name, clock_seconds() - began,
                            s == STATUS_OK ? NULL : status_message());
        WORKER_HELD(&e->worker);
        e->count--;
        memmove(e->waiting, e->waiting + 1, (size_t)e->count * sizeof *e->waiting);
        worker_tell(&e->worker);
    }
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* "step-00000100.tmp" and "step-00000100.old", where the latter is not all that is left of the export. */
static status tidy(const char *exports)
{
    RELEASED_BY(reading_names_free) reading_names all = {0};
    TRY(reading_folder(&all, exports));
    for (int i = 0; i < all.count; i++) {
        char *name = all.name[i], *dot = strrchr(name, '.');
        if (strncmp(name, "step-", 5) != 0 || !dot || (strcmp(dot, ".tmp") != 0 && strcmp(dot, ".old") != 0))
            continue;
        AUTO_FREE char *path = must_format("%s/%s", exports, name);
        AUTO_FREE char *whole = must_format("%s/%.*s", exports, (int)(dot - name), name);
        bool there = true;
        if (strcmp(dot, ".old") == 0)
            TRY(atomic_look(&there, whole));
        TRY(there ? atomic_remove(path) : atomic_rename(path, whole));
    }
    return STATUS_OK;
}

status exporter_open(exporter **out, const exporter_options *options)
{
    TRY(tidy(options->exports));
    exporter *e = must_calloc(1, sizeof *e);
    e->options = *options;
    worker_init(&e->worker);
    status s = worker_start(&e->worker, export_all, e, "exports checkpoints");
    if (s == STATUS_OK)
        *out = e;
    else
        exporter_close(e);
    return s;
}

void exporter_add(exporter *e, const char *name)
{
    WORKER_HELD(&e->worker);
    while (e->count == MOST_WAITING) /* the storage is far too slow: training waits, as it does for checkpoints */
        worker_wait(&e->worker);
    snprintf(e->waiting[e->count++], NAME, "%s", name);
    worker_tell(&e->worker);
}

status exporter_add_missing(exporter *e, const char *name)
{
    bool there;
    AUTO_FREE char *path = must_format("%s/%s", e->options.exports, name);
    TRY(atomic_look(&there, path));
    if (!there)
        exporter_add(e, name);
    return STATUS_OK;
}

bool exporter_holds(exporter *e, const char *name)
{
    bool held = false;
    WORKER_HELD(&e->worker);
    for (int i = 0; i < e->count; i++)
        held = held || strcmp(e->waiting[i], name) == 0;
    return held;
}

void exporter_wait(exporter *e)
{
    WORKER_HELD(&e->worker);
    while (e->count > 0)
        worker_wait(&e->worker);
}

void exporter_close(exporter *e)
{
    if (!e)
        return;
    worker_close(&e->worker);
    free(e);
}
