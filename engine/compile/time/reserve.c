#include "engine/compile/time/reserve.h"

#define MIB ((int64_t)1 << 20)

/* Alone: a context of half a GiB, as much again for cuBLASLt's and cuDNN's kernels. The first communicators are those
 * of collectives, with buffers for 32 blocks, later ones of messages, for 8 (parallel/comm/nccl). Of a graph about
 * 10 KB for each kernel's node (NVIDIA/cccl, pull request 3768); drivers before CUDA 12.4's take some three times as
 * much (vllm-project/vllm, issue 5517). Not measured by us. */
const reserve reserve_assumed = {.bytes = {1024 * MIB, 1536 * MIB, 2048 * MIB, 2304 * MIB, 2560 * MIB, 2752 * MIB,
                                           2944 * MIB, 3136 * MIB, 3328 * MIB},
                                 .node = 10240};

static int row_of(int communicators)
{
    return communicators < RESERVE_ROWS ? communicators : RESERVE_ROWS - 1;
}

int64_t reserve_bytes(const reserve *r, int communicators, int64_t nodes)
{
    return r->bytes[row_of(communicators)] + (int64_t)(r->node * (double)nodes + 0.5);
}

bool reserve_is_measured(const reserve *r, int communicators, int64_t nodes)
{
    return r->measured[row_of(communicators)] && (nodes == 0 || r->node_measured);
}

void reserve_note(reserve *r, int communicators, int64_t bytes)
{
    r->bytes[row_of(communicators)] = bytes;
    r->measured[row_of(communicators)] = true;
}

void reserve_note_graphs(reserve *r, int64_t nodes, int64_t bytes)
{
    r->node = (double)bytes / (double)nodes;
    r->node_measured = true;
}
