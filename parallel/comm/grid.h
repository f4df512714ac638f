/* The grid: each rank's coordinates along the axes of parallelism, and the groups along each axis.
 *
 * Ranks are laid out tensor (fastest), context, data, pipeline (slowest): rank = ((p * data + d) * context + c) *
 * tensor + t, so that tensor groups are neighbours on a node and pipeline stages, which exchange the least, are
 * farthest apart. A grid is a plain value; member lists are written into the caller's array.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/table/axis.h"
#include "memory/status.h"

/* The coordinates, as kernels/table/axes.def lists them. */
typedef enum grid_axis {
#define COORDINATE(name, ...) GRID_##name,
#include "kernels/table/axes.def"
    GRID_AXES
} grid_axis;

typedef struct grid {
    int ranks, rank;
    int size[GRID_AXES];
    int at[GRID_AXES];     /* this rank's coordinates */
    int block[AXIS_COUNT]; /* ranks in each block of an axis made of blocks, which divide all; from 1 */
} grid;

/* Writes sizes by coordinate as a literal. */
#define GRID_SIZES(...) ((const int[GRID_AXES]){__VA_ARGS__})

/* Makes a grid; the data axis may have size 0: all remaining ranks. */
status grid_make(grid *out, int ranks, int rank, const int size[GRID_AXES]);
/* Sets one rank along each coordinate. */
void grid_single(int size[GRID_AXES]);
/* The number of ranks of such sizes; 0 counts as 1. */
int64_t grid_ranks_of(const int size[GRID_AXES]);
/* The coordinates to show to users in a layout of these sizes, bit by bit. */
unsigned grid_shown(const int size[GRID_AXES]);
/* Writes the coordinates of `shown` as words: "tensor 2 x data 4 x pipeline 1" if `between` is " x ". note[i], if any,
 * follows the i-th; NULL: no notes. */
enum { GRID_WORDS = 192 };
void grid_words(char out[GRID_WORDS], const int value[GRID_AXES], unsigned shown, const char *between,
                const char *const *note);
/* The same grid as another rank sees it. */
grid grid_for_rank(const grid *g, int rank);
int grid_rank_at(const grid *g, const int at[GRID_AXES]);
/* True if this rank is the first with its position along the axis. */
bool grid_is_first(const grid *g, axis a);
/* The number of ranks in this rank's group along an axis, 0 if it has none. */
int grid_group_size(const grid *g, axis a);
/* This rank's index in that group, or -1; along one coordinate that is the coordinate. */
int grid_index(const grid *g, axis a);
/* The world rank of its i-th member; they ascend. */
int grid_member(const grid *g, axis a, int i);
/* Writes all of them into members[ranks at most]; returns their number. */
int grid_members(int *members, const grid *g, axis a);
/* The group's size and this rank's index, with the slots of placements. */
axis_group grid_group(const grid *g, axis a);
/* The smallest number of consecutive ranks that contains any such group, this rank's or another's. */
int grid_span(const grid *g, axis a);
