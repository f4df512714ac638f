#include "memory/planner.h"

#include "memory/log.h"
#include "memory/planner_internal.h"

static int64_t default_effort(int64_t count)
{
    int64_t most = 4 * count > 2000000 ? 4 * count : 2000000;
    int64_t effort = 200 * count > 40000 ? 200 * count : 40000;
    return effort < most ? effort : most;
}

/* A repair that succeeds does so soon, and its moves cost twice a placement. */
static int64_t repair_effort(const planner_core *core)
{
    int64_t most = 5000 + 20 * (int64_t)core->count;
    most = core->count > PLANNER_REPAIR_BLOCKS ? 0 : most < 30000 ? most : 30000;
    return core->effort_left / 3 < most ? core->effort_left / 3 : most;
}

void planner_place(planner_block *blocks, planner_result *result, int64_t count, int64_t alignment, double goal,
                   int64_t effort)
{
    MUST(goal >= 1 && goal < 1e6, "a goal of %g times the lower bound", goal);
    planner_core core;
    planner_core_open(&core, blocks, count, alignment);
    int64_t enough = (int64_t)((double)core.bound * goal) & -alignment;
    core.target = enough > core.bound ? enough : core.bound;
    core.effort_left = effort > 0 ? effort : default_effort(core.count);
    if (core.count > 0 && !planner_order_try_all(&core))
        planner_repair(&core, repair_effort(&core));
    for (int64_t i = 0; i < count; i++)
        blocks[i].offset = 0;
    for (int32_t i = 0; i < core.count; i++)
        blocks[core.source[i]].offset = core.best[i];
    *result = (planner_result){
        .arena_bytes = core.count > 0 ? core.best_arena : 0, .lower_bound = core.bound, .tries = core.tries};
    planner_core_close(&core);
}
