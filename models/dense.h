/* Which dense models a model with experts can begin as, each expert a copy of the dense layer's mlp (2212.05055).
 */
#pragma once

#include "models/parts.h"

/* Is a model of this shape the dense one of `folder` but for its experts? A failure names the size or the trait that
 * differs. */
status dense_check(const model_shape *shape, const model_shape *dense, const char *folder);

/* The dense model's weight of which a weight of the other is a copy. */
parts_slot dense_slot(parts_slot slot);
