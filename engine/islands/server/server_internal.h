/* Shared by the files of the server: server.c (the main loop, start there; the initial model, checkpoints),
 * server_merge.c, server_journal.c (merges since the last checkpoint). */
#pragma once

#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/system/lines.h"
#include "engine/system/lock.h"
#include "engine/islands/merge/outer_internal.h"

typedef struct server {
    const config *config;
    comm *world;
    watchdog *watchdog;
    outer core;
    int64_t step, updates;            /* the most advanced island's */
    roster_part answer[ROSTER_SLOTS]; /* last answer to each slot; merge 0, id 0: none yet */

    /* an answer being written to etcd */
    int slot; /* -1: none */
    roster_part wanted;
    int64_t base, number; /* merge that the change is based on; number of the write to etcd (membership.h) */
    double share;         /* factor of the change */
    int last_slot;        /* slot of the last answer: the search for the next begins after it */
    double alone_since;   /* time at which the last island left */
    double waits_since;   /* time since which etcd alone keeps the server waiting */
    int64_t refused;      /* changes refused by this process */

    /* files */
    char run[MANIFEST_RUN];
    char *checkpoints;
    lock *lock;   /* rank 0's; NULL: run.lock is off */
    lines *lines; /* merges.jsonl, rank 0's */
    char *buffer; /* CHECKPOINT_WRITER_BUFFER */
    checkpoint_writer *writer;
    checkpoint_publisher *publisher; /* rank 0's */
    int64_t saved;                   /* last saved merge; -1: none */
    char *journal;                   /* folder of the journal */
    int64_t journal_entries;         /* merges since the last save */
    double paused_until;             /* time of the next merge after a failed write of the journal */
} server;

/* server_merge.c: merges the scaled change in a slot's buffer into this rank's units. */
void server_merge(server *v, int slot, double share);
/* Makes `head` for `merge` with all answers; `wanted`, if given, replaces its slot's. */
json_t *server_head(const server *v, const roster_part *wanted, int64_t merge);
void server_take_head(server *v, const roster *head);

/* server_journal.c */
/* Writes the change of v->wanted, whole, to the disks of all ranks, for the merge after the last. */
status server_journal_write(server *v);
/* Drops an entry without a merge. */
void server_journal_drop(const server *v, int64_t merge);
/* Called once the model is saved: the entries are obsolete. */
void server_journal_saved(server *v);
/* True if it is larger than worthwhile beside a checkpoint. */
bool server_journal_is_long(const server *v);
/* Repeats the merges since the checkpoint, up to etcd's `head`, as far as the journal has them; all of them if etcd
 * knows less than the checkpoint. STATUS_USAGE: the journal was written with another outer.compress or outer.density,
 * and stays as it is. */
status server_journal_replay(server *v, const roster *head);
