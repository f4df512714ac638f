/* How many threads a rank would have. */
#pragma once

#include "engine/config/config.h"

/* train.threads, or, as a training rank would choose, the cores of this machine over the ranks of a node. */
int threads_of_rank(const config *c, int ranks, int node_ranks);
