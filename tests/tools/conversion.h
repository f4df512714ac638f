/* Converting folders of weights in tests: the golden models and what lies beside them. */
#pragma once

#include <stdbool.h>

#include "engine/state/weights/weights_copy.h"

/* The folder of a golden model; the caller's to free. */
char *conversion_golden(const char *model);
status conversion(const char *from, const char *to, weights_format format, int type, int64_t shard_bytes);
/* Fails the test where the conversion fails. */
void conversion_must(const char *from, const char *to, weights_format format, int type, int64_t shard_bytes);
/* Is there a file of that name? */
bool conversion_has(const char *folder, const char *name);
void conversion_put(const char *folder, const char *name, const char *text);

/* The file of both folders has the same bytes. */
void conversion_same_file(const char *a, const char *b, const char *name);
/* The file of one folder into another. */
void conversion_copy_file(const char *from, const char *to, const char *name);
