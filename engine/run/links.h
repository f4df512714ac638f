/* The communication groups that a rank's programs use, opened: one for each row of engine/compile/model/groups.h. */
#pragma once

#include "engine/compile/model/groups.h"
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
