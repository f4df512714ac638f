/* A run's folder as one JSON value, for a page: what it is, its curves with as many points as asked for, its events,
 * its hosts, and the plan of its configuration. Everything is read from the files that the run leaves, while it runs,
 * too. The caller's to json_decref.
 */
#pragma once

#include <jansson.h>

#include "memory/status.h"

/* Fails where `folder` is no run's. */
status report_run_read(json_t **out, const char *folder, int points);
