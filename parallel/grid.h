/* The grid: which rank stands where along the axes of parallelism, and who shares an axis with whom.
 *
 * Ranks are laid out tensor (fastest), context, data, pipeline (slowest): rank = ((p * data + d) * context + c) * tensor + t,
 * so that tensor groups are neighbours on a node and pipeline stages, which say least to one another, stand farthest
 * apart. A grid is a plain value; member lists are written into the caller's array.
 */
#ifndef PHALANX_PARALLEL_GRID_H
#define PHALANX_PARALLEL_GRID_H

#include <stdbool.h>

#include "memory/status.h"

typedef enum grid_axis { GRID_TENSOR, GRID_CONTEXT, GRID_DATA, GRID_PIPELINE, GRID_AXES } grid_axis;

typedef struct grid {
    int ranks, rank;
    int size[GRID_AXES];
    int at[GRID_AXES]; /* this rank's coordinates */
} grid;

/* The groups programs communicate in. */
typedef enum grid_group {
    GRID_GROUP_TENSOR,
    GRID_GROUP_CONTEXT,
    GRID_GROUP_DATA,
    GRID_GROUP_PIPELINE,
    GRID_GROUP_DATA_CONTEXT, /* whose gradients sum: equal tensor and pipeline coordinates */
    GRID_GROUP_MODEL,        /* tensor x pipeline: one copy of the model */
    GRID_GROUP_TIED, /* first and last stage of one pipeline: they share tied embeddings; a stage between has none */
    GRID_GROUP_WORLD,
    GRID_GROUPS,
} grid_group;

/* `data` 0: whatever is left of the ranks. */
status grid_make(grid *out, int ranks, int rank, int tensor, int context, int data, int pipeline);
/* The same grid as another rank sees it. */
grid grid_of(const grid *g, int rank);
const char *grid_axis_name(grid_axis axis);
const char *grid_group_name(grid_group group);
int grid_rank_at(const grid *g, const int at[GRID_AXES]);
/* Members of this rank's group, ascending, into members[ranks at most]; returns how many (0: this rank has no such group). */
int grid_members(int *members, const grid *g, grid_group group);
int grid_group_size(const grid *g, grid_group group);
/* This rank's index in it, or -1; along one axis that is its coordinate. */
int grid_index(const grid *g, grid_group group);
/* World rank `step` places further along an axis, or -1 beyond its ends. */
int grid_neighbour(const grid *g, grid_axis axis, int step);
bool grid_first_stage(const grid *g);
bool grid_last_stage(const grid *g);

#endif
