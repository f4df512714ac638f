#include "engine/files/box.h"

#include <string.h>

#include "memory/log.h"

#define BLOCK 512 /* elements converted at once where a layout is not contiguous: 8 KiB of stack */

int64_t box_volume(int dims, const int64_t *size)
{
    int64_t volume = 1;
    for (int d = 0; d < dims; d++)
        volume *= size[d];
    return volume;
}

bool box_intersect(int64_t *start, int64_t *size, int dims, const int64_t *start_a, const int64_t *size_a,
                   const int64_t *start_b, const int64_t *size_b)
{
    for (int d = 0; d < dims; d++) {
        int64_t end_a = start_a[d] + size_a[d], end_b = start_b[d] + size_b[d];
        start[d] = start_a[d] > start_b[d] ? start_a[d] : start_b[d];
        size[d] = (end_a < end_b ? end_a : end_b) - start[d];
        if (size[d] <= 0)
            return false;
    }
    return true;
}

void box_row_major(int64_t *stride, int dims, const int64_t *size)
{
    int64_t next = 1;
    for (int d = dims - 1; d >= 0; d--) {
        stride[d] = next;
        next *= size[d];
    }
}

bool box_is_row_major(int dims, const int64_t *size, const int64_t *stride)
{
    int64_t next = 1;
    for (int d = dims - 1; d >= 0; d--) {
        if (size[d] != 1 && stride[d] != next) /* the stride of a single row is never used */
            return false;
        next *= size[d];
    }
    return true;
}

/* to[i * to_stride] = from[i * from_stride], elements of 1, 2, 4 or 8 bytes of any alignment */
static void copy_strided(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t count, int bytes)
{
    if (to_stride == 1 && from_stride == 1)
        memcpy(to, from, (size_t)(count * bytes));
    else if (bytes == 4)
        for (int64_t i = 0; i < count; i++)
            memcpy(to + 4 * i * to_stride, from + 4 * i * from_stride, 4);
    else if (bytes == 2)
        for (int64_t i = 0; i < count; i++)
            memcpy(to + 2 * i * to_stride, from + 2 * i * from_stride, 2);
    else
        for (int64_t i = 0; i < count; i++)
            memcpy(to + bytes * i * to_stride, from + bytes * i * from_stride, (size_t)bytes);
}

/* The offset, in elements, of row `row` of a box: its index in the dimensions but the last, counted row-major. */
static int64_t row_offset(int64_t row, int dims, const int64_t *size, const int64_t *stride)
{
    int64_t offset = 0;
    for (int d = dims - 2; d >= 0; d--) {
        offset += row % size[d] * stride[d];
        row /= size[d];
    }
    return offset;
}

void box_gather(void *out, const void *from, const int64_t *from_stride, int dims, const int64_t *size,
                int element_bytes, int64_t first, int64_t count)
{
    int64_t length = dims ? size[dims - 1] : 1, stride = dims ? from_stride[dims - 1] : 1;
    for (int64_t done = 0, now; done < count; done += now) {
        int64_t row = (first + done) / length, column = (first + done) % length;
        now = length - column < count - done ? length - column : count - done;
        int64_t offset = row_offset(row, dims, size, from_stride) + column * stride;
        copy_strided((char *)out + done * element_bytes, 1, (const char *)from + offset * element_bytes, stride, now,
                     element_bytes);
    }
}

static void convert_row(char *to, dtype to_type, int64_t to_stride, const char *from, dtype from_type,
                        int64_t from_stride, int64_t count)
{
    int to_bytes = dtype_bytes(to_type), from_bytes = dtype_bytes(from_type);
    if (to_stride == 1 && from_stride == 1) {
        dtype_convert(to, to_type, from, from_type, count);
        return;
    }
    char wide[BLOCK * 8], narrow[BLOCK * 8];
    for (int64_t done = 0, now; done < count; done += now) {
        now = count - done < BLOCK ? count - done : BLOCK;
        copy_strided(wide, 1, from + done * from_stride * from_bytes, from_stride, now, from_bytes);
        dtype_convert(narrow, to_type, wide, from_type, now);
        copy_strided(to + done * to_stride * to_bytes, to_stride, narrow, 1, now, to_bytes);
    }
}

void box_convert(void *to, dtype to_type, const int64_t *to_stride, const void *from, dtype from_type,
                 const int64_t *from_stride, int dims, const int64_t *size)
{
    MUST(dims >= 0 && dims <= BOX_DIMS, "%d dimensions", dims);
    int64_t volume = box_volume(dims, size), length = dims ? size[dims - 1] : 1;
    int64_t to_step = dims ? to_stride[dims - 1] : 1, from_step = dims ? from_stride[dims - 1] : 1;
    if (volume == 0)
        return;
    if (box_is_row_major(dims, size, to_stride) && box_is_row_major(dims, size, from_stride)) {
        dtype_convert(to, to_type, from, from_type, volume);
        return;
    }
    for (int64_t row = 0; row < volume / length; row++)
        convert_row((char *)to + row_offset(row, dims, size, to_stride) * dtype_bytes(to_type), to_type, to_step,
                    (const char *)from + row_offset(row, dims, size, from_stride) * dtype_bytes(from_type), from_type,
                    from_step, length);
}
