/* A run's checkpoints in an object store, uploaded beside training by a thread of its own.
 *
 * Rank 0 has it: the run's folder is one that all ranks see, so that it can read every rank's files. The newest
 * published checkpoint is uploaded, then `latest`, then what the mirror keeps no longer is removed. Where checkpoints
 * come faster than they are uploaded, those in between are passed over. What fails is tried again, with the newest
 * checkpoint, as long as the run goes on: training waits for nothing, and hears of nothing but warnings. The layout is
 * mirror_prefix.h's.
 */
#pragma once

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
