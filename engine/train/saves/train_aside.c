/* checkpoint.resume=never in a folder that has a run already: that run is moved aside, so that neither is taken for the
 * other. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "engine/host/incident_log.h"
#include "engine/train/saves/training_saves.h"
#include "memory/log.h"
#include "memory/scope.h"

/* What runs write. Whatever else is in the folder is not ours to move; tuning.json is about the machine, and stays. */
static const char *const written[] = {"checkpoints", CHECKPOINT_ORIGIN, "mirror",         "exports",
                                      "mlflow.json", "wandb.json",      "metrics.jsonl",  "events.jsonl",
                                      "hosts",       "mlruns",          "summary.json",   "trace",
                                      "config.yaml", INCIDENTS_FILE,    "flight-*.jsonl", "events.out.tfevents*"};

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
    RELEASED_BY(reading_names_free) reading_names all = {0};
    *out = NULL;
    *count = 0;
    TRY(reading_folder(&all, folder));
    for (int i = 0; i < all.count; i++)
        if (is_written(all.name[i])) {
            *out = must_realloc(*out, (unsigned long)(*count + 1) * sizeof **out);
            (*out)[(*count)++] = must_strdup(all.name[i]);
        }
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
    AUTO_FREE char *aside = NULL;
    status s = make_aside(&aside, folder);
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        AUTO_FREE char *from = must_format("%s/%s", folder, name[i]), *to = must_format("%s/%s", aside, name[i]);
        s = atomic_rename(from, to);
    }
    if (s == STATUS_OK)
        log_info("the run that was in %s is in %s now (checkpoint.resume=never)", folder, aside);
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
