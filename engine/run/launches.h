/* The communication of a program as calls of comm.h: one an op, and one for several ops that are launched together
 * (attributes.bundle). Made before the first step; everything is in the caller's pool. */
#pragma once

#include "kernels/record/program.h"
#include "memory/pool.h"
#include "parallel/comm/comm.h"

typedef struct launch {
    comm_call call;
    const op **ops; /* that are launched with the call */
    int count;      /* 0: a later op's call has this one */
    int ends;       /* the request of the call that has it */
} launch;

/* The group that an op communicates in. */
typedef comm_group *launches_group(const void *context, const op *o);

/* launches[requests], by request, of all communication of `p`; `arena` is where its tensors are. */
launch *launches_make(pool *where, const program *p, int requests, char *arena, launches_group *group_of,
                      const void *context);
