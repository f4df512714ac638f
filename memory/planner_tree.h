/* The occupied addresses of an arena over time.
 *
 * Answers "what is the lowest (or highest) range of `bytes` that is free at all times first..last?" and marks such a
 * range as taken. Time is the small integers 0..times-1. A tree owns its nodes and lists.
 */
#pragma once

#include <stdint.h>

typedef struct planner_tree planner_tree;

planner_tree *planner_tree_open(int32_t times);
void planner_tree_close(planner_tree *tree); /* NULL is nothing to close */
void planner_tree_clear(planner_tree *tree); /* nothing is taken any more; keeps its memory */

int64_t planner_tree_lowest(planner_tree *tree, int32_t first, int32_t last, int64_t bytes);
/* Entirely below `ceiling`; -1 if there is no such place. */
int64_t planner_tree_highest(planner_tree *tree, int32_t first, int32_t last, int64_t bytes, int64_t ceiling);
void planner_tree_take(planner_tree *tree, int32_t first, int32_t last, int64_t offset, int64_t bytes);
