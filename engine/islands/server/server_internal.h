/* What the files of the server share: server.c (the work, start there, where the model begins, saving it),
 * server_merge.c, server_journal.c (what has been merged since). */
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
    int64_t step, updates;            /* of the model: of the island that has come furthest */
    roster_part answer[ROSTER_SLOTS]; /* the last to each slot; merge 0, id 0: none yet */

    /* an answer that is being written to etcd */
    int slot; /* -1: none is */
    roster_part wanted;
    int64_t base, number; /* of the change; of the writing, membership.h */
    double share;         /* that the change is scaled by */
    int last;             /* the slot that was answered last: the next one comes first now */
    double alone;         /* since when no island is there */
    int64_t refused;      /* changes, by this process */

    /* files */
    char run[MANIFEST_RUN];
    char *checkpoints;
    lock *lock;   /* rank 0's; NULL: run.lock is off */
    lines *lines; /* rank 0's: merges.jsonl */
    char *buffer; /* CHECKPOINT_WRITER_BUFFER */
    checkpoint_writer *writer;
    checkpoint_publisher *publisher; /* rank 0's */
    int64_t saved;                   /* the merge that was saved last; -1: none */
    char *journal;                   /* its folder */
    int64_t entries;                 /* of the journal: merges since the last save */
    double waits;                    /* until when nothing is merged: the journal cannot be written */
} server;

/* server_merge.c: the change in the buffer of a slot, scaled, into this rank's units. */
void server_merge(server *v, int slot, double share);
/* `head` with the answers, that to wanted->slot replaced by it if there is one; its merge is `merge`. */
json_t *server_head(const server *v, const roster_part *wanted, int64_t merge);
void server_take_head(server *v, const roster *head);

/* server_journal.c */
status server_journal_open(server *v);
/* The change of v->wanted, whole, on the disks of all ranks, for the merge after the last. */
status server_journal_write(server *v);
/* An entry whose merge was not made. */
void server_journal_drop(const server *v, int64_t merge);
/* The model is saved: the entries are needless. */
void server_journal_saved(server *v);
/* Larger than is worth keeping beside a checkpoint. */
bool server_journal_is_long(const server *v);
/* Merges what has been merged since the checkpoint, up to etcd's `head`, as far as the journal has it; all of it where
 * etcd knows less than the checkpoint. STATUS_USAGE: it was written with another outer.compress or outer.density, and
 * stays as it is. */
status server_journal_replay(server *v, const roster *head);
