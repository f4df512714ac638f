/* Runs a command that is a job of one or more ranks (train, server). It watches the process from its first moment to
 * its last (watchdog, incidents, crash reports), reads the configuration, joins the other ranks, and prints on one rank
 * why it failed. */
#pragma once

#include "engine/config/config.h"
#include "parallel/comm/comm.h"
#include "parallel/watch/watchdog.h"
#include "tools/options.h"

/* Works on all ranks. `began`: start of the process (CLOCK_MONOTONIC, s). *stopped: by a signal, after saving. */
typedef status job_work(bool *stopped, const config *c, comm *world, watchdog *w, double began);

/* Returns the command's exit status. */
int job_run(const options_command *command, int argc, char **argv, job_work *work);
