/* A file of lines that is only appended to: a line is there whole or not at all, whatever the disk does. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct lines lines;
typedef struct lock lock; /* engine/system/lock.h */

/* A file that is appended to and has other names (hard links: its folder was copied by cp -al) becomes one of its own,
 * so that the copy and the original do not write into each other. */
status lines_own(const char *path);
/* Opens `path` to append to, and makes it if it is not there. `owner`: the lock of its folder, asked before each line;
 * NULL: none. */
status lines_open(lines **out, const char *path, lock *owner);
/* Appends a line, its newline included, or another record. A file that was deleted or replaced meanwhile is made
 * again, its folder too; one that was moved with its folder gets the same lines, so that it lacks none when the folder
 * is back. A folder that takes its place with a file of that name is another run's: the lines go only to the moved
 * file. After a failure the file is as it was; the line is kept, with up to 16 MiB of those after it, and written
 * before the next one. With `here` the line is about the file's folder: a file that was moved with its folder does not
 * get it. */
status lines_write(lines *l, const void *data, int64_t bytes, bool here);
/* Returns false if another run's folder has the name of this one's, which was moved; true if unknown. Any thread.
 * Without `look`, returns the cached result. */
bool lines_are_here(lines *l, bool look);
/* Returns the number of lines that are not in the file: kept or lost. */
long long lines_lost(const lines *l);
void lines_close(lines *l); /* tries once more to write the kept lines */
AUTO_CLOSES(lines, lines_close)
