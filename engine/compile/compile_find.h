/* Finds a schedule for a layout (parallel/schedule_search.h), for what its own actions cost and keep, read off a program of
 * every stage.
 *
 * Prices are an H100's (profile.h), whatever the step runs on, so that every rank, and `plan`, find the same. The
 * memory is what memory.budget leaves, and without a budget what the layout takes with 1F1B. If not even 1F1B fits into the
 * budget, 1F1B it is, and activations are made again. What is found is shorter than any named schedule that fits, or one of them.
 */
#ifndef PHALANX_ENGINE_COMPILE_COMPILE_FIND_H
#define PHALANX_ENGINE_COMPILE_COMPILE_FIND_H

#include "engine/compile/compiled.h"

/* For o->found with SCHEDULE_AUTO; freed after all that is compiled with it. */
status compile_find(schedule *out, const compile_options *o);

#endif
