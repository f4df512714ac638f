/* Reads small files, folders and paths by which a run decides to remove, rewrite or restart.
 *
 * They distinguish an end from an error: a passing error is retried (retry.h), from the beginning and with a new
 * descriptor, and a lasting one is a status; errno says why. A file counts as missing only if it certainly is (ENOENT
 * or ENOTDIR). Code that removes or rewrites files depending on a read uses these functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "memory/status.h"

/* Reads all bytes of a file, followed by a 0; the caller frees them; NULL: there is no such file. */
status reading_file(char **out, int64_t *bytes, const char *path);

/* Reads up to `bytes` bytes from `offset` on: *got of them; -1: there is no such file. */
status reading_at(int64_t *got, void *to, const char *path, int64_t offset, int64_t bytes);

/* Reads exactly these bytes of an open file; false with errno, which is 0 if the file ends before. */
bool reading_exactly(int file, void *to, int64_t offset, int64_t bytes);

/* Opens a regular file that others may have made, a line at a time; never waits, as for a FIFO's writer. NULL with
 * errno: it cannot be opened, or is no file (EINVAL). */
FILE *reading_stream(const char *path);

/* The names in a folder, without . and .. */
typedef struct reading_names {
    bool there; /* false: there is no such folder */
    int count;
    char **name; /* [count] */
} reading_names;

status reading_folder(reading_names *out, const char *path);
void reading_names_free(reading_names *n);

/* True if this may be the name of a file within a folder, and stand in a line; NULL may not. */
bool reading_is_name(const char *name);
/* True if a name has this ending, and is longer. */
bool reading_ends_in(const char *name, const char *ending);

/* Returns the absolute path without links, which the caller frees; NULL: no such path. */
status reading_real_path(char **out, const char *path);

/* Stats the target of a path; `*there` is false if it is missing. */
status reading_look(bool *there, struct stat *out, const char *path);
/* Stats a link itself. */
status reading_look_at_link(bool *there, struct stat *out, const char *path);

/* Says whether an open folder still has its name. */
typedef enum reading_place {
    PLACE_SAME,
    PLACE_FREE,  /* it was moved or removed, and the name is free */
    PLACE_TAKEN, /* something else has the name */
    PLACE_STALE, /* its server no longer knows the descriptor, or there is none */
} reading_place;

/* Fails, with PLACE_SAME, if that is unknown. */
status reading_place_of(reading_place *out, int folder, const char *path);
