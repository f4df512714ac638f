/* The tokens of a tokenizer: for each id its bytes and what kind of token it is; for bytes the id.
 *
 * Filled once, then read by any number of threads. Ids may have holes (no token there). Only tokens entered with
 * VOCABULARY_INDEXED are found by their bytes: special tokens can have the same bytes as ordinary ones.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
    VOCABULARY_PRESENT = 1,
    VOCABULARY_INDEXED = 2,
    VOCABULARY_SPECIAL = 4, /* left out where special tokens are skipped (bos, eos, padding, chat marks) */
};

#define VOCABULARY_MOST (1 << 24) /* ids are below this */

typedef struct vocabulary vocabulary;

vocabulary *vocabulary_open(void);
void vocabulary_close(vocabulary *v);

/* Enter a token; false when the id is taken, or an indexed token of the same bytes exists. */
bool vocabulary_add(vocabulary *v, int32_t id, const char *bytes, int64_t length, int flags);
void vocabulary_mark(vocabulary *v, int32_t id, int flags); /* add flags to a token that is there */

int32_t vocabulary_size(const vocabulary *v);                                    /* the largest id + 1 */
int vocabulary_flags(const vocabulary *v, int32_t id);                           /* 0 for an id without a token */
const char *vocabulary_bytes(const vocabulary *v, int64_t *length, int32_t id);  /* valid until the next add */
int32_t vocabulary_find(const vocabulary *v, const char *bytes, int64_t length); /* an indexed token's id, or -1 */
