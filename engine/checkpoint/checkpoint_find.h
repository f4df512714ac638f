/* Which checkpoints a run's folder has: what `latest` names, what is left if that cannot be used, what may be
 * removed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

/* What else needs a checkpoint to stay, by its name. */
typedef struct checkpoint_needed {
    bool (*is)(void *context, const char *name);
    void *context;
} checkpoint_needed;

/* Remove all but the `keep` newest (by step) whole checkpoints of a checkpoints folder, up to the one that `latest`
 * names, which stays. Those of later steps are left alone: the run may reach them again. keep_every > 0 keeps the
 * multiples of so many steps, too. keep < 1 keeps all. What interrupted saves of steps before `latest` have left is
 * removed. `needed` may be NULL. By one rank. */
status checkpoint_prune(const char *folder, int keep, int keep_every, const checkpoint_needed *needed);

/* The folder of the checkpoint that `path` means (see checkpoint_open); the caller's to free. */
status checkpoint_resolve(char **out, const char *path);

/* In a run's folder: what was fetched of another run, for a stage to begin from. */
#define CHECKPOINT_ORIGIN "origin"

/* Does the path lead into the run's folder, or its checkpoints, which may be a link to another disk, and not to what
 * it has of another run (CHECKPOINT_ORIGIN)? What is not there leads nowhere. */
status checkpoint_is_of_run(bool *within, const char *path, const char *run_folder);

/* What a run may go on from: folders, the best first. */
typedef struct checkpoint_offers {
    int count;
    char **folder;
    char *trouble; /* why the first is not what `latest` names, or why that cannot be told; NULL: it is */
} checkpoint_offers;

/* What `latest` names in a checkpoints folder, then the whole ones before it, newest first. None only if there is
 * certainly none; fails if that cannot be told. */
status checkpoint_offers_find(checkpoint_offers *out, const char *folder);
void checkpoint_offers_free(checkpoint_offers *o);

/* What a process that was killed at its last checkpoint did not come to: where `latest` is missing, or names what is
 * not there, it names the newest that is whole. By one rank. */
status checkpoint_settle(const char *folder);
