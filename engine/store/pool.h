/* Threads that download or upload objects of one bucket, each with a handle of its own.
 *
 * The first failure becomes the pool's result and tells the other threads to end.
 */
#pragma once

#include "engine/store/object.h"
#include "engine/system/worker.h"

/* State that the threads share beside the task's own: a lock (WORKER_HELD), and whether they are to end. */
typedef struct pool pool;
struct pool {
    worker worker;
    const struct pool_task *task;
    int begun, running;
    status result; /* first failure, with its message and its fault */
    char *why;
    int fault;
};

typedef struct pool_task {
    const char *bucket, *does; /* does: as worker_start has it */
    int threads;
    object_limits limits; /* `stop` NULL: a failure stops the others */
    /* Runs in thread number `thread` until all work is done or p->worker.stop is set. */
    status (*work)(void *context, pool *p, object_store *s, int thread, int *fault);
    void (*tell)(void *context); /* called every `every` seconds with the lock held; or NULL */
    double every;
    void *context;
} pool_task;

/* Returns when all threads have ended. On failure `fault` is set, unless NULL. */
status pool_run(const pool_task *task, int *fault);
