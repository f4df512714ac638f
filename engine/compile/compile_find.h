/* Finds a schedule for a layout (parallel/schedule/schedule_search.h), for the costs and activations of its own
 * actions, read off a program of every stage, and plays the best of the found ones and every named schedule that fits:
 * the shortest step is taken. Prices are o->layout.schedule_for's (parallel.schedule_for), whatever device the step
 * runs on or is planned for: every rank, every start and `plan` then find the same. The memory is memory.budget's
 * remainder, and without a budget the layout's need with 1F1B. If not even 1F1B fits into the budget, activations are
 * recomputed, and the found schedule holds no more than 1F1B then does. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Finds o->found for SCHEDULE_AUTO; free it after all programs that use it. STATUS_USAGE: no such profile. */
status compile_find(schedule *out, const compile_options *o);
/* The profile that it finds with, as profile_open() takes it. */
const char *compile_find_prices(const compile_options *o);
