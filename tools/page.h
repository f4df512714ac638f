/* A page, or a script, that holds its data: a file of the source tree in which a mark is replaced by JSON. And a
 * picture. */
#pragma once

#include <jansson.h>

#include "parallel/schedule/simulate.h"

/* Writes `frame` to `path` (engine/files/output.h) with the data where `mark` is. */
status page_write(const char *path, const char *frame, const char *mark, const json_t *data);
/* Writes the drawing of a schedule (parallel/schedule/timeline.h). */
status page_write_timeline(const char *path, const simulation *sim);
