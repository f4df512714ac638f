/* A training step that is measured: one rank, random tokens and weights. */
#pragma once

#include "engine/run/choices.h"
#include "engine/config/config.h"
#include "engine/run/executor.h"

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
