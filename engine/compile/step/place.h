/* Places a program: waits, scratch, outputs in place, lifetimes, and addresses of transient tensors. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Waits. `how` the ops were put in order: as lowered, updated weights are waited for before all else. */
void place_waits(compiled_program *out, compile_order how);
void place_transients(compiled_program *out, const compiled *c, bool bound_only);

/* Counts the bytes of a placed program's transient tensors that are alive at each of its ops: kept for the backward
 * pass, and all others. out[i]: alive while op i plays, each tensor rounded up to COMPILE_ALIGNMENT; room for [ops +
 * 1]. */
void alive_find(int64_t *kept, int64_t *rest, const compiled_program *p);

/* Working memory of libraries that are faster with more of it: attention's backward pass on a device
 * (attention.workspace). It gets the memory that the step leaves free at such ops, and a little more without a
 * budget; timing then decides whether the library is used. Bytes that every such op of a placed training program can
 * have; 0 where none would take more than it has. */
int64_t workspace_room(const compiled *c);
/* The largest working memory of any such op of the training program. */
int64_t workspace_taken(const compiled *c);
