/* Checkpoints in the memory of nodes: each node holds its ranks' shares and those of a neighbour, in shared memory.
 *
 * Shares are the same files as on disk (engine/checkpoint/share.h), in a folder of /dev/shm that only its user can
 * enter. They outlive the processes that wrote them. A start that finds the newest complete set on the remaining nodes
 * writes it to the run's checkpoints and publishes it there: from then on it is a checkpoint like any other, which any
 * layout loads.
 *
 * The file RUN/memory, readable by its owner only, holds the id of the start that owns the valid copies, and the run's
 * secret. The folder's name is derived from the secret, which also seals the shares, so a run finds its copies wherever
 * its own folder has moved, and takes none that another user has put there. The first rank of a node holds a lock
 * (flock) on the folder: a copied RUN/memory cannot take the copies of a live run.
 *
 * All functions are collective over the job's ranks, unless they say otherwise, and called by the training thread.
 *
 * A node is a machine with its /dev/shm, or the value of PHALANX_NODE if set (tests have several on one machine).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"
#include "parallel/comm/comm.h"

typedef struct lock lock; /* engine/system/lock.h */
typedef struct node_copies node_copies;
typedef struct share_source share_source; /* engine/checkpoint/share.h */

/* Finds the nodes of a job, and reads RUN/memory. `owner`: the lock of the run's folder; NULL: none. */
status node_copies_open(node_copies **out, comm *world, const char *run_folder, lock *owner);
/* Keeps the copies in memory. Accepts NULL. Not collective. */
void node_copies_close(node_copies *k);

/* True if RUN/memory says that there are copies. Not collective. */
bool node_copies_count(const node_copies *k);
/* Publishes the newest copies after step `after`; *step: of the published set, or -1. Then removes all copies. If they
 * are damaged, *trouble (the caller frees it) says so on rank 0. A failed read or write fails the call and leaves all
 * copies unchanged. */
status node_copies_adopt(int64_t *step, char **trouble, node_copies *k, const char *checkpoints, int64_t after);
/* Removes the copies of a run that does not continue from them. */
void node_copies_forget(node_copies *k);

/* Starts to keep copies of the run `id`, shares of `bytes` on this rank; fails unless memory has room for two
 * generations of them and the neighbour's. */
status node_copies_begin(node_copies *k, const char *id, int64_t bytes);
/* Returns the bytes of this rank's and the neighbour's copies, two generations. Not collective. */
int64_t node_copies_bytes(const node_copies *k);
/* Returns the folder where shares are written, and the secret that seals them. Not collective. */
const share_source *node_copies_place(const node_copies *k);

/* Sends the shares of checkpoint `name`, written by all ranks, to the neighbours, and then removes older ones. */
status node_copies_spread(node_copies *k, const char *name);
