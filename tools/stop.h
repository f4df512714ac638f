/* A signal (SIGINT, SIGTERM, SIGHUP) as a question that a command asks between two pieces of work, so that it leaves
 * nothing half-written: what was begun is abandoned as after any failure, then the signal ends the process as usual.
 */
#pragma once

#include "memory/status.h"

/* From now on signals are kept for stop_asked; a second one ends the process at once. */
void stop_catch(void);
/* A failure when there was a signal. */
status stop_asked(void);
/* What main returns for `s`; if there was a signal, the process ends by it here. */
int stop_exit(status s);
