/* Lines of a log as JSON objects, for collectors: {"time": "2026-11-28T01:52:03.123Z", "level": "warning", "rank": 3,
 * "message": "..."}. Without a heap and without a lock: last words are written so, too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* A line as it is written, and as an object with its escapes and what stands before them. */
enum { LOG_LINE = 4096, LOG_LINE_JSON = 6 * LOG_LINE + 128 };

/* Writes one line (of at most LOG_LINE bytes, its end left out), with an end of line, and returns its length. `error`:
 * it was written to standard error. The level is "error" or "warning" where the program says one of these, else "info".
 * A line that is an object becomes "metrics" of one; one that has a time already is another program's, and is copied.
 * What is no UTF-8, and a zero, becomes question marks. */
size_t log_line_json(char out[LOG_LINE_JSON], const char *line, size_t bytes, bool error, int rank);
