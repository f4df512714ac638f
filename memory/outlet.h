/* Standard output and error of a job through a bounded buffer and a thread: a reader that lives and does not read
 * (Ctrl-S, a pager, a stuck log driver) holds up nobody who writes.
 *
 * Between outlet_open and outlet_close what is written to stdout and stderr goes into a buffer of each (of both
 * together, where both lead to the same place, so that their order stays), and a thread passes it on when the reader
 * takes it. What does not fit is dropped, whole writes at a time, and counted; when the reader is back it is told how
 * much is missing. Last words before the process ends go directly, and give the reader a moment. Part of the logger:
 * one a process.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Last words give a reader that does not read so long, once. */
#define OUTLET_LAST_SECONDS 1.0
/* And what is left at an orderly end. */
#define OUTLET_CLOSE_SECONDS 3.0

/* Where the process cannot have a thread or streams of its own, all stays as it was. */
void outlet_open(void);
/* Passes on what is left, as long as the reader takes some of it within `seconds`; then the streams are as they
 * were. */
void outlet_close(double seconds);

/* From now on each line is a JSON object (outlet_json), last words too; `rank` says whose. Nothing, where the
 * outlet is not open. */
void outlet_write_json(int (*rank)(void));

/* The descriptor that a stream leads to, which fileno() does not know while the outlet is open. */
int outlet_descriptor(FILE *of);
/* Bytes that may be written to standard output just now without being dropped. */
size_t outlet_room(void);
/* Bytes dropped so far. */
int64_t outlet_dropped(void);

/* Last words, on standard error: what is in the buffers first, then these, each given up after `seconds` without a
 * reader. Without a heap, a lock or a stream: a signal's handler may call it, and a thread while others are stuck. */
void outlet_last_words(const char *text, size_t bytes, double seconds);

/* A line as it is written, and as an object with its escapes and what stands before them. */
enum { OUTLET_LINE = 4096, OUTLET_LINE_JSON = 6 * OUTLET_LINE + 128 };

/* Writes one line (of at most OUTLET_LINE bytes, its end left out) as an object, for collectors: {"time":
 * "2026-11-28T01:52:03.123Z", "level": "warning", "rank": 3, "message": "..."}, with an end of line, and returns its
 * length, without a heap and without a lock. `error`: it was written to standard error. The level is "error" or
 * "warning" where the program says one of these, else "info". A line that is an object becomes "metrics" of one; one
 * that has a time already is another program's, and is copied. What is no UTF-8, and a zero, becomes question marks. */
size_t outlet_json(char out[OUTLET_LINE_JSON], const char *line, size_t bytes, bool error, int rank);
