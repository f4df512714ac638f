/* The watchdog: a thread on every rank that knows where the rank stands, and ends the job when it no longer moves.
 *
 * The executor stores its position in a slot without a lock; every store is progress. The threads talk over sockets of their own,
 * a star around rank 0, so that they still speak when communication is stuck. When a rank dies, or when one makes no
 * progress for `hang_seconds`, every rank that can be reached is listed with its position and the peer it waits for, the
 * rank that holds up the others is named, and all processes exit with status 1. One thread of a rank stores positions.
 */
#ifndef PHALANX_PARALLEL_WATCHDOG_H
#define PHALANX_PARALLEL_WATCHDOG_H

#include <stdint.h>

#include "memory/status.h"
#include "parallel/comm.h"

typedef struct watchdog watchdog;

typedef struct watchdog_position {
    int64_t step;
    int micro_batch;    /* -1: not within one */
    const char *action; /* "forward of chunk 0"; NULL: none. Both texts must live as long as the watchdog */
    const char *op;     /* the op's label; NULL: none */
} watchdog_position;

/* Collective over all ranks. The watch begins at once. */
status watchdog_open(watchdog **out, comm *c, double hang_seconds);
/* This rank leaves the watch. Closing before the last messages of the job have been exchanged leaves them unwatched. */
void watchdog_close(watchdog *w);

/* The rank stands here now. A few nanoseconds. */
void watchdog_at(watchdog *w, const watchdog_position *position);

/* Around long work that is no step (loading, writing a checkpoint): until the same number of resumes, lack of progress is
 * excused on every rank, since the others may be waiting for this one. NULL is accepted. A rank that stops answering is not excused. */
void watchdog_suspend(watchdog *w);
void watchdog_resume(watchdog *w);

/* "step 3, micro-batch 1, forward of chunk 0, op layer 3/mlp/down, waiting for rank 2": fits log_set_where, with the
 * watchdog as its context. */
void watchdog_where(char *out, int bytes, void *w);

#endif
