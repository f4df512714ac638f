/* Compares how the ranks of a job were started, before any of it decides what they send to each other.
 *
 * Facts are lines "name: value". One message of 64 bytes a rank carries their sums. Only if these differ does a second
 * exchange find the facts' names, values and ranks for one message to the user.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "memory/status.h"
#include "parallel/comm/comm.h"

/* The version of the messages between ranks: raised whenever builds before and after a change cannot be one job. */
enum { AGREE_PROTOCOL = 1 };

/* A rank's message. Its layout stays as it is, so that every build can read every other's version. */
typedef struct agree_message {
    char magic[8]; /* "phalanx" */
    uint32_t protocol;
    int32_t failed;       /* status of this rank before the message */
    uint64_t same, alike; /* sums of the facts */
    int64_t bytes[2];     /* of both texts */
    uint64_t reserved[2]; /* 0 */
} agree_message;

/* Writes a fact. Control characters of the value are shown as question marks. */
void agree_fact(FILE *out, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Writes the variables of the environment that change messages or results, and the build of the program. */
void agree_write_environment(FILE *out);
void agree_write_build(FILE *out);

/* Collective. If `mine` failed on any rank, fails with the first such rank's message, as comm_all_status does. If facts
 * of `same` differ, or the protocol's version, fails with STATUS_USAGE and one message on all ranks. If facts of
 * `alike` differ (NULL: there are none), which may change bits and nothing else, rank 0 warns. */
status agree_all(comm_group *all, status mine, const char *same, const char *alike);
/* The same for one fact; `value` may be NULL where `mine` failed. */
status agree_on(comm_group *all, status mine, const char *name, const char *value);
