/* The clock for durations, and waiting by it: seconds of the system's monotonic clock, which the ranks of one machine
 * share; its zero is arbitrary. The clock of the day may be set back or ahead at any moment, and no two machines have
 * the same one: it is for display, never for waiting or for deciding.
 */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

static inline double clock_of(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline double clock_seconds(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

static inline struct timespec clock_timespec(double seconds)
{
    return (struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
}

/* A condition that clock_wait may wait for. */
static inline void clock_condition(pthread_cond_t *out)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(out, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Waits for a change until clock_seconds() is `until`; false when it is. */
static inline bool clock_wait(pthread_cond_t *changed, pthread_mutex_t *held, double until)
{
    struct timespec t = clock_timespec(until);
    return pthread_cond_timedwait(changed, held, &t) != ETIMEDOUT;
}

static inline void clock_nap(double seconds)
{
    struct timespec t = clock_timespec(seconds);
    nanosleep(&t, NULL);
}
