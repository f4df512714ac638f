/* Running a program from a test: with a time limit, its output captured, its exit status told.
 *
 * launch_start gives a running command, launch_finish waits for it; launch_run does both. A command that exceeds its
 * limit is ended (SIGTERM, then SIGKILL) and counts as timed out. The result owns its texts: launch_free.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef struct launch launch;

typedef struct launch_result {
    int status; /* exit status; 128 + signal if a signal ended it */
    bool timed_out;
    double seconds;
    char *out, *err;
} launch_result;

/* The command is a line for the shell. */
launch *launch_start(double limit_seconds, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Wait until standard output or standard error contains `text`; false after `seconds`, or when the command has ended
 * without saying it. */
bool launch_expect(launch *l, const char *text, double seconds);
/* The same of what it has yet to say on standard output: behind the first `said` characters of launch_output. */
bool launch_expect_after(launch *l, size_t said, const char *text, double seconds);
/* While it runs: its standard output so far (a fresh string), and for how long it has run. */
char *launch_output(const launch *l);
double launch_seconds(const launch *l);
/* The process of the command (with `exec`, of the program), to be signalled by the test. */
int launch_pid(const launch *l);
/* It has ended, by itself or at its limit; launch_finish returns at once. */
bool launch_ended(launch *l);
launch_result launch_finish(launch *l);

launch_result launch_run(double limit_seconds, const char *format, ...) __attribute__((format(printf, 2, 3)));
void launch_free(launch_result *r);

/* The mpirun words that put `ranks` processes on this machine, however few cores it has: to be followed by a
 * program and its arguments. A fresh string. */
char *launch_mpirun(int ranks);
/* The path of a program in the folder of the running test ("rank_comm"), or of one level above ("../phalanx"). A fresh
 * string. */
char *launch_beside(const char *name);
