/* Finds a schedule for a layout (parallel/schedule_search.h), for what its own actions cost and keep, read off a program of
 * every stage, and plays the best of what is found and every named schedule that fits: the shortest step is taken.
 *
 * Prices are the caller's: `plan` finds with those of the device that it plans for, and compile() by itself, so a run, with
 * COMPILE_FIND_DEVICE's, whatever it runs on: every rank then finds the same, at every start. The memory is what
 * memory.budget leaves, and without a budget what the layout takes with 1F1B. If not even 1F1B fits into the budget,
 * activations are made again, and what is found holds no more than 1F1B then does.
 */
#ifndef PHALANX_ENGINE_COMPILE_COMPILE_FIND_H
#define PHALANX_ENGINE_COMPILE_COMPILE_FIND_H

#include "engine/compile/compiled.h"
#include "engine/compile/profile.h"

/* A built-in profile: what a run finds its schedule with. */
#define COMPILE_FIND_DEVICE "h100"

/* For o->found with SCHEDULE_AUTO; freed after all that is compiled with it. */
status compile_find(schedule *out, const compile_options *o, const profile *prices);

#endif
