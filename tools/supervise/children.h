/* A command and everything that it starts on this machine.
 *
 * The command runs in a process group of its own, with its output in a file: it needs nothing of its parent, and goes
 * on if that dies. Processes whose own parent has gone are adopted, so that none is lost sight of. One command at a
 * time.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "memory/status.h"

/* Processes that lose their parent become this one's, from now on. */
status children_adopt(void);
/* `argv` ends with NULL; standard output and error are appended to the file. */
status children_start(pid_t *out, char *const *argv, const char *output);
/* Collects what has ended. True once `child` has; then *exit_status is its exit status, or 128 + signal. */
bool children_ended(pid_t child, int *exit_status);
/* Sends a signal to all processes below this one that run this program's own file with the argument `word`. How
 * many. */
int children_signal(int number, const char *word);
/* A process below this one that a signal has stopped (SIGSTOP, not a debugger); 0: none. */
pid_t children_stopped(void);
/* Kills everything below this process, and waits until nothing is left; false if something stays for `seconds`. */
bool children_kill(double seconds);
/* Removes what Open MPI's mpirun, when it is killed, leaves on this machine: its session's folder, and shared memory of
 * its ranks. `launcher` and they have ended. Nothing if it was another launcher, or ended in order. */
void children_remove_files(pid_t launcher);
