/* Files that a user names (--output, --write, --svg), as opposed to those of a folder that phalanx keeps.
 *
 * A regular file, or a name that nothing has yet, is written whole or not at all (atomic.h). A link stays: the file
 * that it names is written. A device or a pipe stays, too, and takes the bytes as they come; `-` is standard output.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "memory/status.h"

/* STATUS_FAILED: it cannot be written; the message names it and says why. */
status output_write(const char *path, const void *data, int64_t bytes);
/* Whether output_write() could begin now, for commands that compute for minutes before. Changes nothing. */
status output_check(const char *path);
/* Writes what draw(out, what) prints. */
status output_print(const char *path, void (*draw)(FILE *out, const void *what), const void *what);
