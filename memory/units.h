/* Numbers as a person reads them: three significant digits and a unit. Each function returns its `out`. */
#pragma once

/* Every text below fits. */
enum { UNITS_TEXT = 32 };
const char *units_bytes(char out[UNITS_TEXT], double bytes); /* 512 B, 1.50 KiB, 10.0 GiB */
const char *units_count(char out[UNITS_TEXT], double count); /* 950, 1.20k, 124M, 8.03B */
/* 512 bytes, 1.5 KiB; 950, 1.2 thousand, 8.0 billion */
const char *units_bytes_in_words(char out[UNITS_TEXT], double bytes);
const char *units_count_in_words(char out[UNITS_TEXT], double count);
const char *units_duration(char out[UNITS_TEXT], double seconds); /* 4.2s, 1:05, 2:03:04, 3d 04:05 */

/* Returns the same as an argument: the text lives as long as the block that the macro is in. */
#define BYTES_TEXT(bytes)      units_bytes((char[UNITS_TEXT]){0}, (double)(bytes))
#define COUNT_TEXT(count)      units_count((char[UNITS_TEXT]){0}, (double)(count))
#define DURATION_TEXT(seconds) units_duration((char[UNITS_TEXT]){0}, seconds)
#define BYTES_IN_WORDS(bytes)  units_bytes_in_words((char[UNITS_TEXT]){0}, (double)(bytes))
#define COUNT_IN_WORDS(count)  units_count_in_words((char[UNITS_TEXT]){0}, (double)(count))
