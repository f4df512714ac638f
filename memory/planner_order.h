/* The orders in which the planner places blocks: one row each, cheapest success first. Inside of planner.c. */
#pragma once

#include "memory/planner_core.h"

/* Try the orders until planner_core_try says stop; returns whether it did. best_order[core->count] receives the one
 * that led to the smallest arena. */
bool planner_order_try_all(planner_core *core, int32_t *best_order);

/* floor of 2 log2(value), the halves at 1.5: sizes and durations that differ by less are alike */
int planner_order_half_octave(int64_t value);
