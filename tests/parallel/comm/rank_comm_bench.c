/* How fast the ranks of one node move bytes: mpirun -np N rank_comm_bench [thread]. Printed by rank 0: GB/s of the
 * tensor's bytes (count x element size / seconds), best of several rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "parallel/comm/comm.h"

/* Every member has come here. */
static void barrier(comm_group *g)
{
    MUST(comm_all_status(g, STATUS_OK) == STATUS_OK, "%s", status_message());
}

static void measure(comm *c, const char *name, comm_kind kind, dtype type, int64_t bytes)
{
    comm_group *g = comm_world(c);
    int me = comm_group_me(g), n = comm_group_ranks(g);
    comm_call call = {.kind = kind, .group = g, .type = type, .count = bytes / dtype_bytes(type)};
    call.peer = kind == COMM_EXCHANGE ? (me + 1) % n : 0;
    call.source = (me + n - 1) % n;
    call.receive_count = call.count;
    char *send = must_alloc((unsigned long)bytes), *receive = must_alloc((unsigned long)bytes);
    memset(send, 0, (size_t)bytes);
    memset(receive, 0, (size_t)bytes);
    call.send = send;
    call.receive = receive;
    comm_shape shape = comm_call_shape(&call);
    call.scratch = must_alloc((unsigned long)comm_scratch_bytes(&shape));
    double best = 1e30;
    for (int round = 0; round < 7; round++) {
        barrier(g);
        double start = clock_seconds();
        comm_run(&call);
        barrier(g);
        double seconds = clock_seconds() - start;
        best = seconds < best ? seconds : best;
    }
    if (me == 0)
        printf("%-16s %s %9lld bytes: %8.3f ms, %6.2f GB/s\n", name, dtype_name(type), (long long)bytes, best * 1e3,
               (double)bytes / best / 1e9);
    free(call.scratch);
    free(send);
    free(receive);
}

int main(int count, char **arguments)
{
    comm *c;
    bool thread = count > 1 && strcmp(arguments[1], "thread") == 0;
    if (comm_open(&c) != STATUS_OK || comm_progress_thread(c, thread) != STATUS_OK) {
        log_error("%s", status_message());
        return 1;
    }
    for (int64_t bytes = 4 << 10; bytes <= 64 << 20; bytes *= 16) {
        measure(c, "all-reduce", COMM_ALL_REDUCE, DTYPE_FP32, bytes);
        measure(c, "all-reduce", COMM_ALL_REDUCE, DTYPE_BF16, bytes);
        measure(c, "all-gather", COMM_ALL_GATHER, DTYPE_BF16, bytes);
        measure(c, "reduce-scatter", COMM_REDUCE_SCATTER, DTYPE_BF16, bytes);
        measure(c, "reduce-scatter", COMM_REDUCE_SCATTER, DTYPE_FP32, bytes);
        measure(c, "broadcast", COMM_BROADCAST, DTYPE_BF16, bytes);
        measure(c, "exchange", COMM_EXCHANGE, DTYPE_BF16, bytes);
    }
    comm_close(c);
    return 0;
}
