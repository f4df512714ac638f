#include "memory/box.h"

#include <string.h>

#include "memory/log.h"

/* Planes with two layouts of different fast dimensions are copied in tiles of TILE x TILE elements, so that each cache
 * line is used whole while it is there. */
#define TILE 32

int64_t box_volume(int dims, const int64_t *size)
{
    int64_t volume = 1;
    for (int d = 0; d < dims; d++)
        volume *= size[d];
    return volume;
}

bool box_intersect(box *out, int dims, const box *a, const box *b)
{
    for (int d = 0; d < dims; d++) {
        int64_t end_a = a->start[d] + a->size[d], end_b = b->start[d] + b->size[d];
        out->start[d] = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
        out->size[d] = (end_a < end_b ? end_a : end_b) - out->start[d];
        if (out->size[d] <= 0)
            return false;
    }
    return true;
}

rectangle box_whole(const char *name, int dims, const int64_t *global)
{
    rectangle all = {.name = name, .dims = dims};
    for (int d = 0; d < dims; d++)
        all.global[d] = all.part.size[d] = global[d];
    return all;
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

/* A plane of rows and columns: the first element, and the distances from one row and one column to the next. */
typedef struct plane {
    char *data;
    int64_t row, column;
} plane;

/* Returns the plane of the last two dimensions of a rectangle, from row `row` on: the row's index in all dimensions but
 * the last, row-major. */
static plane last_plane(const box_memory *m, int dims, const int64_t *size, int64_t row)
{
    int64_t offset = 0;
    for (int d = dims - 2; d >= 0; d--) {
        offset += row % size[d] * m->stride[d];
        row /= size[d];
    }
    return (plane){.data = (char *)m->data + offset * dtype_bytes(m->type),
                   .row = dims > 1 ? m->stride[dims - 2] : 0,
                   .column = dims ? m->stride[dims - 1] : 1};
}

/* Returns the plane from element (r, c) on. */
static plane inner_plane(plane p, int64_t r, int64_t c, int bytes)
{
    p.data += (r * p.row + c * p.column) * bytes;
    return p;
}

/* Copies elements of 1, 2, 4 or 8 bytes of any alignment. */
static void copy_plane(plane to, plane from, int64_t rows, int64_t columns, int bytes)
{
    for (; rows > 0; rows--, to.data += to.row * bytes, from.data += from.row * bytes)
        if (to.column == 1 && from.column == 1)
            memcpy(to.data, from.data, (size_t)(columns * bytes));
        else if (bytes == 4)
            for (int64_t i = 0; i < columns; i++)
                memcpy(to.data + 4 * i * to.column, from.data + 4 * i * from.column, 4);
        else if (bytes == 2)
            for (int64_t i = 0; i < columns; i++)
                memcpy(to.data + 2 * i * to.column, from.data + 2 * i * from.column, 2);
        else
            for (int64_t i = 0; i < columns; i++)
                memcpy(to.data + bytes * i * to.column, from.data + bytes * i * from.column, (size_t)bytes);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void box_gather(void *out, const box_memory *from, int dims, const int64_t *size, int64_t first, int64_t count)
{
    int bytes = dtype_bytes(from->type);
    int64_t columns = dims ? size[dims - 1] : 1, rows = dims > 1 ? size[dims - 2] : 1;
    for (int64_t done = 0, now; done < count; done += now) {
        int64_t row = (first + done) / columns, column = (first + done) % columns, left = count - done;
        bool part = column > 0 || left < columns; /* of a row, at either end */
        int64_t high = part ? 1 : smaller(left / columns, rows - row % rows);
        int64_t wide = part ? smaller(columns - column, left) : columns;
        plane begin = inner_plane(last_plane(from, dims, size, row), 0, column, bytes);
        plane to = {.data = (char *)out + done * bytes, .row = wide, .column = 1};
        int64_t tile = begin.column == 1 ? wide : TILE; /* contiguous rows need no tiles */
        for (int64_t r = 0; r < high; r += TILE)
            for (int64_t c = 0; c < wide; c += tile)
                copy_plane(inner_plane(to, r, c, bytes), inner_plane(begin, r, c, bytes), smaller(high - r, TILE),
                           smaller(wide - c, tile), bytes);
        now = high * wide;
    }
}

/* The types of the two sides of a conversion. */
typedef struct conversion {
    dtype to, from;
} conversion;

static void convert_tile(plane to, plane from, conversion types, int64_t rows, int64_t columns)
{
    char before[TILE * TILE * 8], after[TILE * TILE * 8];
    copy_plane((plane){before, columns, 1}, from, rows, columns, dtype_bytes(types.from));
    dtype_convert(after, types.to, before, types.from, rows * columns);
    copy_plane(to, (plane){after, columns, 1}, rows, columns, dtype_bytes(types.to));
}

static void convert_plane(plane to, plane from, conversion types, int64_t rows, int64_t columns)
{
    int to_bytes = dtype_bytes(types.to), from_bytes = dtype_bytes(types.from);
    if (to.column == 1 && from.column == 1)
        for (int64_t r = 0; r < rows; r++)
            dtype_convert(to.data + r * to.row * to_bytes, types.to, from.data + r * from.row * from_bytes, types.from,
                          columns);
    else
        for (int64_t r = 0; r < rows; r += TILE)
            for (int64_t c = 0; c < columns; c += TILE)
                convert_tile(inner_plane(to, r, c, to_bytes), inner_plane(from, r, c, from_bytes), types,
                             smaller(rows - r, TILE), smaller(columns - c, TILE));
}

void box_convert(const box_memory *to, const box_memory *from, int dims, const int64_t *size)
{
    MUST(dims >= 0 && dims <= BOX_DIMS, "%d dimensions", dims);
    int64_t volume = box_volume(dims, size);
    if (volume == 0)
        return;
    if (box_is_row_major(dims, size, to->stride) && box_is_row_major(dims, size, from->stride)) {
        dtype_convert(to->data, to->type, from->data, from->type, volume);
        return;
    }
    int64_t columns = dims ? size[dims - 1] : 1, rows = dims > 1 ? size[dims - 2] : 1;
    for (int64_t row = 0; row < volume / columns; row += rows)
        convert_plane(last_plane(to, dims, size, row), last_plane(from, dims, size, row),
                      (conversion){to->type, from->type}, rows, columns);
}

bool box_all_finite(const box_memory *of, int dims, const int64_t *size)
{
    char some[8192];
    int64_t volume = box_volume(dims, size), step = (int64_t)sizeof some / dtype_bytes(of->type);
    if (box_is_row_major(dims, size, of->stride))
        return dtype_all_finite(of->type, of->data, volume);
    bool finite = true;
    for (int64_t done = 0, now; finite && done < volume; done += now) {
        now = volume - done < step ? volume - done : step;
        box_gather(some, of, dims, size, done, now);
        finite = dtype_all_finite(of->type, some, now);
    }
    return finite;
}

static int run_dimension(const rectangle *of, const box_memory *at)
{
    int along = of->dims - 1;
    for (int d = 0; d < of->dims; d++)
        along = at->stride[d] < at->stride[along] ? d : along;
    return along;
}

int64_t box_runs(const rectangle *of, const box_memory *at)
{
    int64_t runs = 1;
    for (int d = 0, along = run_dimension(of, at); d < of->dims; d++)
        runs *= d == along ? 1 : of->part.size[d];
    return runs;
}

box_run box_run_at(const rectangle *of, const box_memory *at, int64_t number)
{
    int64_t weight[BOX_DIMS];
    int along = run_dimension(of, at);
    box_row_major(weight, of->dims, of->global);
    box_run run = {.count = 1, .stride = 1, .step = 1};
    for (int d = of->dims - 1; d >= 0; d--) {
        int64_t here = d == along ? 0 : number % of->part.size[d];
        number = d == along ? number : number / of->part.size[d];
        run.at += here * at->stride[d];
        run.index += (of->part.start[d] + here) * weight[d];
    }
    if (along >= 0)
        run = (box_run){of->part.size[along], run.at, at->stride[along], run.index, weight[along]};
    return run;
}
