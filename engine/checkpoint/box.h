/* Rectangles of up to four dimensions, and copying the elements of one between memory layouts.
 *
 * A box is `dims`, `start[]` and `size[]` (all zero-based, row-major: the last dimension runs fastest); a layout adds
 * `stride[]` in elements, any stride, so that a transposed matrix is a layout too. Nothing here owns memory. dims == 0 is
 * a single element.
 */
#ifndef PHALANX_ENGINE_CHECKPOINT_BOX_H
#define PHALANX_ENGINE_CHECKPOINT_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"

#define BOX_DIMS 4

int64_t box_volume(int dims, const int64_t *size);
/* false if they do not meet; then the outputs are undefined */
bool box_intersect(int64_t *start, int64_t *size, int dims, const int64_t *start_a, const int64_t *size_a,
                   const int64_t *start_b, const int64_t *size_b);
/* The strides of a box stored whole, row-major. */
void box_row_major(int64_t *stride, int dims, const int64_t *size);
bool box_is_row_major(int dims, const int64_t *size, const int64_t *stride);
/* Elements first .. first+count-1, in row-major order, of a box in any layout, one after the other into `out`. */
void box_gather(void *out, const void *from, const int64_t *from_stride, int dims, const int64_t *size,
                int element_bytes, int64_t first, int64_t count);
/* to[i...] = from[i...] for every element, converted as dtype_convert does; the two must not overlap. */
void box_convert(void *to, dtype to_type, const int64_t *to_stride, const void *from, dtype from_type,
                 const int64_t *from_stride, int dims, const int64_t *size);

#endif
