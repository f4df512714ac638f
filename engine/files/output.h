/* Files that a user names (--output, --write, --svg), as opposed to the files of phalanx's own folders.
 *
 * A regular or new file is written whole or not at all (atomic.h). A link stays: the file that it names is written. A
 * device or a pipe stays, too, and takes the bytes as they come; `-` is standard output.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "memory/status.h"

/* Writes a file. STATUS_FAILED: it cannot be written; the message names it and says why. */
status output_write(const char *path, const void *data, int64_t bytes);
/* Checks whether output_write() could begin now, for commands that first compute for minutes. Changes no file. */
status output_check(const char *path);
/* Writes the output of draw(out, what). */
status output_print(const char *path, void (*draw)(FILE *out, const void *what), const void *what);
