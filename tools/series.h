/* Turns lines of JSON into columns for charts. */
#pragma once

#include <jansson.h>

/* Returns a file's whole lines that have `key`, as the caller's array; empty if there is no such file. */
json_t *series_lines(const char *path, const char *key);
/* Returns {key: [value, ...], ...} of `lines` for the `keys` (NULL at the end) that occur, null where a line has none;
 * the caller owns it. Each has about `points` values at most: first and last, and the lines with the least and the
 * largest `by` of every run of lines between, so that no spike is lost. */
json_t *series_columns(const json_t *lines, const char *const *keys, const char *by, int points);
