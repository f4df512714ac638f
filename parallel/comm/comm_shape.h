/* One operation of communication: its call, and its arithmetic (parts, segments, the broadcast tree, bytes sent), which
 * needs no job: the backends send by it, and the planner predicts by it. Structs own no memory.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"

typedef struct comm comm;
typedef struct comm_group comm_group;

typedef enum comm_kind {
    COMM_ALL_REDUCE,     /* receive[count] = sum (or maximum) over members of send[count] */
    COMM_ALL_GATHER,     /* receive[count] = the members' parts, in order; send = this member's part */
    COMM_REDUCE_SCATTER, /* receive = this member's part of the sum (or maximum) of send[count] */
    COMM_ALL_TO_ALL,     /* receive[members][own part] = this member's part of each member's send[count], in order */
    /* receive[count] = the root's send[count]; `peer` is the root; at the root send may equal receive */
    COMM_BROADCAST,
    COMM_SEND,    /* send[count] to `peer` */
    COMM_RECEIVE, /* receive[count] from `source` */
    /* send[count] to `peer`, and receive[receive_count] from `source`: one call, no order between them */
    COMM_EXCHANGE,
    COMM_KINDS,
} comm_kind;

/* One of several tensors that are reduced together: send, receive and counts as in a call of its own. */
typedef struct comm_segment {
    const void *send;
    void *receive;
    int64_t count;
    const int64_t *counts; /* [members] or NULL */
} comm_segment;

enum { COMM_SEGMENTS = 128 }; /* most pieces of a call */

/* `count` is the whole tensor's number of elements. Parts: member i owns counts[i] elements (they sum to count), in
 * order; NULL divides evenly, the first count % n members getting one element more (comm_part). In place means:
 * all-reduce and broadcast send == receive; all-gather send == receive + own offset; reduce-scatter receive == send +
 * own offset. Other overlap is a mistake. Reductions take fp32, bf16, fp16, fp64, int32 and int64; everything else
 * takes every type (uint8 for bytes). An all-reduce or reduce-scatter may be of several tensors of one type: `pieces`
 * then has them, count and counts are the sums over the pieces, send and receive NULL. The pieces' parts travel from
 * member to member as if they were one tensor's. */
typedef struct comm_call {
    comm_kind kind;
    comm_group *group;
    dtype type;
    const void *send;
    void *receive;
    int64_t count;
    const int64_t *counts;      /* [members] or NULL; must live until the end of the operation */
    int64_t receive_count;      /* COMM_EXCHANGE only */
    int peer;                   /* member index: where a send goes, or the root */
    int source;                 /* member index: where a receive comes from */
    const comm_segment *pieces; /* [piece_count]; must live as long as counts; NULL: one tensor */
    int piece_count;
    bool maximum;  /* a reduction takes the largest of the members' elements; where one is NaN, any of them */
    void *scratch; /* comm_scratch_bytes() bytes, 64-byte aligned; NULL where that is 0 */
    void *stream;  /* a device backend's; NULL on the host */
} comm_call;

/* Caller-owned, of fixed size, may not move while its operation is in flight. All zero: no operation. */
typedef struct comm_request {
    comm_group *group;
    void *flight; /* the backend's record */
} comm_request;

/* ---- arithmetic of an operation, without a job: the planner uses it ---- */

/* The sizes of a call: `members` in the group, the caller's index `me`. */
typedef struct comm_shape {
    comm_kind kind;
    dtype type;
    int members, me;
    int64_t count;
    const int64_t *counts; /* NULL: even */
    int64_t receive_count;
    int peer; /* the root of a broadcast */
} comm_shape;

/* Gives the offset and count of a member's part. */
void comm_part(int64_t *offset, int64_t *count, const comm_shape *shape, int member);
void comm_piece_part(int64_t *offset, int64_t *count, const comm_segment *piece, int members, int member);
int64_t comm_scratch_bytes(const comm_shape *shape);     /* the host backends' */
int64_t comm_expected_bytes(const comm_shape *shape);    /* sent by this member */
int64_t comm_expected_messages(const comm_shape *shape); /* sent by this member */

/* Messages are cut into segments, so that summing overlaps receiving and one step of progress stays short; each
 * peer has at most `window` segments in flight in each direction. Both depend on the number of members only. */
typedef struct comm_cut {
    int64_t segment; /* bytes */
    int window;
} comm_cut;

comm_cut comm_segments(int members);
/* Writes the members to which `me` passes a broadcast on, as a binomial tree rooted in `root`, to children[31] and
 * returns their number; *parent is -1 at the root. */
int comm_tree(int *children, int *parent, int members, int me, int root);

/* The calls that this member will make on a group: a device's library prepares for these, and for no more. */
typedef struct comm_use {
    unsigned kinds;             /* bit i: calls of comm_kind i */
    unsigned types[COMM_KINDS]; /* bit i: calls of that kind that carry dtype i */
    int64_t largest;            /* bytes of the largest of them */
    bool varies;                /* sums may come in any order: a library chooses its algorithms by speed alone */
} comm_use;

/* The union of both. */
comm_use comm_use_of_both(const comm_use *a, const comm_use *b);

/* The sum of several arrays in their order, for reductions: ((a0 + a1) + a2) + ..., or their maximum.
 *
 * fp32 adds in fp32; bf16 and fp16 are widened to fp32, summed, and rounded once; fp64 adds in fp64; integers wrap. A
 * maximum is exact.
 */

bool comm_sum_takes(dtype type);
/* out[count] = in[0][count] + ... + in[arrays - 1][count], or the largest of these; out may be one of them. */
void comm_reduce(void *out, const void *const *in, int arrays, int64_t count, dtype type, bool maximum);
