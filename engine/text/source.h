/* The bytes of a file, of an object of a store (s3://BUCKET/KEY) or of standard input; gzip, zstd, xz and bzip2 are
 * unpacked while they are read.
 *
 * The format is recognised by the first bytes, not by the name. A source is the caller's until source_close, and is
 * read by one thread.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct source source;

/* Opens a source; "-": standard input. Once *stop is true, set by any thread, reading fails soon, even where a pipe is
 * empty; NULL: never. */
status source_open(source **out, const char *path, const atomic_bool *stop);
void source_close(source *s);
AUTO_CLOSES(source, source_close)
/* Returns the bytes of a regular file or an object, packed; fails, with its kind, for any other file. */
status source_size(int64_t *bytes, const char *path);
const char *source_name(const source *s); /* name for messages */

/* Reads up to `room` bytes; *got is 0 at the end and only there. A packed file that is cut off or damaged fails. */
status source_read(source *s, char *out, int64_t *got, int64_t room);

/* True if source_seek() can go to any byte: a regular file or an object that is not packed. */
bool source_seekable(const source *s);
int64_t source_bytes(const source *s); /* bytes of a seekable one */
status source_seek(source *s, int64_t offset);

int64_t source_consumed(const source *s); /* bytes of the file read so far, packed as they are */
