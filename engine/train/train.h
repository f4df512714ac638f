/* Training: the loop over steps, and everything around a step. */
#pragma once

#include "engine/config/config.h"
#include "parallel/comm/comm.h"
#include "parallel/watch/watchdog.h"

/* Trains as `c` says, on all ranks of `world`, from the latest checkpoint of the run's folder if there is one and
 * checkpoint.resume allows. `began` is when the process did (CLOCK_MONOTONIC, seconds). Returns when the last step is
 * done and saved; or, *stopped, when the step at hand is and a signal has asked to stop (parallel/watch/signals.h). */
status train_run(bool *stopped, const config *c, comm *world, watchdog *w, double began);

/* How long each phase may go without progress. */
watchdog_limits train_limits(const config *c);
