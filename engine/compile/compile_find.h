/* Finds a schedule for a layout (parallel/schedule/schedule_search.h), for what its own actions cost and keep, read off
 * a program of every stage, and plays the best of what is found and every named schedule that fits: the shortest step
 * is taken.
 *
 * Prices are those of o->layout.schedule_for (parallel.schedule_for), whatever the step runs on or is planned for:
 * every rank, every start and `plan` then find the same. The memory is what memory.budget leaves, and without a budget
 * what the layout takes with 1F1B. If not even 1F1B fits into the budget, activations are made again, and what is found
 * holds no more than 1F1B then does.
 */
#pragma once

#include "engine/compile/model/compiled.h"

/* For o->found with SCHEDULE_AUTO; freed after all that is compiled with it. STATUS_USAGE: there is no such profile. */
status compile_find(schedule *out, const compile_options *o);
/* The profile that it finds with, as profile_open() takes it. */
const char *compile_find_prices(const compile_options *o);
