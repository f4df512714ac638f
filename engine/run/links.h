/* The communication groups that a rank's programs use, opened: one for each row of engine/compile/model/groups.h. */
#pragma once

#include "engine/compile/model/groups.h"
#include "kernels/record/program.h"
#include "memory/pool.h"
#include "parallel/comm/comm.h"

typedef struct links {
    groups asked;
    comm_group **group; /* [asked.count] */
} links;

/* Collective over `world`; `backend`: a device's, or NULL for the job's own. `out` must be closed either way. */
status links_open(links *out, const compiled *c, comm *world, const struct comm_backend *backend, bool varies);
void links_close(links *l);
/* Where communication `o` of rank `me` goes. */
comm_group *links_of(const links *l, const op *o, int me);
/* comm_group_poll() of each group, until one has failed. */
status links_poll(bool *heard, const links *l);
/* Bytes and messages sent along an axis so far. */
void links_sent(int64_t *bytes, int64_t *messages, const links *l, axis a);

/* The communication of a program as calls of comm.h: one an op, and one for several ops that are launched together
 * (attributes.bundle). Made before the first step; everything is in the caller's pool. */

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
