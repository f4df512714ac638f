/* Reads a Hugging Face tokenizer.json into a bpe. Whatever it asks for that BPE here does not know is refused by its
 * name in the file, so that no text is encoded differently from what its author meant. */
#pragma once

#include <stddef.h>

#include "engine/tokenizer/bpe.h"
#include "memory/status.h"

/* `name` comes first in the message of a failure. */
status bpe_json_open(bpe **out, const char *json, size_t length, const char *name);
