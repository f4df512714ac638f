/* A command that is a job of one or more ranks (train, server): what is around its work. It is watched from its first
 * moment to its last (watchdog, incidents, what a crash says), reads the configuration, joins the other ranks, and says
 * on one rank why it failed. */
#pragma once

#include "engine/config/config.h"
#include "parallel/comm/comm.h"
#include "parallel/watch/watchdog.h"
#include "tools/options.h"

/* On all ranks. `began`: when the process did (CLOCK_MONOTONIC, seconds). *stopped: by a signal, and saved. */
typedef status job_work(bool *stopped, const config *c, comm *world, watchdog *w, double began);

/* The command's exit status. */
int job_run(const options_command *command, int argc, char **argv, job_work *work);
