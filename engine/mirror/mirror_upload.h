/* One checkpoint's files, from its folder on the disk to the mirror: several at once, the manifest last.
 *
 * The folder is opened once, and every file is held to the checksum that the manifest has of it, so that a checkpoint
 * that is replaced or removed meanwhile is never mirrored in part: the upload fails, and what is there of it is no
 * checkpoint. Buffers are allocated when it is opened; an upload allocates nothing of 64 KiB or more for up to some
 * hundreds of parts. It is used by one thread, which it gives helpers.
 */
#pragma once

#include <stdatomic.h>

#include "engine/mirror/mirror_prefix.h"

typedef struct mirror_upload mirror_upload;

/* `largest`: bytes of the largest file that is expected, for the size of its parts. `stop`: when it becomes true, by
 * any thread, an upload fails soon. `start`: the id of this start, as mirror_prefix_hold has written it. */
mirror_upload *mirror_upload_open(const mirror_prefix *p, const char *start, int64_t largest, const atomic_bool *stop);
void mirror_upload_close(mirror_upload *u); /* NULL is accepted */

/* The checkpoint FOLDER/NAME, which may be there already. `to` becomes its name in the mirror; `latest` is not written.
 * *shut_out, on failure: another start of the run has taken the mirror over. */
status mirror_upload_run(char to[MIRROR_NAME], bool *shut_out, mirror_upload *u, object_store *s, const char *folder,
                         const char *name);
/* Of the present upload, by any thread. */
int64_t mirror_upload_done(const mirror_upload *u);

/* A small file, as it is now; larger ones and those that are not there are left out. */
status mirror_upload_text(mirror_upload *u, object_store *s, const char *path, const char *name);

/* Bytes of a checkpoint's files, by its manifest; 0: it cannot be read. */
int64_t mirror_upload_bytes(const char *folder, const char *name);
