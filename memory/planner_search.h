/* The last resort: learn which kinds of blocks must be placed early. A part of planner.c. */
#pragma once

#include "memory/planner_core.h"

/* Starting from `order` ([core->count], the best one so far), search until an arena is good enough or the effort is
 * used up. */
void planner_search(planner_core *core, int32_t *order);
