/* The part of a program before and after the micro-batches: gathers of weights, reductions of gradients, norm and
 * update. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Gathers of what the ranks have updated (ZeRO 1 and 2), in the model's order, which is that of their first use. */
void update_gather(compiled_program *out, const compiled *c);
/* Before the micro-batches: those, or where sharded weights are gathered once a step, their gathers: then returns the
 * whole weights, tensors of the program's own, by number; else NULL. */
tensor *const *update_begin(compiled_program *out, const compiled *c);
/* After them: reductions of gradients (each right after its last contribution where that is possible), the loss, the
 * norm, the optimizer. */
void update_append(compiled_program *out, const compiled *c);
void update_loss(compiled_program *out, const compiled *c); /* the loss over the grid, and the routers' */
/* Before the first op of layers: the routers' losses, to which layers add, begin at 0. */
void update_start_losses(compiled_program *out, const compiled *c);
