/* Training: the loop over steps and the work around a step. */
#pragma once

#include "engine/config/config.h"
#include "parallel/comm/comm.h"
#include "parallel/watch/watchdog.h"

/* Trains as `c` says, on all ranks of `world`, from the latest checkpoint of the run's folder if it exists and
 * checkpoint.resume allows. `began`: the process's start (CLOCK_MONOTONIC, seconds). Returns when the last step is done
 * and saved; or, *stopped, after the current step if a signal asked to stop (parallel/watch/signals.h). */
status train_run(bool *stopped, const config *c, comm *world, watchdog *w, double began);

/* Returns how long each phase may last without progress. */
watchdog_limits train_limits(const config *c);
