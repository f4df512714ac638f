#include "parallel/grid.h"

#include <stdio.h>

#include "memory/log.h"

/* Far beyond any cluster; four such sizes still multiply without overflow. */
enum { LARGEST = 32768 };

static const char *const axis_names[GRID_AXES] = {"tensor", "context", "data", "pipeline"};

/* Along which axes a group extends. The tied pair is the pipeline axis's two ends, and handled apart. */
static const struct {
    const char *name;
    bool spans[GRID_AXES];
} groups[GRID_GROUPS] = {
    [GRID_GROUP_TENSOR] = {"tensor", {[GRID_TENSOR] = true}},
    [GRID_GROUP_CONTEXT] = {"context", {[GRID_CONTEXT] = true}},
    [GRID_GROUP_DATA] = {"data", {[GRID_DATA] = true}},
    [GRID_GROUP_PIPELINE] = {"pipeline", {[GRID_PIPELINE] = true}},
    [GRID_GROUP_DATA_CONTEXT] = {"data x context", {[GRID_DATA] = true, [GRID_CONTEXT] = true}},
    [GRID_GROUP_MODEL] = {"model", {[GRID_TENSOR] = true, [GRID_PIPELINE] = true}},
    [GRID_GROUP_TIED] = {"tied", {[GRID_PIPELINE] = true}},
    [GRID_GROUP_WORLD] = {"world",
                          {[GRID_TENSOR] = true, [GRID_CONTEXT] = true, [GRID_DATA] = true, [GRID_PIPELINE] = true}},
};

grid grid_of(const grid *g, int rank)
{
    grid other = *g;
    other.rank = rank;
    for (int axis = 0; axis < GRID_AXES; axis++) {
        other.at[axis] = rank % g->size[axis];
        rank /= g->size[axis];
    }
    return other;
}

status grid_make(grid *out, int ranks, int rank, int tensor, int context, int data, int pipeline)
{
    const int given[GRID_AXES] = {tensor, context, data, pipeline};
    long long model = 1;
    for (int axis = 0; axis < GRID_AXES; axis++) {
        if ((given[axis] < 1 && !(axis == GRID_DATA && data == 0)) || given[axis] > LARGEST)
            return status_fail(STATUS_USAGE, "parallel.%s=%d: a layout's sizes are from 1 to %d", axis_names[axis],
                               given[axis], LARGEST);
        if (axis != GRID_DATA)
            model *= given[axis];
    }
    MUST(ranks > 0 && rank >= 0 && rank < ranks, "rank %d of %d", rank, ranks);
    char why[128];
    if (context == 1)
        snprintf(why, sizeof why, "tensor %d x pipeline %d", tensor, pipeline);
    else
        snprintf(why, sizeof why, "tensor %d x context %d x pipeline %d", tensor, context, pipeline);
    if (data && model * data != ranks)
        return status_fail(STATUS_USAGE,
                           "%s x data %d needs %lld ranks, and there %s %d: start %lld ranks or change parallel.*", why,
                           data, model * data, ranks == 1 ? "is" : "are", ranks, model * data);
    if (ranks % model)
        return status_fail(
            STATUS_USAGE,
            "%s takes ranks by %lld, and there %s %d: start a multiple of %lld ranks or change parallel.*", why, model,
            ranks == 1 ? "is" : "are", ranks, model);
    grid g = {.ranks = ranks, .size = {tensor, context, (int)(ranks / model), pipeline}};
    *out = grid_of(&g, rank);
    return STATUS_OK;
}

const char *grid_axis_name(grid_axis axis)
{
    return axis_names[axis];
}

const char *grid_group_name(grid_group group)
{
    return groups[group].name;
}

int grid_rank_at(const grid *g, const int at[GRID_AXES])
{
    int rank = 0;
    for (int axis = GRID_AXES - 1; axis >= 0; axis--) {
        MUST(at[axis] >= 0 && at[axis] < g->size[axis], "coordinate %d of %d on the %s axis", at[axis], g->size[axis],
             axis_names[axis]);
        rank = rank * g->size[axis] + at[axis];
    }
    return rank;
}

bool grid_first_stage(const grid *g)
{
    return g->at[GRID_PIPELINE] == 0;
}

bool grid_last_stage(const grid *g)
{
    return g->at[GRID_PIPELINE] == g->size[GRID_PIPELINE] - 1;
}

/* Whether `place` on an axis belongs to this rank's group. */
static bool within(const grid *g, grid_group group, int axis, int place)
{
    if (!groups[group].spans[axis])
        return place == g->at[axis];
    return group != GRID_GROUP_TIED || place == 0 || place == g->size[axis] - 1;
}

/* Walks the ranks in ascending order: the axes from the slowest inwards, skipping places outside the group. */
int grid_members(int *members, const grid *g, grid_group group)
{
    int at[GRID_AXES], count = 0;
    if (group == GRID_GROUP_TIED && !grid_first_stage(g) && !grid_last_stage(g))
        return 0;
    for (at[3] = 0; at[3] < g->size[3]; at[3]++)
        for (at[2] = 0; within(g, group, 3, at[3]) && at[2] < g->size[2]; at[2]++)
            for (at[1] = 0; within(g, group, 2, at[2]) && at[1] < g->size[1]; at[1]++)
                for (at[0] = 0; within(g, group, 1, at[1]) && at[0] < g->size[0]; at[0]++)
                    if (within(g, group, 0, at[0]))
                        members[count++] = grid_rank_at(g, at);
    return count;
}

int grid_group_size(const grid *g, grid_group group)
{
    if (group == GRID_GROUP_TIED)
        return !grid_first_stage(g) && !grid_last_stage(g) ? 0 : g->size[GRID_PIPELINE] > 1 ? 2 : 1;
    int size = 1;
    for (int axis = 0; axis < GRID_AXES; axis++)
        size *= groups[group].spans[axis] ? g->size[axis] : 1;
    return size;
}

int grid_index(const grid *g, grid_group group)
{
    if (group == GRID_GROUP_TIED)
        return grid_first_stage(g) ? 0 : grid_last_stage(g) ? 1 : -1;
    int index = 0;
    for (int axis = GRID_AXES - 1; axis >= 0; axis--)
        if (groups[group].spans[axis])
            index = index * g->size[axis] + g->at[axis];
    return index;
}

int grid_neighbour(const grid *g, grid_axis axis, int step)
{
    int at[GRID_AXES];
    for (int i = 0; i < GRID_AXES; i++)
        at[i] = g->at[i];
    at[axis] += step;
    return at[axis] < 0 || at[axis] >= g->size[axis] ? -1 : grid_rank_at(g, at);
}
