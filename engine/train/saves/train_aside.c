/* checkpoint.resume=never in a folder that has a run already: that run is moved aside, so that neither is taken for the
 * other. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "engine/host/incident_log.h"
#include "engine/train/saves/training_saves_internal.h"
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

/* FOLDER/earlier-N, the first that is not there. */
static status make_aside(char **out, const char *folder)
{
    bool there = true;
    for (int n = 1; there; n++) {
        free(*out);
        *out = must_format("%s/earlier-%d", folder, n);
        TRY(atomic_look(&there, *out));
    }
    return atomic_make_folders(*out);
}

/* "checkpoints" comes first: if this is cut short, no run resumes from them unasked. */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static status move_aside(const char *folder)
{
    RELEASED_BY(reading_names_free) reading_names all = {0};
    AUTO_FREE char *aside = NULL;
    TRY(reading_folder(&all, folder));
    if (all.count > 0)
        qsort(all.name, (size_t)all.count, sizeof *all.name, by_name);
    for (int i = 0; i < all.count; i++) {
        if (!is_written(all.name[i]))
            continue;
        if (!aside)
            TRY(make_aside(&aside, folder));
        AUTO_FREE char *from = must_format("%s/%s", folder, all.name[i]),
                       *to = must_format("%s/%s", aside, all.name[i]);
        TRY(atomic_rename(from, to));
    }
    if (aside)
        log_info("the run that was in %s is in %s now (checkpoint.resume=never)", folder, aside);
    return STATUS_OK;
}

status training_move_aside(const training *t)
{
    if (comm_rank(t->world) > 0 || strcmp(t->config->checkpoint.resume, "never") != 0)
        return STATUS_OK;
    status s = move_aside(t->folder);
    return s == STATUS_OK ? s : status_context(s, "moving an earlier run aside (checkpoint.resume=never)");
}
