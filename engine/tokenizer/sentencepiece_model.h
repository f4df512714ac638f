/* A look at a SentencePiece model file (a protocol buffer) before the library sees it.
 *
 * The library trusts a file once it parses; this reader refuses what would make it read out of bounds or stop the
 * process, and takes from the file the settings that the library does not tell.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/buffer.h"
#include "engine/tokenizer/vocabulary.h"
#include "memory/status.h"

enum { /* what a piece is, as in the file */
       SENTENCEPIECE_MODEL_NORMAL = 1,
       SENTENCEPIECE_MODEL_UNKNOWN = 2,
       SENTENCEPIECE_MODEL_CONTROL = 3,
       SENTENCEPIECE_MODEL_USER = 4,
       SENTENCEPIECE_MODEL_UNUSED = 5,
       SENTENCEPIECE_MODEL_BYTE = 6,
};

enum { /* what a model is, as in the file */
       SENTENCEPIECE_MODEL_UNIGRAM = 1,
       SENTENCEPIECE_MODEL_BPE = 2,
};

typedef struct sentencepiece_model {
    vocabulary *pieces;       /* by id: the text that a piece decodes to (of control pieces: their name) */
    buffer names;             /* what the file calls the pieces, U+2581 for a space, each with a 0 at its end */
    int64_t *name_at;         /* [pieces] where each begins in `names` */
    buffer map;               /* the normalizer's character map (charmap_match); empty: none */
    float *scores;            /* [pieces] */
    uint8_t *types;           /* [pieces] SENTENCEPIECE_MODEL_NORMAL, ... */
    int32_t room;             /* of the three */
    int64_t type;             /* SENTENCEPIECE_MODEL_UNIGRAM, ..._BPE or another that the library knows */
    bool byte_fallback;       /* characters that are no piece become their bytes */
    bool dummy_prefix;        /* a space is put in front of every text */
    bool remove_extra;        /* spaces in front, at the end and repeated ones are removed */
    bool space_suffix;        /* the mark of a space ends a piece instead of beginning it */
    char unknown_surface[64]; /* what an unknown piece decodes to */
} sentencepiece_model;

status sentencepiece_model_open(sentencepiece_model **out, const void *bytes, int64_t length, const char *name);
void sentencepiece_model_close(sentencepiece_model *m);
const char *sentencepiece_model_name(const sentencepiece_model *m, int32_t id);

/* Round the scores in the file of a unigram model to multiples of 1/128. Sums of such scores are exact in single and in
 * double precision until a path's score falls below -131072, so that programs that add in either, or in another order,
 * find the same best path, where scores of 24 random bits let rounding decide between paths of nearly equal scores. */
status sentencepiece_model_round(void *bytes, int64_t length, const char *name);

/* The character map of a SentencePiece model's normalizer: strings that are replaced by others before anything else.
 *
 * In the file: the size of a double-array trie (Darts) in bytes, the trie, then the replacements, each with a 0 at its
 * end. A unit of the trie: bit 31 marks a value (then bits 0-30 are it), bits 0-7 the label, bit 8 "has a value", bits
 * 10-30 the offset of the children, times 256 if bit 9 is set.
 */

/* The longest string of a sound map with which the text begins: its bytes, or 0 when there is none. *replacement is
 * what takes its place, ended by a 0. */
int64_t charmap_match(const uint8_t *map, const char **replacement, const char *text, int64_t length);
