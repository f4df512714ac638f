/* Rectangles of named tensors, and copying the elements of one between memory layouts.
 *
 * Rectangles have up to four dimensions, zero-based and row-major: the last dimension runs fastest. dims == 0 is a
 * single element. These functions own no memory.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"

#define BOX_DIMS 4

/* Where a rectangle begins in its tensor, and how large it is: in as many dimensions as the tensor has. */
typedef struct box {
    int64_t start[BOX_DIMS], size[BOX_DIMS];
} box;

/* A rectangle of a tensor that has a name (Hugging Face's). */
typedef struct rectangle {
    const char *name;
    int dims;
    int64_t global[BOX_DIMS]; /* the whole tensor's shape */
    box part;
} rectangle;

/* Where the elements of a rectangle lie in memory, from its first on. Strides are in elements and may have any order,
 * so that a transposed matrix is a memory layout too. */
typedef struct box_memory {
    void *data;
    dtype type;
    int64_t stride[BOX_DIMS];
} box_memory;

int64_t box_volume(int dims, const int64_t *size);
/* Returns false if they do not meet; then the output is undefined. */
bool box_intersect(box *out, int dims, const box *a, const box *b);
/* Returns the whole of a tensor. */
rectangle box_whole(const char *name, int dims, const int64_t *global);
/* Returns the strides of a box stored whole, row-major. */
void box_row_major(int64_t *stride, int dims, const int64_t *size);
bool box_is_row_major(int dims, const int64_t *size, const int64_t *stride);
/* Elements of a rectangle along the dimension in which its memory is most contiguous. */
typedef struct box_run {
    int64_t count;
    int64_t at, stride;  /* the first one's offset from the box's memory, and the distance of neighbours, in elements */
    int64_t index, step; /* the same in the whole tensor, row-major */
} box_run;

/* Returns the number of a rectangle's runs, and one of them. */
int64_t box_runs(const rectangle *of, const box_memory *at);
box_run box_run_at(const rectangle *of, const box_memory *at, int64_t number);
/* Copies elements first .. first+count-1, in row-major order, one after the other into `out`. */
void box_gather(void *out, const box_memory *from, int dims, const int64_t *size, int64_t first, int64_t count);
/* True if all elements are finite (dtype_all_finite). */
bool box_all_finite(const box_memory *of, int dims, const int64_t *size);
/* to[i...] = from[i...] for every element, converted as dtype_convert does; the two must not overlap. */
void box_convert(const box_memory *to, const box_memory *from, int dims, const int64_t *size);
