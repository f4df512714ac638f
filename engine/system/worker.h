/* Threads beside the one that trains share with it a lock, a change to wait for, and a flag that tells them to stop. A
 * worker is part of the struct that it works for; it may have several threads, which then share all of that. Signals
 * are for the main thread: a worker's threads block all but faults.
 *
 *     worker_init(&m->worker);
 *     TRY(worker_start(&m->worker, mirror_all, m, "mirrors checkpoints"));
 *     ...
 *     worker_close(&m->worker);        (stops and waits, in the order of the starts)
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "memory/status.h"

typedef struct worker {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_bool stop;
    pthread_t *thread; /* [threads] */
    int threads;
} worker;

void worker_init(worker *w);

/* Starts a thread that calls run(context). `does` ends the sentence "cannot start the thread that ...", and its
 * beginning is the thread's name in debuggers. */
status worker_start(worker *w, void (*run)(void *context), void *context, const char *does);

/* Waits until the threads have returned, without telling them to. */
void worker_join(worker *w);

/* Tells the threads to stop, wakes the waiting ones, joins them, and destroys the state of worker_init. */
void worker_close(worker *w);

/* Wakes all threads that wait for a change. The caller may hold the lock. */
void worker_tell(worker *w);

/* Waits for a change; with `until`, at most until clock_seconds() is that. The caller holds the lock. False, at once,
 * if the threads were told to stop, or when `until` has come. */
bool worker_wait(worker *w);
bool worker_wait_until(worker *w, double until);

/* Sleeps for `seconds`; false, at once, if the threads were told to stop. The caller does not hold the lock. */
bool worker_pause(worker *w, double seconds);

static inline worker *worker_lock(worker *w)
{
    pthread_mutex_lock(&w->lock);
    return w;
}

static inline void worker_unlock(worker *w)
{
    pthread_mutex_unlock(&w->lock);
}

static inline void worker_release(worker **held)
{
    worker_unlock(*held);
}

/* Holds the lock from here to the end of the scope. */
#define WORKER_HELD(w) __attribute__((cleanup(worker_release), unused)) worker *worker_held_ = worker_lock(w)
