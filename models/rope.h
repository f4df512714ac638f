/* The rotary table (2104.09864): which sizes it has, and what it holds. Whoever describes, fills or reads it asks here,
 * so that tables that differ between layers are a change of this file. */
#ifndef PHALANX_MODELS_ROPE_H
#define PHALANX_MODELS_ROPE_H

#include "models/shape.h"

/* Rows and columns, fp32: a row a position, cos | sin of a head's halves; no rows where nothing is rotated. */
void rope_size(int64_t size[2], const model_shape *shape, int64_t positions);
/* Fills the rows of positions from 0 on, with Llama 3's scaling of low frequencies. */
void rope_fill(float *table, const model_shape *shape, int64_t positions);

#endif
