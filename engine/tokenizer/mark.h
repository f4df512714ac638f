/* How SentencePiece's pieces write a space, as the mark U+2581, and a byte, as <0xE4>. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/buffer.h"

#define MARK "\xE2\x96\x81"
enum { MARK_BYTES = 3 };

/* Does a text begin with a mark? */
bool mark_begins(const char *text, int64_t length);
/* Appends a text with a space for each mark. */
void mark_append(buffer *out, const char *text, int64_t length);
/* The byte that a piece like <0xE4> stands for, or -1. */
int mark_byte(const char *piece, int64_t length);
