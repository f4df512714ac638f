/* The parts of phalanx bench: a step that is measured, the times of its ops, a profile of the machine. */
#pragma once

#include "engine/config/config.h"
#include "engine/run/choices.h"
#include "engine/run/executor.h"
#include "parallel/comm/comm.h"

/* A training step that is measured: one rank, random tokens and weights. */
typedef struct bench_step {
    const device_interface *device;
    compiled compiled;
    executor *executor;
} bench_step;

/* `timed`: choices that the device has are made by timing, and noted there; NULL: the library's guesses. Each process
 * of `world` plays a step of its own. To be closed also after a failure. */
status bench_step_open(bench_step *b, const config *c, const device_interface *on, int threads, comm *world,
                       choices *timed);
void bench_step_close(bench_step *b);

/* Sorts the values. */
double bench_median(double *values, int64_t count);

/* How long each op of a program takes while a step plays without interruption.
 *
 * On a GPU an event is recorded at each boundary between two ops on the queue that computes, and around each transfer
 * on its own queue, so that the host enqueues ahead and waits for nothing but the step's end. Updates that one launch
 * plays together, and waits between them, share its time by the bytes that each moves. On the CPU the host's clock is
 * read between ops. The executor and the program are the caller's and must outlive it.
 */
typedef struct bench_times bench_times;

bench_times *bench_times_open(executor *e, const compiled_program *p);
/* Plays the program once, op by op also where it has been captured as a graph; adds each op's seconds to seconds[op],
 * [ops]. Returns the seconds of the whole, from the first event to the last. */
double bench_times_play(bench_times *t, double *seconds);
void bench_times_close(bench_times *t);

/* phalanx bench --profile: a device profile of this machine (engine/compile/time/profile.h). */

/* Times every op of small models' training steps, in fp32 and bf16, attention at a few lengths, and messages of several
 * sizes between the ranks, into the file. Points that it has of ranks with other numbers of threads, or of other
 * numbers of ranks, stay: measured alone and under mpirun, a host's profile knows both. More ranks than cores time
 * messages only. Collective; rank 0 writes. */
status bench_profile(const char *path, config_device where, comm *world);
