/* Where a run's checkpoints are mirrored: the objects below one prefix of a bucket, which belong to one run.
 *
 *     PREFIX/run                        the owner: the run's id and its folder's name; written once, if new
 *     PREFIX/holder                     the start of the run that writes now; another one has ended, or is shut out
 *     PREFIX/step-00000100/...          a checkpoint's files, as they are on the disk; manifest.json last
 *     PREFIX/step-00000100-2/...        the same step again, of a run that went back, where the first is still there
 *     PREFIX/latest                     the name of the newest whole checkpoint, written last
 *     PREFIX/config.yaml, events.jsonl  of the run, for people
 *     PREFIX/exports/...                checkpoint.export's folders, and `latest` with the newest one's name
 *
 * A folder without a manifest is no checkpoint: a manifest is written when all else is there, and removed first. Each
 * call gets a handle (engine/store/object.h); the prefix owns the names until mirror_prefix_free.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/checkpoint/manifest.h"
#include "engine/store/object.h"

typedef struct mirror_prefix {
    char *url;    /* "s3://BUCKET/PREFIX", without a slash at its end; a whole bucket: "s3://BUCKET" */
    char *bucket; /* "BUCKET" */
    char *root;   /* "PREFIX/"; a whole bucket: "" */
} mirror_prefix;

/* Fails unless the URL names a bucket, and a prefix or none. */
status mirror_prefix_make(mirror_prefix *out, const char *url);
void mirror_prefix_free(mirror_prefix *p); /* one that is all zero is accepted */
/* Returns PREFIX/NAME, or PREFIX/NAME/FILE; the caller frees it. */
char *mirror_prefix_key(const mirror_prefix *p, const char *name, const char *file);

enum { MIRROR_NAME = 64, MIRROR_PATIENCE = 60 /* seconds without progress until a call fails */ };

/* Returns the step of "step-00000100" or "step-00000100-2"; -1: another name. */
int64_t mirror_prefix_step(const char *name);

/* ---- owner ------------------------------------------------------------------------------------------------------- */

typedef struct mirror_owner {
    char run[MANIFEST_RUN]; /* run's id; "": the prefix has no owner */
    char *folder;           /* its run.folder at that time, for people; the caller frees it */
} mirror_owner;

void mirror_owner_free(mirror_owner *o); /* one that is all zero is accepted */
status mirror_prefix_owner(mirror_owner *out, object_store *s, const mirror_prefix *p);
/* Makes the prefix this run's; fails, naming the owner, if another run has it. */
status mirror_prefix_claim(object_store *s, const mirror_prefix *p, const mirror_owner *mine);

/* Makes the start `id` the holder that writes. */
status mirror_prefix_hold(object_store *s, const mirror_prefix *p, const char *id);
/* Reads the holder. */
typedef enum mirror_holder { MIRROR_MINE, MIRROR_VACANT /* its objects are gone */, MIRROR_OTHERS } mirror_holder;
status mirror_prefix_confirm(mirror_holder *out, object_store *s, const mirror_prefix *p, const char *id);

/* ---- its checkpoints ---- */

/* Reads the name in `latest`; out is "" if there is no such object. */
status mirror_prefix_latest(char out[MIRROR_NAME], object_store *s, const mirror_prefix *p);
status mirror_prefix_set_latest(object_store *s, const mirror_prefix *p, const char *name);

typedef struct mirror_checkpoint {
    char name[MIRROR_NAME];
    int64_t step;
    bool whole; /* its manifest exists */
} mirror_checkpoint;

typedef struct mirror_checkpoints {
    int count;
    mirror_checkpoint *item; /* [count], newest step first, of one step the newest first */
} mirror_checkpoints;

status mirror_prefix_list(mirror_checkpoints *out, object_store *s, const mirror_prefix *p);
void mirror_prefix_list_free(mirror_checkpoints *l); /* one that is all zero is accepted */

/* Prunes like checkpoint_prune (engine/checkpoint/checkpoint_find.h): up to the checkpoint that `latest` names, keeps
 * the `keep` newest and multiples of keep_every, and removes the others, folders without a manifest, and duplicates of
 * a step. Never removes the one that `latest` names. No upload may be under way. */
status mirror_prefix_prune(object_store *s, const mirror_prefix *p, int keep, int keep_every);
