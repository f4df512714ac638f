/* Reads a run's folder into one JSON value for a page: its facts, curves of the requested number of points, events,
 * hosts, and the plan of its configuration. All of it comes from the files that the run leaves, also while it runs. The
 * caller must json_decref it. */
#pragma once

#include <jansson.h>

#include "memory/status.h"

/* Fails if `folder` is not a run's. */
status report_run_read(json_t **out, const char *folder, int points);
