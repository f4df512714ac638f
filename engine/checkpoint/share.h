/* One rank's share of a checkpoint that is not published: its files in a temporary folder, known from its fragment.
 *
 * Shares are kept in the memory of nodes (engine/state/node_copies.h), as the files that a save writes to the disk, so
 * that they can become a checkpoint there. The caller owns everything.
 */
#ifndef PHALANX_ENGINE_CHECKPOINT_SHARE_H
#define PHALANX_ENGINE_CHECKPOINT_SHARE_H

#include <jansson.h>

#include "engine/checkpoint/fragment.h"

enum { SHARE_FILES = 16 };

typedef struct share_file {
    char name[FRAGMENT_NAME];
    int64_t bytes;
} share_file;

/* What a share consists of: data, what goes with it, the position of the run (rank 0's share only), and last the
 * fragment. */
typedef struct share {
    int count;
    share_file file[SHARE_FILES];
} share;

status share_list(share *out, const char *folder, const fragment_owner *owner);

/* From one folder to another, through `buffer` (CHECKPOINT_WRITER_BUFFER bytes); fails if a file is not what the
 * fragment says, so that what is copied is whole. */
status share_copy(const char *to, const char *from, const fragment_owner *owner, char *buffer);

/* Where the run is (checkpoint_meta), beside rank 0's share, and with a checksum. */
status share_put_meta(const char *folder, json_t *meta, char *buffer);
status share_take_meta(json_t **out, const char *folder);

/* The owner that a fragment of a folder names, by the fragment's file name; false if it is none. `run` has MANIFEST_RUN
 * bytes. */
bool share_owner(fragment_owner *out, char *run, const char *folder, const char *file);

#endif
