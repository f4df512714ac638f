/* A page, or a script, that holds its data: a file of the source tree in which a mark is replaced by JSON. */
#ifndef PHALANX_TOOLS_PAGE_H
#define PHALANX_TOOLS_PAGE_H

#include <jansson.h>

#include "memory/status.h"

/* Writes `frame` to `path` with the data where `mark` is, whole or not at all. */
status page_write(const char *path, const char *frame, const char *mark, const json_t *data);

#endif
