#include "engine/system/worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/clock.h"
#include "memory/log.h"

/* Arguments of a thread, which frees them. */
typedef struct start {
    void (*run)(void *context);
    void *context;
    char name[16]; /* the kernel keeps this many bytes */
} start;

void worker_init(worker *w)
{
    *w = (worker){0};
    pthread_mutex_init(&w->lock, NULL);
    clock_condition(&w->changed);
}

static void *run_thread(void *argument)
{
    start s = *(start *)argument;
    free(argument);
    pthread_setname_np(pthread_self(), s.name);
    s.run(s.context);
    return NULL;
}

status worker_start(worker *w, void (*run)(void *context), void *context, const char *does)
{
    start *s = must_alloc(sizeof *s);
    *s = (start){.run = run, .context = context};
    snprintf(s->name, sizeof s->name, "%s", does);
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}; /* reported by memory/fault.h */
    sigset_t most, before;
    sigfillset(&most);
    for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&most, faults[i]);
    w->thread = must_realloc(w->thread, (unsigned long)(w->threads + 1) * sizeof *w->thread);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    int error = pthread_create(&w->thread[w->threads], NULL, run_thread, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        free(s);
        return status_fail(STATUS_FAILED, "cannot start the thread that %s: %s", does, strerror(error));
    }
    w->threads++;
    return STATUS_OK;
}

void worker_join(worker *w)
{
    for (int i = 0; i < w->threads; i++)
        pthread_join(w->thread[i], NULL);
    w->threads = 0;
}

void worker_close(worker *w)
{
    worker_lock(w);
    atomic_store(&w->stop, true);
    worker_tell(w);
    worker_unlock(w);
    worker_join(w);
    free(w->thread);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
}

void worker_tell(worker *w)
{
    pthread_cond_broadcast(&w->changed);
}

bool worker_wait(worker *w)
{
    if (!atomic_load(&w->stop))
        pthread_cond_wait(&w->changed, &w->lock);
    return !atomic_load(&w->stop);
}

bool worker_wait_until(worker *w, double until)
{
    return !atomic_load(&w->stop) && clock_wait(&w->changed, &w->lock, until) && !atomic_load(&w->stop);
}

bool worker_pause(worker *w, double seconds)
{
    WORKER_HELD(w);
    double until = clock_seconds() + seconds;
    while (worker_wait_until(w, until))
        continue;
    return !atomic_load(&w->stop);
}
