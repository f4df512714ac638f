/* What `phalanx plan` says of a run's configuration, as JSON, with the actions of each stage in time. */
#ifndef PHALANX_TOOLS_REPORT_PLAN_H
#define PHALANX_TOOLS_REPORT_PLAN_H

#include <jansson.h>

#include "memory/status.h"

/* `path`: the run's config.yaml; `ranks`: how many trained it, 0: not known. The result is the object of `plan --json`,
 * with timeline: {length, shown, kinds, stages: [{bubble, in_flight, spans: [[kind, chunk, micro-batch, start, end],
 * ...]}]}, start and end in millionths of the length. A step of very many actions is shown up to `shown`. The
 * caller's. */
status report_plan_make(json_t **out, const char *path, int ranks);

#endif
