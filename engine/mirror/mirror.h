/* A run's checkpoints in an object store, uploaded beside training by a thread of its own.
 *
 * Rank 0 has it: the run's folder is one that all ranks see, so that it can read every rank's files. The newest
 * published checkpoint is uploaded, then `latest`, then what the mirror keeps no longer is removed. Where checkpoints
 * come faster than they are uploaded, those in between are passed over. What fails is tried again, with the newest
 * checkpoint, as long as the run goes on: training waits for nothing, and hears of nothing but warnings. The layout is
 * mirror_prefix.h's.
 */
#pragma once

#include "engine/checkpoint/checkpoint_place.h"
#include "engine/mirror/mirror_prefix.h"

typedef struct mirror mirror;

typedef struct mirror_options {
    const char *url;    /* s3://BUCKET/PREFIX, which is this run's (mirror_prefix_claim) */
    const char *start;  /* this start's id */
    const char *folder; /* the run's, with config.yaml, events.jsonl and checkpoints/ */
    int64_t largest;    /* bytes of the largest file, about */
    int keep, keep_every;
    bool held; /* this start has written that it holds the mirror; false: the store could not be asked */
    const mirror_owner *owner; /* to claim it with, then */
} mirror_options;

status mirror_open(mirror **out, const mirror_options *options);
/* What is under way is given up. NULL is accepted. */
void mirror_close(mirror *m);
AUTO_CLOSES(mirror, mirror_close)

/* A checkpoint of that name has been published in FOLDER/checkpoints. By any thread. */
void mirror_offer(mirror *m, const char *name);
/* Must its folder stay where it is? By any thread; NULL needs none. */
bool mirror_needs(mirror *m, const char *name);

typedef struct mirror_facts {
    char name[MIRROR_NAME]; /* of the newest checkpoint that this start has mirrored, or found there; "": none yet */
    int64_t step;           /* its step; -1: none yet */
    int64_t behind_bytes;   /* that the newest checkpoint lacks in the mirror; 0: all is there */
    int uploaded, passed_over;
    bool failing; /* the last try has failed */
    bool ended;   /* another start has taken the mirror over, or it is another run's: nothing is uploaded any more */
    char why[1024];
} mirror_facts;

mirror_facts mirror_now(mirror *m);

/* Waits until all is there, for so many seconds at most; false: it is not. */
bool mirror_finish(mirror *m, double seconds);

/* ---- from the store into a folder of the disk, whole or not at all (mirror_fetch.c) ----
 *
 * What is fetched is held to its manifest (sizes, checksums) and to the store's own checksums, written under a
 * temporary name, fsynced, read back and renamed. Whether an object is damaged or the store does not answer is told
 * apart: an older checkpoint may do for the first, and nothing may be begun anew for the second.
 */

/* Hears of progress: bytes so far of so many. NULL: nobody does. */
typedef void mirror_progress(void *context, double done, double total);

typedef struct mirror_fetch {
    const char *folder;            /* where to: FOLDER/step-00000100, then FOLDER/latest */
    const char *run;               /* only checkpoints of this run; NULL: of any */
    const checkpoint_place *after; /* only later ones; NULL: any */
    bool fallback;                 /* an older one may do where the newest is damaged */
    mirror_progress *progress;
    void *context;
} mirror_fetch;

typedef struct mirror_fetched {
    int64_t step;            /* -1: there is none such */
    checkpoint_place newest; /* the latest of the mirror's that can be told, whether fetched or not; step -1: none */
    char *trouble;           /* why it is not what `latest` names; NULL: it is; the caller's to free */
} mirror_fetched;

/* The checkpoint that `latest` names, if it is later than `after`; where it is damaged, the latest before it that is
 * whole and part of its history. */
status mirror_fetch_newest(mirror_fetched *out, object_store *s, const mirror_prefix *p, const mirror_fetch *how);

/* What s3://BUCKET/KEY names: a mirror's newest checkpoint, or the one whose folder that is. `out` is its folder on the
 * disk, the caller's to free. */
status mirror_fetch_url(char **out, const char *url, const mirror_fetch *how);
