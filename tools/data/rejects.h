/* The file of tokenize --skip-bad: a line for each bad record.
 *
 * A regular file appears whole with the data set, in rejects_close, or not at all; a device, a pipe or `-` (standard
 * output) takes the lines as they come. The caller owns it until rejects_close or rejects_abandon.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

typedef struct rejects rejects;

/* Fails where the file is one of the `count` inputs, as after `--skip-bad` without a name before a list of files, and
 * where it is there already, unless `force`. Changes nothing. */
status rejects_check(const char *path, char *const *inputs, int count, bool force);
status rejects_open(rejects **out, const char *path);
status rejects_add(rejects *r, const char *lines, int64_t length);
status rejects_close(rejects *r);
void rejects_abandon(rejects *r); /* NULL is accepted */
