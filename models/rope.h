/* The rotary table (2104.09864): its sizes and contents. All code that describes, fills or reads it asks here, so that
 * tables that differ between layers are a change of this file. */
#pragma once

#include "models/shape.h"

/* Rows and columns, fp32: a row a position, cos | sin for the halves of a head's rotated part; no rows without
 * rotation. size[2] is the rows of a second table, of layers with a window; it is 0 where they have no base of their
 * own. */
void rope_size(int64_t size[3], const model_shape *shape, int64_t positions);
/* Fills the rows of positions from 0 on, with the shape's scaling of frequencies. local: the second table, with
 * unscaled frequencies. `positions` is the length that a run trains, evaluates or generates with, prompt and
 * continuation, from its begin to its end: longrope takes its long factors where that exceeds the original length.
 * transformers asks in each forward pass how long the sequence is by then, which is the same but while a generated text
 * grows past the original length. */
void rope_fill(float *table, const model_shape *shape, int64_t positions, bool local);
