/* Reads of small files, folders and paths that decide what a run removes, rewrites or begins anew.
 *
 * An end is told from an error: an error that may pass is tried again (retry.h), from the beginning and with a new
 * descriptor, and one that stays is a status; errno says why. "Is not there" is only said of what is certainly not
 * there (ENOENT or ENOTDIR). Whoever removes or rewrites something because of what was read, or was not, reads it by
 * these functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "memory/status.h"

/* All bytes of a file and a 0 after them, the caller's to free; NULL: there is no such file. */
status reading_file(char **out, int64_t *bytes, const char *path);

/* `bytes` bytes from `offset` on, as many as there are: *got of them; -1: there is no such file. */
status reading_at(int64_t *got, void *to, const char *path, int64_t offset, int64_t bytes);

/* Exactly these bytes of an open file; false with errno, which is 0 where the file ends before. */
bool reading_exactly(int file, void *to, int64_t offset, int64_t bytes);

/* The names in a folder, without . and .. */
typedef struct reading_names {
    bool there; /* false: there is no such folder */
    int count;
    char **name; /* [count] */
} reading_names;

status reading_folder(reading_names *out, const char *path);
void reading_names_free(reading_names *n);

/* May this be the name of a file within a folder, and stand in a line? NULL may not. */
bool reading_is_name(const char *name);
/* Does a name end so, and is longer? */
bool reading_ends_in(const char *name, const char *ending);

/* The absolute path without links, the caller's to free; NULL: there is nothing of that name. */
status reading_real_path(char **out, const char *path);

/* What a path leads to; `*there` is false: nothing. */
status reading_look(bool *there, struct stat *out, const char *path);
/* The same of a link itself. */
status reading_look_at_link(bool *there, struct stat *out, const char *path);

/* Whether a folder that is open still has its name. */
typedef enum reading_place {
    PLACE_SAME,
    PLACE_FREE,  /* it was moved or removed, and nothing has the name */
    PLACE_TAKEN, /* something else has the name */
    PLACE_STALE, /* the server that it is on does not know the descriptor any more, or there is none */
} reading_place;

/* Fails, with PLACE_SAME, if it cannot be told. */
status reading_place_of(reading_place *out, int folder, const char *path);
