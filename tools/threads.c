#include "tools/threads.h"

#include <unistd.h>

int threads_of_rank(const config *c, int ranks, int node_ranks)
{
    if (c->train.threads > 0)
        return c->train.threads;
    long cores = sysconf(_SC_NPROCESSORS_ONLN) / (ranks < node_ranks ? ranks : node_ranks);
    return cores > 0 ? (int)cores : 1;
}
