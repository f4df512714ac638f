/* What the beginning of a file is, by its bytes and not by its name: text, JSON-lines, or something that would make
 * garbage if it were taken as text. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

enum { SNIFF_BYTES = 1 << 16 }; /* of a file's beginning, where there are as many */

/* Fails with what the file is and what to do when it is not UTF-8 text. `zeros`: bytes of zero are part of it (they
 * separate documents). `name` begins the message. */
status sniff_check(const char *name, const char *bytes, int64_t length, bool zeros);

/* Whether the text, if it goes on after `bytes`, may be JSON-lines: it begins with a brace and a key. */
bool sniff_may_be_json_lines(const char *bytes, int64_t length);
/* Whether the text begins as an array of JSON objects does. */
bool sniff_is_json_array(const char *bytes, int64_t length);
