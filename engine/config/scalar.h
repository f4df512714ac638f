/* Scalars of YAML: numbers, sizes and text, read from a user's text and printed so that they read back the same, here
 * and in the YAML libraries of other languages. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* All of `text` must be one (NULL is none); otherwise *out stays as it is. */
bool scalar_integer(const char *text, int64_t *out);
bool scalar_number(const char *text, double *out); /* finite */
bool scalar_size(const char *text, int64_t *out);  /* "1.5GiB", "512 MiB", "1048576" */

/* Prints a size in the largest binary unit that divides it. */
void scalar_print_size(FILE *out, int64_t value);
/* The fewest digits that read back to the same bits; with a point before the exponent, without which YAML libraries in
 * other languages take the number for a string. */
void scalar_print_number(FILE *out, double value);
/* Prints text, quoted where needed; NULL is null. */
void scalar_print_text(FILE *out, const char *text);
