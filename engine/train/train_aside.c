/* checkpoint.resume=never in a folder that has a run already: that run is moved aside, so that neither is taken for the
 * other. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/atomic.h"
#include "engine/host/incidents.h"
#include "engine/train/training.h"
#include "memory/log.h"

/* What runs write. Whatever else is in the folder is not ours to move; tuning.json is about the machine, and stays. */
static const char *const written[] = {
    "checkpoints",  "metrics.jsonl",  "events.jsonl",        "hosts", "mlruns", "summary.json", "trace", "config.yaml",
    INCIDENTS_FILE, "flight-*.jsonl", "events.out.tfevents*"};

static bool is_written(const char *name)
{
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (fnmatch(written[i], name, 0) == 0)
            return true;
    return false;
}

/* The names of what a run has left here: fresh strings, *count of them. */
static status list_written(char ***out, int *count, const char *folder)
{
    *out = NULL;
    *count = 0;
    DIR *d = opendir(folder);
    if (!d)
        return status_fail(STATUS_FAILED, "%s cannot be read: %s", folder, strerror(errno));
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        if (is_written(e->d_name)) {
            *out = must_realloc(*out, (unsigned long)(*count + 1) * sizeof **out);
            (*out)[(*count)++] = must_strdup(e->d_name);
        }
    closedir(d);
    return STATUS_OK;
}

/* FOLDER/earlier-N, the first that is not there. */
static status make_aside(char **out, const char *folder)
{
    bool there = true;
    for (int n = 1; there; n++) {
        char *path = must_format("%s/earlier-%d", folder, n);
        status s = atomic_look(&there, path);
        if (s == STATUS_OK && !there)
            s = atomic_make_folders(*out = path);
        else
            free(path);
        TRY(s);
    }
    return STATUS_OK;
}

/* "checkpoints" comes first: if this is cut short, no run resumes from them unasked. */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static status move(const char *folder, char *const *name, int count)
{
    char *aside = NULL;
    status s = make_aside(&aside, folder);
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        char *from = must_format("%s/%s", folder, name[i]), *to = must_format("%s/%s", aside, name[i]);
        s = atomic_rename(from, to);
        free(from);
        free(to);
    }
    if (s == STATUS_OK)
        log_info("the run that was in %s is in %s now (checkpoint.resume=never)", folder, aside);
    free(aside);
    return s;
}

status training_move_aside(const training *t)
{
    if (comm_rank(t->world) > 0 || strcmp(t->config->checkpoint.resume, "never") != 0)
        return STATUS_OK;
    char **name;
    int count;
    TRY(list_written(&name, &count, t->folder));
    if (name)
        qsort(name, (size_t)count, sizeof *name, by_name);
    status s = count > 0 ? move(t->folder, name, count) : STATUS_OK;
    for (int i = 0; i < count; i++)
        free(name[i]);
    free(name);
    return s == STATUS_OK ? s : status_context(s, "moving an earlier run aside (checkpoint.resume=never)");
}
