/* The parts of phalanx bench: a measured step, the times of its ops, a profile of the machine. */
#pragma once

#include "engine/config/config.h"
#include "engine/run/choices.h"
#include "engine/run/executor.h"
#include "parallel/comm/comm.h"

/* A measured training step: one rank, random tokens and weights. */
typedef struct bench_step {
    const device_interface *device;
    compiled compiled;
    executor *executor;
} bench_step;

/* Opens a step; each process of `world` plays a step of its own. `timed`: the device's choices are made by timing and
 * noted there; NULL: the library's guesses. The caller must close it also after a failure. */
status bench_step_open(bench_step *b, const config *c, const device_interface *on, int threads, comm *world,
                       choices *timed);
void bench_step_close(bench_step *b);

/* Sorts the values. */
double bench_median(double *values, int64_t count);

/* Measures how long each op of a program takes while a step plays without interruption.
 *
 * A GPU records an event at each boundary between two ops on the compute queue, and around each transfer on its own
 * queue, so that the host enqueues ahead and waits only for the step's end. Updates that one launch plays together, and
 * waits between them, share its time by the bytes that each moves. A CPU reads the host's clock between ops. The caller
 * owns the executor and the program, which must outlive it.
 */
typedef struct bench_times bench_times;

bench_times *bench_times_open(executor *e, const compiled_program *p);
/* Plays the program once, op by op even if it has been captured as a graph; adds each op's seconds to seconds[op],
 * [ops]. Returns the seconds of the whole step, from the first event to the last. */
double bench_times_play(bench_times *t, double *seconds);
void bench_times_close(bench_times *t);

/* phalanx bench --profile: a device profile of this machine (engine/compile/time/profile.h). */

/* Times every op of small models' training steps, in fp32 and bf16, attention at a few lengths, and messages of several
 * sizes between the ranks, into the file. Keeps the file's points of other thread counts and rank counts: a host's
 * profile measured alone and under mpirun knows both. If there are more ranks than cores, only messages are timed.
 * Collective; rank 0 writes. */
status bench_profile(const char *path, config_device where, comm *world);
