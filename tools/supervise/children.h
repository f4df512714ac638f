/* A command and everything that it starts on this machine.
 *
 * The command runs in a process group of its own, with its output in a file: it is independent of its parent and goes
 * on if that dies. Processes that lose their own parent are adopted, so that none is lost. One command at a time.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "memory/status.h"

/* Makes this process adopt descendants that lose their parent from now on. */
status children_adopt(void);
/* Starts a command; `argv` ends with NULL; standard output and error are appended to the file. */
status children_start(pid_t *out, char *const *argv, const char *output);
/* Collects ended processes. True once `child` has ended: *exit_status is its exit status, or 128 + signal. */
bool children_ended(pid_t child, int *exit_status);
/* Sends a signal to all processes below this one that run this program's own file with the argument `word`; returns
 * their number. */
int children_signal(int number, const char *word);
/* Returns a process below this one that a signal has stopped (SIGSTOP, not a debugger), or 0. */
pid_t children_stopped(void);
/* Kills all processes below this one and waits until they are gone; false if one remains after `seconds`. */
bool children_kill(double seconds);
/* Removes the files that Open MPI's mpirun leaves on this machine when it is killed: its session's folder, and shared
 * memory of its ranks. `launcher` and its ranks must have ended. No effect for another launcher or an orderly end. */
void children_remove_files(pid_t launcher);
