/* The memory of a step, drawn as SVG: a band a row, in which the classes of tensors lie upon one another. */
#pragma once

#include "tools/plan/timeline_picture.h"

/* Writes the picture to `path`. All rows have one scale, so that stages can be compared. STATUS_FAILED: the file cannot
 * be written. */
status timeline_memory_svg(const char *path, const picture *p);
