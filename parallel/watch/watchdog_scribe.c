#include "parallel/watch/watchdog_scribe.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

#include "memory/clock.h"
#include "memory/log.h"

struct watchdog_scribe {
    watchdog_write *write;
    void *context;
    sem_t asked, done;
    incident what;
    bool ours, ends;
    pthread_t thread;
};

static void *scribe(void *argument)
{
    watchdog_scribe *s = argument;
    for (;;) {
        while (sem_wait(&s->asked))
            continue;
        if (s->ends)
            return NULL;
        s->write(s->context, &s->what, s->ours);
        sem_post(&s->done);
    }
}

status watchdog_scribe_open(watchdog_scribe **out, watchdog_write *write, void *context)
{
    watchdog_scribe *s = must_calloc(1, sizeof *s);
    s->write = write;
    s->context = context;
    sem_init(&s->asked, 0, 0);
    sem_init(&s->done, 0, 0);
    if (pthread_create(&s->thread, NULL, scribe, s)) {
        free(s);
        return status_fail(STATUS_FAILED, "cannot start the watchdog's second thread");
    }
    *out = s;
    return STATUS_OK;
}

void watchdog_scribe_write(watchdog_scribe *s, const incident *what, bool ours, double seconds)
{
    if (!s)
        return;
    s->what = *what;
    s->ours = ours;
    sem_post(&s->asked);
    struct timespec until = clock_timespec(clock_seconds() + seconds);
    while (sem_clockwait(&s->done, CLOCK_MONOTONIC, &until) && errno == EINTR)
        continue;
}

void watchdog_scribe_close(watchdog_scribe *s)
{
    if (!s)
        return;
    s->ends = true;
    sem_post(&s->asked);
    pthread_join(s->thread, NULL);
    sem_destroy(&s->asked);
    sem_destroy(&s->done);
    free(s);
}
