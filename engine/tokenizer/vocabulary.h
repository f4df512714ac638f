/* A vocabulary has the tokens of a tokenizer: for each id its bytes and its kind; for bytes the id.
 *
 * Filled once, then read by any number of threads. Ids may have holes (no token there). Only tokens entered with
 * VOCABULARY_INDEXED are found by their bytes: special tokens can have the same bytes as ordinary ones.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/buffer.h"

enum {
    VOCABULARY_PRESENT = 1,
    VOCABULARY_INDEXED = 2,
    VOCABULARY_SPECIAL = 4, /* left out where special tokens are skipped (bos, eos, padding, chat marks) */
};

#define VOCABULARY_MOST (1 << 24) /* ids are below this */

typedef struct vocabulary vocabulary;

vocabulary *vocabulary_open(void);
void vocabulary_close(vocabulary *v);

/* Enters a token; false if the id is taken, or an indexed token of the same bytes exists. */
bool vocabulary_add(vocabulary *v, int32_t id, const char *bytes, int64_t length, int flags);
void vocabulary_mark(vocabulary *v, int32_t id, int flags); /* adds flags to an existing token */

int32_t vocabulary_size(const vocabulary *v);                                    /* the largest id + 1 */
int vocabulary_flags(const vocabulary *v, int32_t id);                           /* 0 for an id without a token */
const char *vocabulary_bytes(const vocabulary *v, int64_t *length, int32_t id);  /* valid until the next add */
int32_t vocabulary_find(const vocabulary *v, const char *bytes, int64_t length); /* an indexed token's id, or -1 */

/* How SentencePiece's pieces write a space, as the mark U+2581, and a byte, as <0xE4>. */
#define MARK "\xE2\x96\x81"
enum { MARK_BYTES = 3 };

/* True if a text begins with a mark. */
bool mark_begins(const char *text, int64_t length);
/* Appends a text with a space for each mark. */
void mark_append(buffer *out, const char *text, int64_t length);
/* Returns the byte for which a piece like <0xE4> stands, or -1. */
int mark_byte(const char *piece, int64_t length);

/* Maps each character by which byte-level BPE writes bytes to its byte: bytes that print in Latin-1 are themselves, the
 * other 68, in order, U+0100 and on; -1: the character stands for no byte. */
enum { BYTE_ALPHABET_CODES = 512 };
void byte_alphabet_fill(int16_t byte_of[BYTE_ALPHABET_CODES]);
