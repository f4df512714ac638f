/* Units: the pieces of a model that islands exchange, and the rank of an island that keeps each one's outer state.
 *
 * Every tensor of a model, as Hugging Face stores it, is cut into runs of whole rows of at most UNITS_ELEMENTS elements
 * (one row, if that is longer): a unit is a rectangle, and contiguous in its tensor. The cut depends on the tensors'
 * shapes only, so that islands of any layout mean the same unit by the same number. Blocks and chunks of compression
 * are counted from a unit's first element. A fragment is a set of tensors that are merged together; layer l is in
 * fragment l mod fragments.
 */
#pragma once

#include "memory/box.h"
#include "models/names.h"

enum { UNITS_ELEMENTS = 1 << 18 };

typedef struct unit {
    int tensor; /* index of the tensor in the list of names */
    int fragment;
    int64_t first, rows; /* rows of the tensor; a vector's elements */
    int64_t elements;    /* rows x the rest of the shape */
} unit;

/* Returns a unit's rectangle, and the layout of its values, which is the file's. */
void units_rectangle(rectangle *of, box_memory *at, const unit *u, const names_tensor *tensors, float *values);
/* Lists the units in the order of tensors, then rows; the caller frees the list. */
unit *units_list(int *count, const names_tensor *tensors, int tensor_count, int fragments);
/* owner[unit] = a rank of an island of `ranks`; all have about as much of every fragment. */
void units_own(int *owner, const unit *units, int count, int fragments, int ranks);
