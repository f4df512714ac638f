/* One rank's share of a checkpoint, laid out once and written any number of times.
 *
 * Pieces, files and headers are the same at every save of a run. A writer lays them out when it is opened; writing then
 * allocates no memory that grows with the model, so that a thread may do it while the run trains. Each file goes past
 * the page cache, is fsynced, and is read back before the share counts as written; a write that failed for a passing
 * reason is repeated. Pieces, names, the buffer and the data of extras stay the caller's and outlive the writer.
 */
#pragma once

#include "engine/checkpoint/checkpoint.h"

typedef struct lock lock; /* engine/system/lock.h */

/* A file that goes with a checkpoint (a tokenizer). */
typedef struct checkpoint_extra {
    const char *name;
    const void *data;
    int64_t bytes;
} checkpoint_extra;

/* Bytes of the buffer: large enough that a network file system sees large writes. Aligned to DIRECT_ALIGNMENT. */
enum { CHECKPOINT_WRITER_BUFFER = 4 << 20 };

typedef struct checkpoint_writer_options {
    checkpoint_share share;
    const checkpoint_extra *extras;
    int extra_count;
    char *buffer;
    lock *owner; /* lock of the run's folder, asked before each file; NULL: none */
} checkpoint_writer_options;

typedef struct checkpoint_writer checkpoint_writer;

checkpoint_writer *checkpoint_writer_open(const checkpoint_writer_options *options);
void checkpoint_writer_close(checkpoint_writer *w);

/* Writes this rank's files and its fragment into checkpoint_temporary(folder, name), which is made if need be. Fails,
 * with the tensor's name, where values are not finite. */
status checkpoint_writer_share(checkpoint_writer *w, const char *folder, const char *name);

/* True if the last share failed since a value is not finite; then the next one will, too. */
bool checkpoint_writer_refused(const checkpoint_writer *w);

/* Writes one file, with the bytes that `put` gives, through a buffer as above; fsyncs it and reads it back. A failure
 * that may pass restarts the file, since after a failed fsync the disk's content is unknown. *out gets its length and
 * checksum. */
typedef status checkpoint_content(direct *out, void *context);
status checkpoint_put(manifest_file *out, const char *path, char *buffer, checkpoint_content *put, void *context);
/* Puts the content of a `mapping`. */
status checkpoint_bytes(direct *out, void *context);

/* Returns the temporary folder of an unpublished checkpoint, or a rank's fragment in it; the caller frees it. */
char *checkpoint_temporary(const char *folder, const char *name);
char *checkpoint_fragment(const char *temporary, int rank);

/* ---- rank 0's part: from the shares of all ranks to a folder that `latest` names ----
 *
 * A publisher is opened once for a run and allocates no memory that grows with the model when it publishes. Its buffer
 * is the caller's (CHECKPOINT_WRITER_BUFFER bytes) and may be the writer's. One thread at a time uses it. `owner`, the
 * lock of the run's folder or NULL, is asked before a name changes.
 */
typedef struct checkpoint_publisher checkpoint_publisher;

checkpoint_publisher *checkpoint_publisher_open(int ranks, const char *run, char *buffer, lock *owner);
void checkpoint_publisher_close(checkpoint_publisher *p);

/* Publishes after every rank's checkpoint_writer_share has succeeded. The pieces of all ranks must cover each tensor
 * exactly once. */
status checkpoint_publisher_publish(checkpoint_publisher *p, const char *folder, const char *name, json_t *meta);

/* Frees the disk after a failure. Keeps the failure's message. */
void checkpoint_clean(const char *folder, const char *name);
/* Removes leftovers of an interrupted save, if the folder is there; called before the first save. */
status checkpoint_tidy(const char *folder);
