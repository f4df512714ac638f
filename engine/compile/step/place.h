/* Waits, scratch, outputs in place, lifetimes, and addresses of transient tensors. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Waits. `how` the ops were put in order: as lowered, updated weights are waited for before all else. */
void place_waits(compiled_program *out, compile_order how);
void place_transients(compiled_program *out, const compiled *c, bool bound_only);

/* How many bytes of a placed program's transient tensors are alive at each of its ops: kept for the backward pass,
 * and all others. out[i] is what is alive while op i plays, each tensor rounded up to COMPILE_ALIGNMENT; room for
 * [ops + 1]. */
void alive_find(int64_t *kept, int64_t *rest, const compiled_program *p);

/* Working memory that a library may have, where more of it is faster: attention's backward pass on a device
 * (op_attributes.workspace). It gets what the step leaves free where such ops run, and a little more where no budget
 * says how much there is; timing then decides whether the library is used.
 *
 * Bytes that every such op of a placed training program can have; 0 where none would take more than it has. */
int64_t workspace_room(const compiled *c);
/* The largest working memory of any such op of the training program. */
int64_t workspace_taken(const compiled *c);
