/* Finds the checkpoints of a run's folder: the one that `latest` names, the fallbacks, the removable ones. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

/* Says whether something else needs the checkpoint of this name. */
typedef struct checkpoint_needed {
    bool (*is)(void *context, const char *name);
    void *context;
} checkpoint_needed;

/* Removes all but the `keep` newest (by step) whole checkpoints of a checkpoints folder up to `latest`, which stays.
 * Later steps stay: the run may reach them again. keep_every > 0 keeps its multiples, too. keep < 1 keeps all. Also
 * removes leftovers of interrupted saves of steps before `latest`. `needed` may be NULL. One rank calls it. */
status checkpoint_prune(const char *folder, int keep, int keep_every, const checkpoint_needed *needed);

/* Finds the folder of the checkpoint that `path` means (see checkpoint_open); the caller frees it. */
status checkpoint_resolve(char **out, const char *path);

/* A run's subfolder with the checkpoint fetched from another run, from which a stage begins. */
#define CHECKPOINT_ORIGIN "origin"

/* True if the path leads into the run's folder, or its checkpoints, which may be a link to another disk, but not into
 * its CHECKPOINT_ORIGIN. A missing path leads nowhere. */
status checkpoint_is_of_run(bool *within, const char *path, const char *run_folder);

/* Folders of checkpoints to resume from, the best first. */
typedef struct checkpoint_offers {
    int count;
    char **folder;
    char *trouble; /* why the first is not the one of `latest`, or why that is unknown; NULL: it is the one */
} checkpoint_offers;

/* Lists the checkpoint that `latest` names, then the whole ones before it, newest first. The list is empty only if
 * there is certainly none; fails if that is unknown. */
status checkpoint_offers_find(checkpoint_offers *out, const char *folder);
void checkpoint_offers_free(checkpoint_offers *o);

/* Finishes for a process that was killed at its last checkpoint: where `latest` is missing, or names a missing folder,
 * points it at the newest whole one. One rank calls it. */
status checkpoint_name_latest(const char *folder);
