/* Checkpoints from an object store into a folder of the disk, whole or not at all.
 *
 * What is fetched is held to its manifest (sizes, checksums) and to the store's own checksums, written under a
 * temporary name, fsynced, read back and renamed. Whether an object is damaged or the store does not answer is told
 * apart: an older checkpoint may do for the first, and nothing may be begun anew for the second.
 */
#pragma once

#include "engine/checkpoint/checkpoint_place.h"
#include "engine/mirror/mirror_prefix.h"

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
