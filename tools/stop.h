/* Turns a signal (SIGINT, SIGTERM, SIGHUP) into a question that a command asks between two pieces of work, so that no
 * output stays half-written: unfinished output is abandoned as after any failure, then the signal ends the process as
 * usual. */
#pragma once

#include "memory/status.h"

/* Keeps signals for stop_asked from now on; a second one ends the process at once. */
void stop_catch(void);
/* Fails if there was a signal. */
status stop_asked(void);
/* Returns the exit status for `s`; if there was a signal, ends the process by it. */
int stop_exit(status s);
