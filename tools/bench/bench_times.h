/* How long each op of a program takes while a step plays without interruption.
 *
 * On a GPU an event is recorded at each boundary between two ops on the queue that computes, and around each transfer
 * on its own queue, so that the host enqueues ahead and waits for nothing but the step's end. Updates that one launch
 * plays together, and waits between them, share its time by the bytes that each moves. On the CPU the host's clock is
 * read between ops. The executor and the program are the caller's and must outlive it.
 */
#pragma once

#include "engine/run/executor.h"

typedef struct bench_times bench_times;

bench_times *bench_times_open(executor *e, const compiled_program *p);
/* Plays the program once, op by op also where it has been captured as a graph; adds each op's seconds to seconds[op],
 * [ops]. Returns the seconds of the whole, from the first event to the last. */
double bench_times_play(bench_times *t, double *seconds);
void bench_times_close(bench_times *t);
