/* Finds a schedule for a layout (parallel/schedule_search.h), for what its own actions cost and keep, read off a program of
 * every stage.
 *
 * Prices are an H100's (plan_price.h), whatever the step runs on, so that every rank, and `plan`, find the same. The
 * memory is what memory.budget leaves, or what the layout takes with 1F1B if that is more or there is no budget: then the
 * budget is met by making activations again, as with any schedule. Folded schedules must fit without.
 */
#ifndef PHALANX_ENGINE_COMPILE_COMPILE_FIND_H
#define PHALANX_ENGINE_COMPILE_COMPILE_FIND_H

#include "engine/compile/compiled.h"

/* For o->found with SCHEDULE_AUTO; freed after all that is compiled with it. */
status compile_find(schedule *out, const compile_options *o);

#endif
