/* Checkpoints in the memory of nodes: each node holds its ranks' shares and those of a neighbour, in shared memory.
 *
 * Shares are files as on the disk (engine/checkpoint/share.h), in a folder of /dev/shm that only its user can enter.
 * They outlive the processes that wrote them. A start that finds the newest complete set, on the nodes that are left,
 * writes it to the run's checkpoints and publishes it there: from then on it is a checkpoint like any other, which any
 * layout loads.
 *
 * The file RUN/memory, which only its owner can read, says what counts: the id of the start whose copies they are, and
 * the run's secret. The folder's name is drawn from the secret and shares are sealed by it, so a run finds its copies
 * wherever its own folder has been moved to, and takes none that somebody else has put there. The first rank of a node
 * holds a lock (flock) on the folder: copies of a run that is alive, which a copied RUN/memory names, stay its own.
 *
 * All functions are collective over the job's ranks, unless they say otherwise, and called by the training thread.
 *
 * What a node is: a machine and its /dev/shm; where PHALANX_NODE is set, its value (tests have several on one machine).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"
#include "parallel/comm/comm.h"

typedef struct node_copies node_copies;
typedef struct share_place share_place; /* engine/checkpoint/share.h */

/* The nodes of a job, and what RUN/memory says. */
status node_copies_open(node_copies **out, comm *world, const char *run_folder);
/* What is in memory stays. NULL is accepted. Not collective. */
void node_copies_close(node_copies *k);

/* Does RUN/memory say that there are copies? Not collective. */
bool node_copies_count(const node_copies *k);
/* Publish what is newer than step `after`; *step: of what was published, or -1. Whatever was there is removed then. If
 * it is damaged, *trouble (the caller's to free) says so on rank 0. Fails, and leaves all as it was, where reading or
 * writing has failed. */
status node_copies_adopt(int64_t *step, char **trouble, node_copies *k, const char *checkpoints, int64_t after);
/* The run does not go on from what is there: remove it. */
void node_copies_forget(node_copies *k);

/* Begin to keep copies of the run `id`, of shares of so many bytes on this rank; refused where memory does not have
 * room for two generations of them and the neighbour's. */
status node_copies_begin(node_copies *k, const char *id, int64_t bytes);
/* Bytes of this rank and the neighbour that it keeps, two generations. Not collective. */
int64_t node_copies_bytes(const node_copies *k);
/* Where shares are written and what they are sealed by. Not collective. */
const share_place *node_copies_place(const node_copies *k);

/* After all ranks have written their shares of checkpoint `name`: to the neighbours, and then older ones are
 * removed. */
status node_copies_spread(node_copies *k, const char *name);
