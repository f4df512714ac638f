/* Ops of the class UPDATE, as many tensors as one launch takes.
 *
 * The program has one op a tensor, and most tensors are small. An `updates` keeps what such ops ask for, and launches
 * it when a list is full, when an op of another kind or type comes, or when its owner must have it on the stream:
 * before anything that may read what they write is enqueued. Waiting for a communication is no such thing: what is
 * launched later is after more, not less. Plain memory, zeroed at first; one stream.
 */
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/table/op.h"

typedef struct updates {
    launch_update_segment at[LAUNCH_UPDATE_SEGMENTS];
    const op *of[LAUNCH_UPDATE_SEGMENTS]; /* the op that asked for each */
    int held;
} updates;

/* Op `o`, of the class UPDATE, is to run. */
void updates_add(updates *u, const op *o, const run_context *r);
/* Everything added runs after what the stream has been given so far, and before what it is given later. */
void updates_launch(updates *u, const run_context *r);
