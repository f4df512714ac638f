/* Finds the shares of checkpoints that the nodes of a job hold in memory, and their newest complete set. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"
#include "parallel/comm/comm.h"

typedef struct node_set {
    int64_t step;
    char name[32];    /* name of the checkpoint */
    int ranks, nodes; /* ranks that wrote it; nodes of this job */
    int *holder;      /* [ranks][nodes] first ranks of the nodes that have a share, then -1 */
} node_set;

typedef struct node_shares_asked {
    const int *node; /* [ranks] */
    const char *folder, *id;
    int64_t after, before;
} node_shares_asked;

/* Collective. `folder`: of this node's memory, on the node's first rank, else NULL; `node`: each rank's node. Considers
 * sets of run `id` at a step after `after` and before `before`. *found false: certainly none. The caller frees the
 * holders in any case. */
status node_shares_newest(bool *found, node_set *out, comm_group *world, const node_shares_asked *asked);

/* Returns the attempt-th node that has the share of rank `writer`; -1: no more have it. */
int node_set_holder(const node_set *s, int writer, int attempt);
