/* One operation in progress over MPI's point-to-point messages; only comm_mpi.c uses this.
 *
 * Every operation is a *flight* of *lanes*. A lane is the stream of segments between this member and one peer in one
 * direction; it posts a segment when it has a request free and its gate is open, where the gate is the count of some
 * other lane (a broadcast passes on the segments that have arrived) or of the segments summed so far (an all-reduce
 * sends its part on while it still receives contributions). A reduction goes straight to the owners: every member sends
 * part j to member j, which sums the contributions in rank order. So does an all-gather. Each byte crosses once, which
 * is the minimum.
 *
 * An operation of several pieces moves like one of a tensor that has each member's parts of the pieces end to end: a
 * segment gathers from them, or is summed over them, as far as they reach.
 *
 * A group owns its flights and reuses finished ones for its next operations. The caller holds the lock under which MPI
 * is entered.
 */
#pragma once

#include <mpi.h>

#include "parallel/comm/comm_backend.h"

/* The memory of a member's part: in the send buffer, in the whole result, or in a result that is the part alone. */
typedef enum lane_memory { LANE_SENT, LANE_RESULT, LANE_OWN_RESULT } lane_memory;

typedef struct lane {
    char *base; /* NULL: the part `part` of each piece of the call, in `memory` */
    int part;
    lane_memory memory;
    int64_t bytes;
    int peer, tag;
    bool sends;
    bool ring;       /* `base` holds `window` segments, reused */
    const int *gate; /* NULL: open */
    int slack;       /* segments it may be ahead of the gate */
    int segments, posted, done;
} lane;

typedef struct flight {
    struct flight *next; /* next in the list of active or free flights */
    comm_group *group;
    const comm_call *call; /* only with pieces; else NULL */
    dtype type;
    bool maximum; /* contributions are reduced to their maximum, not their sum */
    int lanes_used;
    int contributions; /* the first `contributions` lanes bring contributions to this member's part */
    int segments, summed;
    const char *own; /* this member's contribution; NULL with pieces */
    char *sum;
    lane_memory sum_memory; /* set with pieces */
    int64_t sum_bytes;
    bool complete;
    lane *lanes;           /* [4 members] */
    int stride;            /* requests of a lane: the depth, or as many as the longest lane needs */
    MPI_Request *requests; /* [4 members][stride] */
    int *indices;          /* [4 members][stride]: finished requests */
    const void **terms;    /* [members] */
} flight;

typedef struct flight_group {
    MPI_Comm handle;
    comm_cut cut;
    int depth; /* segments a lane has in flight at most */
    unsigned collectives;
    unsigned *sent, *received; /* [members]: number of point-to-point operations with each */
    flight *idle;
} flight_group;

/* Fills in the lanes of a call; no byte has moved yet. */
void flight_prepare(flight *f, const comm_call *call);
