/* One rank's share of a checkpoint that is not published: its files in a temporary folder, listed by its fragment.
 *
 * Shares are kept in the memory of nodes (engine/state/nodes/node_copies.h), as the files that a save writes to the
 * disk, so that they can become a checkpoint there. Each is sealed: a file seal-RANK beside it has a checksum of each
 * of its files, keyed by a secret of the run, so that a stranger's files are not taken for the run's. The caller owns
 * everything.
 */
#pragma once

#include <jansson.h>

#include "engine/checkpoint/fragment.h"

enum { SHARE_FILES = 16, SHARE_SECRET = 16, SHARE_SUM = 33 }; /* SECRET: bytes; SUM: characters with the end */

typedef struct share_file {
    char name[FRAGMENT_NAME];
    int64_t bytes;
} share_file;

/* A folder of a node's memory, and the secret that shares in it are sealed by. */
typedef struct share_source {
    const char *folder;
    uint8_t secret[SHARE_SECRET];
} share_source;

/* Computes SipHash-2-4 with 128 bits: unlike a CRC, it cannot be made without the secret. out: 32 hexadecimal digits of
 * the result's bytes in their order */
void share_sum(char out[SHARE_SUM], const uint8_t secret[SHARE_SECRET], const void *data, int64_t bytes);

/* The files of a share: data, extras, the position of the run (rank 0's share only), the seal, and last the
 * fragment. */
typedef struct share {
    int count;
    share_file file[SHARE_FILES];
} share;

status share_list(share *out, const char *folder, const fragment_owner *owner);

/* Seals the share in `folder`, which is otherwise whole. */
status share_seal(const char *folder, const fragment_owner *owner, const uint8_t secret[SHARE_SECRET], char *buffer);

/* Copies the share of `from` to another folder, through `buffer` (CHECKPOINT_WRITER_BUFFER bytes); fails if a file does
 * not match the seal, so that a copy is whole and the run's own. *damaged: it is missing or does not match; else the
 * storage has failed, and the share may be good. */
status share_copy(bool *damaged, const char *to, const share_source *from, const fragment_owner *owner, char *buffer);

/* Stores the run's position (checkpoint_meta) beside rank 0's share, with a checksum. */
status share_put_meta(const char *folder, json_t *meta, char *buffer);
status share_take_meta(json_t **out, const char *folder);

/* Reads the owner that a fragment names, by the fragment's file name; *is_one false if it is none. `run` has
 * MANIFEST_RUN bytes. */
status share_owner(bool *is_one, fragment_owner *out, char *run, const char *folder, const char *file);
