#include "engine/compile/time/reserve.h"

#define MIB ((int64_t)1 << 20)

/* Alone: a context of half a GiB, as much again for cuBLASLt's and cuDNN's kernels. The first communicators are those
 * of collectives, with buffers for 32 blocks, later ones of messages, for 8 (parallel/comm/nccl). Not measured. */
const reserve reserve_assumed = {.bytes = {1024 * MIB, 1536 * MIB, 2048 * MIB, 2304 * MIB, 2560 * MIB, 2752 * MIB,
                                           2944 * MIB, 3136 * MIB, 3328 * MIB}};

static int row_of(int communicators)
{
    return communicators < RESERVE_ROWS ? communicators : RESERVE_ROWS - 1;
}

int64_t reserve_bytes(const reserve *r, int communicators)
{
    return r->bytes[row_of(communicators)];
}

bool reserve_is_measured(const reserve *r, int communicators)
{
    return r->measured[row_of(communicators)];
}

void reserve_note(reserve *r, int communicators, int64_t bytes)
{
    r->bytes[row_of(communicators)] = bytes;
    r->measured[row_of(communicators)] = true;
}
