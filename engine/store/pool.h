/* Threads that work on objects of one bucket, each with a handle of its own: what a download and an upload are done by.
 *
 * The first failure is the pool's, and tells the others to end.
 */
#pragma once

#include "engine/store/object.h"
#include "engine/system/worker.h"

/* What the threads share beside the task's own: a lock (WORKER_HELD), and whether they are to end. */
typedef struct pool pool;
struct pool {
    worker worker;
    const struct pool_task *task;
    int begun, running;
    status result; /* the first failure, with its message, and what it is a failure of */
    char *why;
    int fault;
};

typedef struct pool_task {
    const char *bucket, *does; /* does: as worker_start has it */
    int threads;
    object_limits limits; /* `stop` NULL: a failure cuts the others short */
    /* By thread number `thread`, until nothing is left or p->worker.stop is set. */
    status (*work)(void *context, pool *p, object_store *s, int thread, int *fault);
    void (*tell)(void *context); /* every so many seconds, with the lock held; NULL: nobody asks */
    double every;
    void *context;
} pool_task;

/* Returns when all threads have ended. `fault`, which may be NULL, is set if it fails. */
status pool_run(const pool_task *task, int *fault);
