/* A communication backend: a small table of functions that implements comm.h. Only comm.c and the backends see it.
 *
 * `self` serves a process alone and every group of one; `mpi` is comm_mpi.c; a device backend (NCCL) lives in its own
 * shared object, fills in the same table, opens its groups through the MPI group's blocking helpers, and ignores
 * scratch.
 */
#pragma once

#include <stdatomic.h>

#include "memory/status.h"
#include "parallel/comm/comm_shape.h"

typedef struct comm_backend {
    const char *name;
    status (*open)(comm *c); /* fills in rank, ranks, local_rank, local_ranks, state */
    void (*close)(comm *c);
    status (*group_open)(comm_group *g); /* collective over the members */
    void (*group_close)(comm_group *g);
    void (*start)(comm_request *out, const comm_call *call); /* out->flight NULL: complete already */
    void (*wait)(comm_request *r);
    void (*progress)(comm *c);
    status (*progress_thread)(comm *c, bool on);
    status (*poll)(bool *heard, comm_group *g); /* NULL: fails only within a call */
    /* The library's version in words, for a self-check; fails if too old. NULL: there is no library. */
    status (*version)(char *out, int bytes);
} comm_backend;

struct comm {
    const comm_backend *backend;
    void *state;
    int rank, ranks, local_rank, local_ranks;
    int groups; /* open, the world's not counted */
    comm_group *world;
    _Atomic int waiting_for;           /* world rank, or -1 */
    bool checks;                       /* true: sums of messages are kept; by `mpi` */
    uint64_t sent, received;           /* sums of all messages so far */
    uint64_t *sent_to, *received_from; /* [ranks] */
    double waited;                     /* seconds within comm_wait, so far */
};

struct comm_group {
    comm *owner;
    const comm_backend *backend; /* the owner's, or self for one member */
    void *state;
    int count, me;
    int *members; /* [count] world ranks */
    comm_use use;
    comm_group *like; /* set while it opens */
    _Atomic int64_t bytes_sent, messages_sent;
};

extern const comm_backend comm_mpi_backend;
extern const comm_backend comm_nccl_backend; /* parallel/comm/nccl: in the CUDA shared object only */
