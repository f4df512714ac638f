/* Training: the loop over steps, and everything around a step. */
#ifndef PHALANX_ENGINE_TRAIN_H
#define PHALANX_ENGINE_TRAIN_H

#include "engine/config/config.h"
#include "parallel/comm.h"

/* Trains as `c` says, on all ranks of `world`, from the latest checkpoint of the run's folder if there is one and
 * checkpoint.resume allows. `began` is when the process did (CLOCK_MONOTONIC, seconds). Returns when the last step is done
 * and saved, or after SIGTERM or SIGINT when the step at hand is. */
status train_run(const config *c, comm *world, double began);

#endif
