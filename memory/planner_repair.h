/* Small programs: mend the best arena block by block. Inside of planner.c. */
#ifndef PHALANX_MEMORY_PLANNER_REPAIR_H
#define PHALANX_MEMORY_PLANNER_REPAIR_H

#include "memory/planner_core.h"

enum { PLANNER_REPAIR_BLOCKS = 5000 }; /* programs of more are left alone */

/* Mend core->best until it is good enough (true) or `effort` block placements are used up. Nor is one touched in
 * which too many blocks meet. */
bool planner_repair(planner_core *core, int64_t effort);

#endif
