/* Standard output and error of a job through a bounded buffer and a thread: a reader that lives and does not read
 * (Ctrl-S, a pager, a stuck log driver) holds up no writer.
 *
 * Between outlet_open and outlet_close, stdout and stderr go into a buffer each (of both together, where both lead to
 * the same place, so that their order stays), and a thread passes it on when the reader takes it. Writes that do not
 * fit are dropped whole, and counted; a notice tells the returning reader how much is missing. Last words before the
 * process ends go directly, and give the reader a moment. It is part of the logger: one a process.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Time limit of last words for a reader that does not read; only once. */
#define OUTLET_LAST_SECONDS 1.0
/* Time limit of the remaining bytes at an orderly end. */
#define OUTLET_CLOSE_SECONDS 3.0

/* Opens the outlet; has no effect if the process cannot have a thread or streams of its own. */
void outlet_open(void);
/* Passes on the remaining bytes, as long as the reader takes some within `seconds`; then restores the streams. */
void outlet_close(double seconds);

/* Makes each later line a JSON object (outlet_json), last words too, with the rank from `rank`. Has no effect if the
 * outlet is not open. */
void outlet_write_json(int (*rank)(void));

/* Returns the descriptor of a stream, which fileno() does not know while the outlet is open. */
int outlet_descriptor(FILE *of);
/* Returns the bytes that standard output can take now without dropping any. */
size_t outlet_room(void);
/* Returns the bytes dropped so far. */
int64_t outlet_dropped(void);

/* Writes last words to standard error, after the buffers' content; gives up each after `seconds` without a reader. Uses
 * no heap, lock or stream: a signal's handler may call it, and a thread while others are stuck. */
void outlet_last_words(const char *text, size_t bytes, double seconds);

/* Longest line as written, and as an object with its escapes and the fields before it. */
enum { OUTLET_LINE = 4096, OUTLET_LINE_JSON = 6 * OUTLET_LINE + 128 };

/* Writes one line (of at most OUTLET_LINE bytes, its end left out) as an object, for collectors: {"time":
 * "2026-11-28T01:52:03.123Z", "level": "warning", "rank": 3, "message": "..."}, with an end of line, and returns its
 * length, without a heap and without a lock. `error`: it was written to standard error. The level is "error" or
 * "warning" if the line names one, else "info". A line that is an object becomes "metrics" of one; one that has a time
 * already is another program's, and is copied. Malformed UTF-8 and zeros become question marks. */
size_t outlet_json(char out[OUTLET_LINE_JSON], const char *line, size_t bytes, bool error, int rank);
