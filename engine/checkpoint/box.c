#include "engine/checkpoint/box.h"

#include <string.h>

#include "memory/log.h"

/* Planes whose two layouts disagree about the fast dimension are copied in tiles of TILE x TILE elements, so that each
 * cache line is used whole while it is there. */
#define TILE 32

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

/* The same for a plane of rows and columns. */
static void copy_plane(char *to, int64_t to_row, int64_t to_column, const char *from, int64_t from_row,
                       int64_t from_column, int64_t rows, int64_t columns, int bytes)
{
    for (int64_t r = 0; r < rows; r++)
        copy_strided(to + r * to_row * bytes, to_column, from + r * from_row * bytes, from_column, columns, bytes);
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

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Whole rows, dense in `out`. */
static void gather_rows(char *out, const char *from, int64_t from_row, int64_t from_column, int64_t rows,
                        int64_t columns, int bytes)
{
    int64_t tile = from_column == 1 ? columns : TILE; /* contiguous rows need no tiles */
    for (int64_t r = 0; r < rows; r += TILE)
        for (int64_t c = 0; c < columns; c += tile)
            copy_plane(out + (r * columns + c) * bytes, columns, 1, from + (r * from_row + c * from_column) * bytes,
                       from_row, from_column, smaller(rows - r, TILE), smaller(columns - c, tile), bytes);
}

void box_gather(void *out, const void *from, const int64_t *from_stride, int dims, const int64_t *size,
                int element_bytes, int64_t first, int64_t count)
{
    int64_t columns = dims ? size[dims - 1] : 1, column_stride = dims ? from_stride[dims - 1] : 1;
    int64_t rows = dims > 1 ? size[dims - 2] : 1, row_stride = dims > 1 ? from_stride[dims - 2] : 0;
    for (int64_t done = 0, now; done < count; done += now) {
        int64_t row = (first + done) / columns, column = (first + done) % columns, left = count - done;
        char *to = (char *)out + done * element_bytes;
        const char *begin =
            (const char *)from + (row_offset(row, dims, size, from_stride) + column * column_stride) * element_bytes;
        if (column > 0 || left < columns) { /* a part of a row, at either end */
            now = smaller(columns - column, left);
            copy_strided(to, 1, begin, column_stride, now, element_bytes);
        } else {
            int64_t whole = smaller(left / columns, rows - row % rows);
            now = whole * columns;
            gather_rows(to, begin, row_stride, column_stride, whole, columns, element_bytes);
        }
    }
}

/* One row or plane in memory: first element, strides. */
typedef struct plane {
    char *data;
    dtype type;
    int64_t row, column;
} plane;

static void convert_tile(const plane *to, const plane *from, int64_t r, int64_t c, int64_t rows, int64_t columns)
{
    char before[TILE * TILE * 8], after[TILE * TILE * 8];
    int to_bytes = dtype_bytes(to->type), from_bytes = dtype_bytes(from->type);
    copy_plane(before, columns, 1, from->data + (r * from->row + c * from->column) * from_bytes, from->row,
               from->column, rows, columns, from_bytes);
    dtype_convert(after, to->type, before, from->type, rows * columns);
    copy_plane(to->data + (r * to->row + c * to->column) * to_bytes, to->row, to->column, after, columns, 1, rows,
               columns, to_bytes);
}

static void convert_plane(const plane *to, const plane *from, int64_t rows, int64_t columns)
{
    int to_bytes = dtype_bytes(to->type), from_bytes = dtype_bytes(from->type);
    if (to->column == 1 && from->column == 1)
        for (int64_t r = 0; r < rows; r++)
            dtype_convert(to->data + r * to->row * to_bytes, to->type, from->data + r * from->row * from_bytes,
                          from->type, columns);
    else
        for (int64_t r = 0; r < rows; r += TILE)
            for (int64_t c = 0; c < columns; c += TILE)
                convert_tile(to, from, r, c, smaller(rows - r, TILE), smaller(columns - c, TILE));
}

void box_convert(void *to, dtype to_type, const int64_t *to_stride, const void *from, dtype from_type,
                 const int64_t *from_stride, int dims, const int64_t *size)
{
    MUST(dims >= 0 && dims <= BOX_DIMS, "%d dimensions", dims);
    int64_t volume = box_volume(dims, size);
    if (volume == 0)
        return;
    if (box_is_row_major(dims, size, to_stride) && box_is_row_major(dims, size, from_stride)) {
        dtype_convert(to, to_type, from, from_type, volume);
        return;
    }
    int64_t columns = dims ? size[dims - 1] : 1, rows = dims > 1 ? size[dims - 2] : 1;
    plane out = {.type = to_type, .row = dims > 1 ? to_stride[dims - 2] : 0, .column = dims ? to_stride[dims - 1] : 1};
    plane in = {
        .type = from_type, .row = dims > 1 ? from_stride[dims - 2] : 0, .column = dims ? from_stride[dims - 1] : 1};
    for (int64_t row = 0; row < volume / columns; row += rows) {
        out.data = (char *)to + row_offset(row, dims, size, to_stride) * dtype_bytes(to_type);
        in.data = (char *)(uintptr_t)from + row_offset(row, dims, size, from_stride) * dtype_bytes(from_type);
        convert_plane(&out, &in, rows, columns);
    }
}
