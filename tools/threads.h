/* How many threads a rank would have. */
#ifndef PHALANX_TOOLS_THREADS_H
#define PHALANX_TOOLS_THREADS_H

#include "engine/config/config.h"

/* train.threads, or, as a training rank would choose, the cores of this machine over the ranks of a node. */
int threads_of_rank(const config *c, int ranks, int node_ranks);

#endif
