/* Appends a step's ops outside of its micro-batches: gathers of weights, reductions of gradients, norm, update. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Appends gathers of updated weights (ZeRO 1 and 2) in the order of their first use. */
void update_append_gathers(compiled_program *out, const compiled *c);
/* Appends the gathers before the micro-batches. If sharded weights are gathered once a step (ZeRO 3), returns the
 * gathered weights by parameter number, which the program owns; else NULL. */
tensor *const *update_append_begin(compiled_program *out, const compiled *c);
/* Appends the ops after the micro-batches: reductions of gradients (each right after its last contribution if
 * possible), the loss, the norm, the optimizer. */
void update_append(compiled_program *out, const compiled *c);
void update_append_loss(compiled_program *out, const compiled *c); /* reduces the loss and the routers' losses */
/* Zeroes the routers' losses, to which layers add; precedes the layers' first op. */
void update_zero_losses(compiled_program *out, const compiled *c);
