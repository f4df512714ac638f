/* Verification of a rank's memory and arithmetic while it trains (run.verify_every).
 *
 * *State at rest.* Weights, master weights and the optimizer's states are summed right after the last op of a step that
 * writes them, and checked right before the first that writes them again: in between nobody may change them. When that
 * is, the program says. *Repetition.* Each op of the forward and backward pass of one step in `verify_every`, in a
 * different micro-batch each time, is played twice, and its results are compared bit by bit; on a device that step is
 * enqueued op by op. Sums are made and compared where the arena is, in room of the plan (engine/compile/compile.h);
 * the host looks at what was noted when it is asked for. Nothing is allocated after opening. State that is offloaded to
 * host memory is not summed.
 */
#pragma once

#include "engine/run/executor.h"

typedef struct verify verify;

/* `every`: steps from one repetition to the next. `e` is observed. */
verify *verify_open(const compiled *c, executor *e, int every);
void verify_close(verify *v);

/* Sum what is in memory now: the state has been loaded, and what was found before is of no interest any more. */
void verify_begin(verify *v);
/* Before each step, from 1. */
void verify_step(verify *v, int64_t step);

typedef struct verify_finding {
    bool bad;
    char words[256];              /* of the first */
    unsigned compared;            /* axes, bit by bit, along which replicas have the same weights */
    uint64_t weights[AXIS_COUNT]; /* of each of them, a sum of those weights as they were when last written */
    double
        seconds; /* that all this has taken so far; on a device, reading what was summed and copied, at its bandwidth */
} verify_finding;

/* Checks what nothing has written in the steps since, too. */
verify_finding verify_find(verify *v);
