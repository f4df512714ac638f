#include "memory/planner.h"

#include <stdlib.h>

#include "memory/log.h"
#include "memory/planner_core.h"
#include "memory/planner_order.h"
#include "memory/planner_repair.h"
#include "memory/planner_search.h"

static int64_t default_effort(int64_t count)
{
    int64_t most = 4 * count > 2000000 ? 4 * count : 2000000;
    int64_t effort = 200 * count > 40000 ? 200 * count : 40000;
    return effort < most ? effort : most;
}

/* A repair that succeeds does so soon, and its moves cost twice a placement. There are two. */
static int64_t repair_effort(const planner_core *core)
{
    int64_t most = 5000 + 20 * (int64_t)core->count;
    most = core->count > PLANNER_REPAIR_BLOCKS ? 0 : most < 30000 ? most : 30000;
    return core->effort_left / 3 < most ? core->effort_left / 3 : most;
}

/* Repair what the best order gives; search for other orders; repair what the best of those gives. */
static void improve(planner_core *core, int32_t *order)
{
    int64_t repairing = repair_effort(core);
    if (planner_repair(core, repairing))
        return;
    core->effort_left -= repairing;
    planner_search(core, order);
    core->effort_left += repairing;
    if (core->best_arena > core->target)
        planner_repair(core, repairing);
}

/* The largest arena that is good enough. */
static int64_t target_of(int64_t bound, int64_t alignment, double goal)
{
    int64_t target = (int64_t)((double)bound * goal) & -alignment;
    return target > bound ? target : bound;
}

void planner_place(planner_block *blocks, planner_result *result, int64_t count, int64_t alignment, double goal,
                   int64_t effort)
{
    MUST(goal >= 1 && goal < 1e6, "a goal of %g times the lower bound", goal);
    planner_core core;
    planner_core_open(&core, blocks, count, alignment);
    core.target = target_of(core.bound, alignment, goal);
    core.effort_left = effort > 0 ? effort : default_effort(core.count);
    if (core.count > 0) {
        int32_t *order = must_alloc((unsigned long)core.count * sizeof *order);
        if (!planner_order_try_all(&core, order))
            improve(&core, order);
        free(order);
    }
    for (int64_t i = 0; i < count; i++)
        blocks[i].offset = 0;
    for (int32_t i = 0; i < core.count; i++)
        blocks[core.source[i]].offset = core.best[i];
    *result = (planner_result){
        .arena_bytes = core.count > 0 ? core.best_arena : 0, .lower_bound = core.bound, .tries = core.tries};
    planner_core_close(&core);
}
