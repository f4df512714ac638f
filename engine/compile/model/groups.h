/* Finds the groups that a rank communicates in from the ops of its programs, before a step runs. One group per axis;
 * between stages one per edge and direction, so that a waiting receive delays no send (NCCL runs one kernel of a
 * communicator at a time). Each group's kinds of ops are recorded, so that a library prepares no others. Rows are in
 * the order in which groups open, the same on all members: edges in three rounds, so that no rank waits for a chain of
 * others. A `groups` owns its lists. */
#pragma once

#include "engine/compile/model/compile_model.h"
#include "parallel/comm/comm.h"

typedef struct groups_row {
    axis a;
    int from, to; /* sender and receiver of an edge; else -1 */
    int *members; /* [count] ranks, ascending */
    int count;
    comm_use use; /* includes the uses of later rows with the same members */
    int round;    /* rows open in ascending order of rounds */
    int same_as;  /* an earlier row with the same members, which shares its communicator; -1: none */
} groups_row;

typedef struct groups {
    groups_row *row;
    int count;
} groups;

void groups_find(groups *out, const compiled *c);
void groups_free(groups *g);
/* Returns the row of rank `me`'s communication op `o`, or -1. */
int groups_of(const groups *g, const op *o, int me);
/* Returns the number of communicators that a device opens: used rows without a `same_as`. */
int groups_communicators(const groups *g);
