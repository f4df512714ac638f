/* Values of command-line options, checked: each failure is a STATUS_USAGE with a sentence that names the option. */
#ifndef PHALANX_TOOLS_ARGUMENTS_H
#define PHALANX_TOOLS_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

/* A whole number from least to most. */
status arguments_whole(int64_t *out, const char *option, const char *text, int64_t least, int64_t most);
/* A number between 0 and 1, neither of them. */
status arguments_fraction(double *out, const char *option, const char *text);
/* One of the words; *out is its place. The list ends with NULL. */
status arguments_choice(int *out, const char *option, const char *text, const char *const *words);
/* Text in which \n \r \t \f \0 \\ and \xHH stand for bytes; a fresh string of *length bytes, the caller's. */
status arguments_text(char **out, int64_t *length, const char *option, const char *text);
/* What getopt_long refused: print nothing but this. */
status arguments_unknown(char *const *argv, int index, int option);

#endif
