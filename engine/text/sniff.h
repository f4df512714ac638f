/* Recognises a file by its first bytes, not by its name: text, JSON-lines, or data that would be garbage as text. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

enum { SNIFF_BYTES = 1 << 16 }; /* bytes examined of a file's beginning, if it has them */

/* Fails if the file is not UTF-8 text, with its kind and the remedy. `zeros`: zero bytes may occur (they separate
 * documents). `name` begins the message. */
status sniff_check(const char *name, const char *bytes, int64_t length, bool zeros);

/* True if text that begins so may be JSON-lines: it begins with a brace and a key. */
bool sniff_may_be_json_lines(const char *bytes, int64_t length);
/* True if the text begins as an array of JSON objects does. */
bool sniff_is_json_array(const char *bytes, int64_t length);
