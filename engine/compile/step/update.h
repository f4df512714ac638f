/* The part of a program before and after the micro-batches: gathers of weights, reductions of gradients, norm and
 * update. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Appends gathers of updated weights (ZeRO 1 and 2), in the model's order, which is the order of first use. */
void update_gather(compiled_program *out, const compiled *c);
/* Appends the ops before the micro-batches: these gathers, or where sharded weights are gathered once a step, theirs:
 * then returns the whole weights, tensors of the program's own, by number; else NULL. */
tensor *const *update_begin(compiled_program *out, const compiled *c);
/* Appends the ops that follow the micro-batches: reductions of gradients (each right after its last contribution where
 * that is possible), the loss, the norm, the optimizer. */
void update_append(compiled_program *out, const compiled *c);
void update_loss(compiled_program *out, const compiled *c); /* the loss over the grid, and the routers' */
/* Zeroes the routers' losses, to which layers add; comes ahead of the first op of layers. */
void update_start_losses(compiled_program *out, const compiled *c);
