/* A shared object for LD_PRELOAD: the clock of the day is wrong for some processes, and the machine's stays as it is.
 *
 *     PHALANX_CLOCK_FAULTS=/tmp/x/clock LD_PRELOAD=build/tests/clock_faults.so build/phalanx train ...
 *
 * While that file is there it holds two numbers: which of mpirun's ranks is meant (-1: all; a process that is no rank
 * counts as rank 0), and by how many seconds its clock is ahead. A file of the same name with ".unread" behind it is
 * removed by the first process that reads a wrong time. Seen are clock_gettime of CLOCK_REALTIME and
 * CLOCK_REALTIME_COARSE, gettimeofday and time; monotonic clocks are right. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Seconds by which the clock of this process is ahead just now. */
static long ahead(void)
{
    const char *name = getenv("PHALANX_CLOCK_FAULTS"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char words[64] = "", unread[PATH_MAX];
    int kept = errno, who = 0;
    long seconds = 0;
    long file = name ? syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        long got = syscall(SYS_read, file, words, sizeof words - 1);
        syscall(SYS_close, file);
        if (got <= 0 || sscanf(words, "%d %ld", &who, &seconds) != 2 || (who >= 0 && who != (rank ? atoi(rank) : 0)))
            seconds = 0;
    }
    if (seconds != 0 && snprintf(unread, sizeof unread, "%s.unread", name) < (int)sizeof unread)
        syscall(SYS_unlink, unread);
    errno = kept;
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, out);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        out->tv_sec += ahead();
    return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone; /* obsolete: nobody has one */
    int result = clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return result;
}

time_t time(time_t *out)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
