/* Lines of JSON as columns: what a chart needs. */
#pragma once

#include <jansson.h>

/* The whole lines of a file that have `key`, as an array; empty where there is no such file. The caller's. */
json_t *series_lines(const char *path, const char *key);
/* {key: [value, ...], ...} of `lines`: those keys of `keys` (NULL at the end) that occur, null where a line has none.
 * At most about `points` of each: first and last, and of every run of lines between the one with the least and the one
 * with the largest `by`, so that no spike is lost. The caller's. */
json_t *series_columns(const json_t *lines, const char *const *keys, const char *by, int points);
