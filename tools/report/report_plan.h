/* What `phalanx plan` says of a run's configuration, as JSON, with the actions of each stage in time. */
#pragma once

#include <jansson.h>

#include "memory/status.h"

/* Of the run in `folder`, on the ranks and the device of its latest start. The result is the object of `plan --json`,
 * with `command`, which prints the same, and timeline: {length, shown, kinds, stages: [{bubble, in_flight, seconds:
 * [[what, seconds], ...], spans: [[kind, chunk, micro-batch, start, end], ...]}]}: `length` is the step, to which
 * `seconds` sum; start and end are in millionths of it. A step of very many actions is shown up to `shown`. The
 * caller's. */
status report_plan_make(json_t **out, const char *folder);
