/* The groups that a rank communicates in, found from the ops of its programs before anything runs. One group per axis;
 * between stages one per edge and direction, so that a waiting receive holds no send (NCCL runs one kernel of a
 * communicator at a time). The ops of a group are known too: a device's library prepares for no more. Rows are in the
 * order in which groups open, the same on all members of each: edges in three rounds, so that no rank waits for a chain
 * of others. A `groups` owns its lists. */
#pragma once

#include "engine/compile/model/compile_model.h"
#include "parallel/comm/comm.h"

typedef struct groups_row {
    axis a;
    int from, to; /* ranks at the ends of an edge; else -1 */
    int *members; /* [count] ranks, ascending */
    int count;
    comm_use use; /* uses, including those of rows that are like it */
    int round;    /* rows open in ascending order of it */
    int like;     /* an earlier row with the same members, which shares its communicator; -1: none */
} groups_row;

typedef struct groups {
    groups_row *row;
    int count;
} groups;

void groups_find(groups *out, const compiled *c);
void groups_free(groups *g);
/* The row of communication `o` of rank `me`, or -1. */
int groups_of(const groups *g, const op *o, int me);
/* Number of communicators that a device opens: rows that are used and like no other. */
int groups_communicators(const groups *g);
