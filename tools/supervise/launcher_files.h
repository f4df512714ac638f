/* What Open MPI's mpirun leaves on this machine when it is killed: its session's folder, and shared memory of its
 * ranks. */
#pragma once

#include <sys/types.h>

/* Removes what the launcher that was this process has left; it and its ranks have ended. Nothing if it was another
 * launcher, or ended in order. */
void launcher_files_remove(pid_t launcher);
