/* Optimizer state in host memory (memory.offload): masters and states of matrices are in the device's pinned memory,
 * and pass through windows in the arena, some rows of a matrix at a time. The next pieces are fetched while one is
 * updated and the ones before are stowed; the first are fetched while the last backward pass still computes.
 */
#pragma once

#include "engine/compile/model/compiled.h"

typedef struct offload offload;

/* Are this parameter's masters and states in host memory? Vectors' are not: they are small. */
bool offload_takes(const compile_options *o, const parameter *p);
/* The pieces of a program's update, in the program's pool; of none without memory.offload. */
offload *offload_make(compiled_program *out, const compiled *c);
/* Appends the fetches of the first pieces; once. */
void offload_ahead(offload *o);
/* Appends the updates of all pieces: of each the fetch of a later piece, the optimizer's ops, and what takes the piece
 * back. `gradient`: by number. peaks: qk_clip_gather()'s. */
void offload_update(offload *o, tensor *const *gradient, tensor *control, tensor *peaks);
