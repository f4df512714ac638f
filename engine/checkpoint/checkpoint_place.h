/* Orders the checkpoints of a run by its history, without a clock.
 *
 * A run that goes back to one of its earlier checkpoints begins a branch, with a number that none of its checkpoints
 * has had; the checkpoints after the step that it went back to are undone. Each checkpoint says (in its manifest's
 * meta) its step, its branch, and up to which step the branches before are part of its own history:
 *
 *     "step": 400, "branch": 2, "branches": [[0, 200], [1, 300]]
 *
 * The later of two checkpoints has the later branch, or, in one branch, the later step. A run that never went back has
 * branch 0 and no list, as have the checkpoints made before there were branches.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

enum { CHECKPOINT_BRANCHES = 64 }; /* branches that a checkpoint remembers; older ones count as undone */

typedef struct checkpoint_branch {
    int64_t branch, last; /* its last step that is part of the history */
} checkpoint_branch;

typedef struct checkpoint_place {
    int64_t step; /* -1: no checkpoint */
    int64_t branch;
    int count;
    checkpoint_branch before[CHECKPOINT_BRANCHES]; /* oldest first */
} checkpoint_place;

/* Reads the place from a manifest's meta; impossible values count as missing. */
void checkpoint_place_take(checkpoint_place *out, const json_t *meta);
/* Adds branch and branches, if there are any. */
void checkpoint_place_put(json_t *meta, const checkpoint_place *p);
/* Reads the place of the checkpoint in this folder. */
status checkpoint_place_read(checkpoint_place *out, const char *folder);

/* True if `a` is later than `b`. A step of -1 is the earliest of all. */
bool checkpoint_place_later(const checkpoint_place *a, const checkpoint_place *b);
/* True if `p` is part of the history of `of`, or is `of`. */
bool checkpoint_place_within(const checkpoint_place *p, const checkpoint_place *of);
/* Sends the run back to `p`: later checkpoints are of the branch after `newest`. */
void checkpoint_place_go_back(checkpoint_place *p, int64_t newest);
