/* Verification of a rank's memory and arithmetic while it trains (run.verify_every).
 *
 * *State at rest.* Weights, master weights and the optimizer's states are summed right after the last op of a step that
 * writes them, and checked right before the first that writes them again: in between they must not change. The program
 * determines these times. *Repetition.* Each op of the forward and backward pass of one step in `verify_every`, in a
 * different micro-batch each time, is run twice, and its results are compared bit by bit; on a device that step is
 * enqueued op by op. Sums are made and compared where the arena is, in planned memory (engine/compile/compile.h); the
 * host reads the notes on request. No memory is allocated after opening. State that is offloaded to host memory is not
 * summed.
 */
#pragma once

#include "engine/run/executor.h"

typedef struct verify verify;

/* `every`: steps from one repetition to the next. Observes `e`. */
verify *verify_open(const compiled *c, executor *e, int every);
void verify_close(verify *v);

/* Sums the state in memory after it was loaded, and discards earlier findings. */
void verify_begin(verify *v);
/* Starts a step, from 1. */
void verify_step(verify *v, int64_t step);

typedef struct verify_finding {
    bool bad;
    char words[256];              /* description of the first */
    unsigned compared;            /* axes along which replicas compare equal weights, as a bit set */
    uint64_t weights[AXIS_COUNT]; /* per axis: checksum of those weights as last written */
    double seconds; /* total time of verification; on a device, reading the summed and copied bytes at its bandwidth */
} verify_finding;

/* Returns the findings; also checks state that no step has written since. */
verify_finding verify_find(verify *v);
