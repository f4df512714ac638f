/* A thread that waits for the end: it writes down what happened while the watchdog's thread keeps the time, because the
 * storage that is written to may be what does not answer. */
#pragma once

#include "memory/status.h"
#include "parallel/watch/incident.h"

typedef struct watchdog_scribe watchdog_scribe;

/* Writes an incident. `ours`: this rank is the one to record it; else only what this rank itself knows is to be
 * written. */
typedef void watchdog_write(void *context, const incident *what, bool ours);

status watchdog_scribe_open(watchdog_scribe **out, watchdog_write *write, void *context);
/* Has it written, and waits for it at most so long. */
void watchdog_scribe_write(watchdog_scribe *s, const incident *what, bool ours, double seconds);
void watchdog_scribe_close(watchdog_scribe *s);
