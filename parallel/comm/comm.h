/* Communication between the ranks of one job, for the ops of a program and for start-up.
 *
 * A `comm` is this process's view of the job; a `comm_group` an ascending list of ranks that communicate among
 * themselves, one for each axis of the grid and for the composite groups. Both are opaque and owned by the caller that
 * opened them. A call describes one operation; starting it never blocks on a peer, and its allocations do not grow with
 * the message: the caller owns buffers and scratch and must leave them untouched from comm_start until comm_wait has
 * returned. Several requests may be in flight; on every group the collectives are started in the same order by all its
 * members, and the sends from a to b in the order in which b starts the receives.
 *
 * Sums are made in rank order with fp32 accumulators (bf16 and fp16 are widened, and rounded once; fp64 adds in fp64,
 * integers exactly), so that their bits depend on the members' values and order only: not on time, buckets, or on the
 * choice between an all-reduce and a reduce-scatter with an all-gather.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"
#include "parallel/comm/comm_shape.h"

struct comm_backend;

/* ---- the job ---- */

/* Joins the job this process was launched in (mpirun, srun or another PMI launcher, recognised by its environment); a
 * process launched alone becomes rank 0 of 1 and never touches MPI. */
status comm_open(comm **out);
/* The rank that the launcher will give this process, read from the environment before the job is joined. */
int comm_expected_rank(void);
/* Leaves the job in order: waits for every rank to do the same. All groups must have been closed. */
void comm_close(comm *c);

int comm_rank(const comm *c);
int comm_ranks(const comm *c);
int comm_local_rank(const comm *c);  /* among this node's ranks */
int comm_local_ranks(const comm *c); /* number of this node's ranks */
comm_group *comm_world(comm *c);     /* all ranks; owned by `c` */

/* The world rank this process waits for just now inside comm_wait, or -1. Safe from any thread: the watchdog asks. */
int comm_waiting_for(const comm *c);
/* Seconds that this process has spent in comm_wait so far; 0 for a device's messages, which its queues wait for. */
double comm_waited(const comm *c);

/* ---- groups ---- */

/* Collective over the members: world ranks, ascending. A process that is not a member takes no part and gets NULL. */
status comm_group_open(comm_group **out, comm *c, const int *members, int count);
typedef struct comm_group_options {
    const struct comm_backend *backend; /* a device's (device_interface.communication), or NULL: the job's own */
    comm_use use;
    comm_group
        *like; /* an open group of the same members, its `use` including this one's, to share connections; or NULL */
} comm_group_options;

/* Opens a group on a device's backend: operands are device addresses, and a call's `stream` takes it; it counts as
 * complete, for comm_wait, as soon as it is enqueued. */
status comm_group_open_on(comm_group **out, comm *c, const int *members, int count, const comm_group_options *o);
/* Fails if the group has failed between calls (a peer died, a link broke): then it is given up. `*heard`: as far as the
 * backend knows, another rank failed, not this one. */
status comm_group_poll(bool *heard, comm_group *g);
void comm_group_close(comm_group *g);
AUTO_CLOSES(comm_group, comm_group_close)
int comm_group_ranks(const comm_group *g);
int comm_group_me(const comm_group *g);                 /* this process's index among the members */
int comm_group_member(const comm_group *g, int member); /* its world rank */

/* ---- operations ---- */

comm_shape comm_call_shape(const comm_call *call);
void comm_start(comm_request *out, const comm_call *call);
void comm_wait(comm_request *r);
/* Starts a call and waits for it. */
void comm_run(const comm_call *call);
/* Moves messages on without waiting: the executor calls this between ops. */
void comm_progress(comm *c);
/* Makes a thread of this process do so, too, until the next call with false or until the comm is closed. */
status comm_progress_thread(comm *c, bool on);

/* ---- end to end ---- */

/* Begins sums of all messages, as they are sent and as they arrive: by the backend of the job, not by a device's. All
 * ranks call this at the same time, while no message is under way; again, to begin anew. */
void comm_check(comm *c);
/* This rank's sums since then; 0 without comm_check. Over all ranks, while no message is under way, the sums of sent
 * and of arrived messages are equal; so are the sums of rank i's messages to rank j at both ends. */
typedef struct comm_sums {
    uint64_t sent, received;
} comm_sums;
comm_sums comm_sums_with(const comm *c, int rank); /* sums to and from this rank; -1: all */

/* ---- counters, kept where messages are handed over ---- */

int64_t comm_bytes_sent(const comm_group *g);
int64_t comm_messages_sent(const comm_group *g);

/* ---- start-up: blocking, small ---- */

void comm_broadcast_bytes(comm_group *g, void *data, int64_t bytes, int root);
/* Gathers into out [members][bytes]. */
void comm_all_gather_bytes(comm_group *g, void *out, const void *mine, int64_t bytes);
/* The maximum of the members' numbers (integers up to 2^53 are exact); their sum, in the members' order; true if any
 * member's is. */
double comm_all_max(comm_group *g, double mine);
double comm_all_sum(comm_group *g, double mine);
bool comm_any(comm_group *g, bool mine);
/* Joins the members' statuses: if any failed, all get the first failing member's code and message, "rank 3: ..." */
status comm_all_status(comm_group *g, status mine);
