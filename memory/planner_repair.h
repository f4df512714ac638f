/* Small programs: repair the best arena block by block. A part of planner.c. */
#pragma once

#include "memory/planner_core.h"

enum { PLANNER_REPAIR_BLOCKS = 5000 }; /* programs of more are left alone */

/* Repair core->best until it is good enough (true) or `effort` block placements are used up. Programs in which too many
 * blocks meet are left alone too. */
bool planner_repair(planner_core *core, int64_t effort);
