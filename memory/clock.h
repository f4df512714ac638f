/* The clock for durations: seconds of the system's monotonic clock, which the ranks of one machine share; its zero means
 * nothing. */
#ifndef PHALANX_MEMORY_CLOCK_H
#define PHALANX_MEMORY_CLOCK_H

#include <time.h>

static inline double clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
