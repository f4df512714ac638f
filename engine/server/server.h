/* The job that holds the model for islands of outer.topology server: `phalanx server`.
 *
 * Islands push their changes and take the model when they like. The server fetches a change that is offered, merges it
 * by itself, scaled by its age (islands/rule.h), and answers in etcd (islands/roster.h); what is too old, or not
 * finite, it refuses. Each of its ranks holds and merges some units of the model (islands/units.h), the outer
 * optimizer's state of them with it, in one arena planned before; the model's bits are a function of the changes and
 * their order, not of the ranks. A change is on the disk before its island is told that it was taken
 * (server_journal.c), so a server that is killed loses none. No GPU, no data and no programs.
 */
#pragma once

#include "engine/config/config.h"
#include "parallel/comm/comm.h"
#include "parallel/watch/watchdog.h"

/* Until a signal stops it (*stopped: it has saved), or the model has done train.steps and no island has been there for
 * outer.timeout seconds. It goes on from the latest checkpoint of run.folder; else from model.from, or the weights that
 * training would draw. Collective. */
status server_run(bool *stopped, const config *c, comm *world, watchdog *w);
