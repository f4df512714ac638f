/* Verification of a rank's memory and arithmetic while it trains (run.verify_every); for the CPU, where ops are played one by one.
 *
 * *State at rest.* Weights, master weights and the optimizer's states are summed (memory/bits.h) right after the last op of a step that
 * writes them, and checked right before the first that writes them again: in between nobody may change them. When that is, the
 * program says. *Repetition.* Each op of the forward and backward pass of one micro-batch of every so-manieth step, another one each time,
 * is played twice, and its results are compared bit by bit.
 * What was found is kept until it is asked for. Nothing is allocated after opening.
 */
#ifndef PHALANX_ENGINE_VERIFY_H
#define PHALANX_ENGINE_VERIFY_H

#include "engine/executor.h"

typedef struct verify verify;

/* `every`: steps from one repetition to the next. `e` is observed. */
verify *verify_open(const compiled *c, executor *e, int every);
void verify_close(verify *v);
/* Host memory that it takes. */
int64_t verify_bytes(const verify *v);

/* Sum what is in memory now: the state has been loaded, and what was found before is of no interest any more. */
void verify_begin(verify *v);
/* Before each step, from 1. */
void verify_step(verify *v, int64_t step);

typedef struct verify_finding {
    bool bad;
    char words[256];  /* of the first */
    uint64_t weights; /* a sum of all weights, as they were when last written */
    double seconds;   /* that all this has taken so far */
} verify_finding;

/* Checks what nothing has written in the steps since, too. */
verify_finding verify_find(verify *v);

#endif
