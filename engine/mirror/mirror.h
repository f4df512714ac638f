/* A run's checkpoints in an object store, uploaded beside training by a thread of its own.
 *
 * Rank 0 owns it: all ranks share the run's folder, so it can read every rank's files. It uploads the newest published
 * checkpoint, then `latest`, then removes expired checkpoints from the mirror. If checkpoints come faster than uploads,
 * it skips older ones. Failures are retried with the newest checkpoint as long as the run goes on: training never
 * waits, and gets warnings only. The layout is mirror_prefix.h's.
 */
#pragma once

#include "engine/checkpoint/checkpoint_place.h"
#include "engine/mirror/mirror_prefix.h"

typedef struct lock lock; /* engine/system/lock.h */
typedef struct mirror mirror;

typedef struct mirror_options {
    const char *url;    /* s3://BUCKET/PREFIX, claimed by this run (mirror_prefix_claim) */
    const char *start;  /* this start's id */
    const char *folder; /* run's folder, with config.yaml, events.jsonl and checkpoints/ */
    int64_t largest;    /* size of the largest file, bytes, about */
    int keep, keep_every;
    bool held;                 /* this start has recorded itself as the holder; false: the store could not be reached */
    const mirror_owner *owner; /* then the owner to claim it with */
} mirror_options;

status mirror_open(mirror **out, const mirror_options *options);
/* Abandons the upload under way. NULL is accepted. */
void mirror_close(mirror *m);
AUTO_CLOSES(mirror, mirror_close)

/* Tells of a checkpoint published in FOLDER/checkpoints. Any thread may call it. */
void mirror_offer(mirror *m, const char *name);
/* True if its folder must stay in place. Any thread may call it; a NULL mirror needs none. */
bool mirror_needs(mirror *m, const char *name);

typedef struct mirror_facts {
    char name[MIRROR_NAME]; /* newest checkpoint that this start has mirrored, or found there; "": none yet */
    int64_t step;           /* its step; -1: none yet */
    int64_t behind_bytes;   /* bytes of the newest checkpoint not yet in the mirror; 0: complete */
    int uploaded, passed_over;
    bool failing; /* the last attempt failed */
    bool ended;   /* another start or run has taken the mirror over: uploads have ended */
    char why[1024];
} mirror_facts;

mirror_facts mirror_now(mirror *m);

/* Waits until all is uploaded, at most `seconds`, or until the store refuses for good; false: it is not. */
bool mirror_finish(mirror *m, double seconds);

/* The rest fetches from the store into a folder of the disk, whole or not at all (mirror_fetch.c).
 *
 * Fetched files are checked against the manifest (sizes, checksums) and the store's own checksums, written under a
 * temporary name, fsynced, read back and renamed. A damaged object differs from a store that does not answer: an older
 * checkpoint may replace the first, but the second never lets a run begin anew.
 */

/* Reports progress: bytes so far and in total; or NULL. */
typedef void mirror_progress(void *context, double done, double total);

typedef struct mirror_fetch {
    const char *folder;            /* target: FOLDER/step-00000100, then FOLDER/latest */
    const char *run;               /* only checkpoints of this run; NULL: any run's */
    const checkpoint_place *after; /* only later ones; NULL: all */
    lock *owner;                   /* lock of the run's folder, asked before a name changes; NULL: none */
    bool fallback;                 /* an older one may replace a damaged newest one */
    mirror_progress *progress;
    void *context;
} mirror_fetch;

typedef struct mirror_fetched {
    int64_t step;            /* -1: no such checkpoint */
    checkpoint_place newest; /* latest one of the mirror that is readable, fetched or not; step -1: none */
    int64_t named;           /* step that `latest` names; -1: none */
    char *trouble;           /* reason why it is not the one that `latest` names; NULL: it is; the caller frees it */
} mirror_fetched;

/* Fetches the checkpoint that `latest` names, if it is later than `after`; if it is damaged, the latest whole one
 * before it that is part of its history. */
status mirror_fetch_newest(mirror_fetched *out, object_store *s, const mirror_prefix *p, const mirror_fetch *how);

/* Fetches s3://BUCKET/KEY: a mirror's newest checkpoint, or the checkpoint with that folder. `out` is its folder on the
 * disk, which the caller frees. */
status mirror_fetch_url(char **out, const char *url, const mirror_fetch *how);
