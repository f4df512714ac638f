/* A shared object for LD_PRELOAD: a process that would give up its turn sleeps for a moment instead.
 *
 *     LD_PRELOAD=build/tests/patient_waits.so mpirun --mca mpi_yield_when_idle 1 -np 4 ...
 *
 * MPI's ranks poll while they wait for one another. Where there are more of them than cores, those that wait take turns
 * with those that compute; asleep they leave the cores to whoever has something to do. */
#include <sched.h>
#include <time.h>

int sched_yield(void)
{
    return nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}
