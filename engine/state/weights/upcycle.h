/* A model with experts that begins as a dense one (2212.05055): each expert is a copy of the dense layer's mlp, routers
 * are drawn as in any fresh run, and all else is the dense model's. With weights that sum to 1 over a token's experts
 * the first loss is the dense model's.
 */
#pragma once

#include "engine/state/weights/weights.h"
#include "memory/scope.h"

typedef struct upcycle upcycle;

/* `from` must stay open as long as the result. A failure names what keeps the model from being `from`'s but for its
 * experts (models/dense.h). */
status upcycle_open(upcycle **out, weights *from, const model_shape *shape);
void upcycle_close(upcycle *u);
AUTO_CLOSES(upcycle, upcycle_close)

/* Reads a rectangle of a tensor of the model with experts. A state_reader; a router's is left as it is, drawn. */
status upcycle_read(void *u, const rectangle *of, const box_memory *to);
