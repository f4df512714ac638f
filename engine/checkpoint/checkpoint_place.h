/* Where a checkpoint lies in the history of its run, so that of two the later one can be told without a clock.
 *
 * A run that goes back to one of its earlier checkpoints begins a branch, with a number that none of its checkpoints
 * has had; what was made after the step that it went back to has been undone. Each checkpoint says (in its manifest's
 * meta) its step, its branch, and up to which step the branches before are part of its own history:
 *
 *     "step": 400, "branch": 2, "branches": [[0, 200], [1, 300]]
 *
 * Of two checkpoints that of the later branch is the later one, then that of the later step. A run that never went back
 * has branch 0 and no list, as have the checkpoints made before there were branches.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

enum { CHECKPOINT_BRANCHES = 64 }; /* that a checkpoint remembers; what is older counts as undone */

typedef struct checkpoint_branch {
    int64_t branch, last; /* its last step that is part of the history */
} checkpoint_branch;

typedef struct checkpoint_place {
    int64_t step; /* -1: none */
    int64_t branch;
    int count;
    checkpoint_branch before[CHECKPOINT_BRANCHES]; /* oldest first */
} checkpoint_place;

/* Of a manifest's meta; what is impossible there counts as missing. */
void checkpoint_place_take(checkpoint_place *out, const json_t *meta);
/* Adds branch and branches, where there are any. */
void checkpoint_place_put(json_t *meta, const checkpoint_place *p);
/* Of the checkpoint in this folder. */
status checkpoint_place_read(checkpoint_place *out, const char *folder);

/* Is `a` later than `b`? A step of -1 is the earliest of all. */
bool checkpoint_place_later(const checkpoint_place *a, const checkpoint_place *b);
/* Is `p` part of the history of `of`, or `of` itself? */
bool checkpoint_place_within(const checkpoint_place *p, const checkpoint_place *of);
/* The run goes back to `p`: what comes next is of the branch after `newest`. */
void checkpoint_place_go_back(checkpoint_place *p, int64_t newest);
