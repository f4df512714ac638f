/* Pace: how fast this rank computes the same ops as other ranks, and so which rank slows the others down.
 *
 * Ranks run equal programs, or parts of one that have equal ops in them: a layer's product has the same shape on every
 * stage. In each step a few ops are timed, of the PACE_CLASSES kinds (kind, shapes, types) with the most work. Excluded
 * is attention with work that depends on the batch (kernels/attention_work.h): a rank that gets more of it is healthy.
 * On the CPU ops are timed by the processor time of the thread that runs the program: it includes a core that is
 * throttled, shared with a busy sibling, or slow at reaching its memory, and excludes time in which the process does
 * not run at all (another process has the core). Communication is counted apart, in seconds spent waiting. On a GPU
 * events time ops before and after each, also within a graph: these show a GPU with a low clock or slow memory; its
 * waits are not counted there (run.trace shows them).
 *
 * A rank's ratio is its time over the median of the ranks that have the same ops; judged is the median of its ratios
 * over PACE_WINDOW steps. One rank judges all ranks' figures. No memory is allocated after opening.
 */
#pragma once

#include "engine/run/executor.h"

enum { PACE_CLASSES = 8, PACE_WINDOW = 20 };

/* Seconds: shorter ops are dominated by the clock itself (0.3 us a reading) and the caches' state. */
#define PACE_SHORTEST 50e-6

/* A rank's figures of its last step: 0 for kinds not timed. */
typedef struct pace_figures {
    float seconds[PACE_CLASSES]; /* mean of one op */
    float waited;                /* wait for communication in wall time */
} pace_figures;

typedef struct pace pace;

/* Collective. Observes `e` from now on. */
pace *pace_open(const compiled *c, executor *e, comm *world);
void pace_close(pace *p);
/* Returns the figures since the last call. */
pace_figures pace_take(pace *p);

/* The judge. */
typedef struct pace_judge pace_judge;
pace_judge *pace_judge_open(int ranks);
void pace_judge_close(pace_judge *j);
void pace_judge_add(pace_judge *j, const pace_figures *shares, int64_t stride); /* [ranks], `stride` bytes apart */
/* Returns a rank's ratio over the window; 0 until that is full, or if it has no ops in common with others. */
double pace_ratio(const pace_judge *j, int rank);
double pace_waited(const pace_judge *j); /* seconds of the last step, the mean over the ranks */
/* Returns a rank that has become slow by `limit` (1.1: 10% over the median) since the last call, or recovered
 * (*recovered), once per change. -1: none. */
int pace_change(pace_judge *j, double limit, bool *recovered);
