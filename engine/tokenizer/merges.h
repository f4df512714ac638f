/* Byte pair encoding of one pre-token: which pairs of tokens merge, in which order, into which token.
 *
 * The rule: of all neighbouring pairs that can merge take the one of the lowest rank, of equals the leftmost; repeat
 * until none can. A merges is filled once and then read by any number of threads, each with its own merges_scratch.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "engine/text/buffer.h"

typedef struct merges merges;
typedef struct merges_scratch merges_scratch;

merges *merges_open(int64_t expected);
void merges_close(merges *m);
/* Makes left + right become `merged`; a later entry for the same pair replaces an earlier one. */
void merges_add(merges *m, int32_t left, int32_t right, uint32_t rank, int32_t merged);

merges_scratch *merges_scratch_open(void);
void merges_scratch_close(merges_scratch *s);

/* Appends the tokens to which ids[count] merge. count < 2^31. */
void merges_apply(const merges *m, merges_scratch *s, buffer_ids *out, const int32_t *ids, int64_t count);

/* A cache of recent words and their tokens: nine of ten words of prose are among a few thousand.
 *
 * A remembered word is one cache line: up to 31 bytes, their number in the last byte, and up to 7 tokens. A word has
 * one slot; the latest one holds it. Each thread has its own.
 */

enum { WORDS_BITS = 15, WORDS_BYTES = 31, WORDS_IDS = 7 };

typedef struct words_slot {
    uint64_t key[4];
    int32_t ids[WORDS_IDS];
    int32_t count;
} words_slot;

typedef struct words {
    words_slot *slots; /* [1 << WORDS_BITS] slots; an unused one has an impossible key */
    uint64_t key[4];   /* key of the last word asked for */
    words_slot *asked; /* its slot; NULL: too long to be remembered */
} words;

words *words_open(void);
void words_close(words *w);

/* Appends the tokens of a word if they are remembered. */
static inline bool words_recall(words *w, buffer_ids *out, const uint8_t *word, int64_t length)
{
    w->asked = NULL;
    if (length > WORDS_BYTES)
        return false;
    uint64_t k[4] = {0};
    memcpy(k, word, (size_t)length);
    k[3] |= (uint64_t)length << 56;
    uint64_t h = (k[0] ^ k[1] * 0x9E3779B97F4A7C15U ^ k[2] * 0xC2B2AE3D27D4EB4FU ^ k[3]) * 0x9E3779B97F4A7C15U;
    words_slot *p = &w->slots[h >> (64 - WORDS_BITS)];
    if (p->key[0] == k[0] && p->key[1] == k[1] && p->key[2] == k[2] && p->key[3] == k[3]) {
        buffer_ids_reserve(out, WORDS_IDS);
        memcpy(out->ids + out->count, p->ids, sizeof p->ids);
        out->count += p->count;
        return true;
    }
    memcpy(w->key, k, sizeof k);
    w->asked = p;
    return false;
}

/* Remembers the tokens of the word that words_recall missed: `out` from `before` on. */
static inline void words_remember(words *w, const buffer_ids *out, int64_t before)
{
    int64_t count = out->count - before;
    if (!w->asked || count > WORDS_IDS || count == 0)
        return;
    memcpy(w->asked->key, w->key, sizeof w->key);
    memcpy(w->asked->ids, out->ids + before, (size_t)count * sizeof *out->ids);
    w->asked->count = (int32_t)count;
}
