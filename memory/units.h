/* Numbers as a person reads them: three significant digits and a unit. */
#pragma once

/* Every text below fits. */
enum { UNITS_TEXT = 32 };
void units_bytes(char out[UNITS_TEXT], double bytes);      /* 512 B, 1.50 KiB, 10.0 GiB */
void units_count(char out[UNITS_TEXT], double count);      /* 950, 1.20k, 124M, 8.03B */
void units_duration(char out[UNITS_TEXT], double seconds); /* 4.2s, 1:05, 2:03:04, 3d 04:05 */
