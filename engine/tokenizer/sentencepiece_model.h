/* Checks a SentencePiece model file (a protocol buffer) before the library sees it.
 *
 * The library trusts a file once it parses; this reader refuses files that would make it read out of bounds or stop the
 * process, and reads the settings that the library does not return.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/buffer.h"
#include "engine/tokenizer/vocabulary.h"
#include "memory/status.h"
#include "memory/scope.h"

enum { /* types of a piece, as in the file */
       SENTENCEPIECE_MODEL_NORMAL = 1,
       SENTENCEPIECE_MODEL_UNKNOWN = 2,
       SENTENCEPIECE_MODEL_CONTROL = 3,
       SENTENCEPIECE_MODEL_USER = 4,
       SENTENCEPIECE_MODEL_UNUSED = 5,
       SENTENCEPIECE_MODEL_BYTE = 6,
};

enum { /* types of a model, as in the file */
       SENTENCEPIECE_MODEL_UNIGRAM = 1,
       SENTENCEPIECE_MODEL_BPE = 2,
};

typedef struct sentencepiece_model {
    vocabulary *pieces;       /* text by id: the decoded text of a piece (of control pieces: their name) */
    buffer names;             /* the file's names of the pieces, U+2581 for a space, each with a 0 at its end */
    int64_t *name_at;         /* [pieces] offset of each in `names` */
    buffer map;               /* the normalizer's character map (charmap_match); empty: none */
    float *scores;            /* [pieces] */
    uint8_t *types;           /* [pieces] SENTENCEPIECE_MODEL_NORMAL, ... */
    int32_t room;             /* capacity of the three arrays */
    int64_t type;             /* SENTENCEPIECE_MODEL_UNIGRAM, ..._BPE or another that the library knows */
    bool byte_fallback;       /* characters that are no piece become their bytes */
    bool dummy_prefix;        /* a space is put in front of every text */
    bool remove_extra;        /* spaces in front, at the end and repeated ones are removed */
    bool space_suffix;        /* the mark of a space ends a piece instead of beginning it */
    char unknown_surface[64]; /* the decoded text of an unknown piece */
} sentencepiece_model;

status sentencepiece_model_open(sentencepiece_model **out, const void *bytes, int64_t length, const char *name);
void sentencepiece_model_close(sentencepiece_model *m);
AUTO_CLOSES(sentencepiece_model, sentencepiece_model_close)
const char *sentencepiece_model_name(const sentencepiece_model *m, int32_t id);

/* Rounds the scores in the file of a unigram model to multiples of 1/128. Sums of such scores are exact in single and
 * in double precision until a path's score falls below -131072, so that programs that add in either, or in another
 * order, find the same best path; with scores of 24 random bits rounding would decide between nearly equal paths. */
status sentencepiece_model_round(void *bytes, int64_t length, const char *name);

/* The character map of a SentencePiece model's normalizer: strings that are replaced by others before anything else.
 *
 * In the file: the size of a double-array trie (Darts) in bytes, the trie, then the replacements, each with a 0 at its
 * end. A unit of the trie: bit 31 marks a value (then bits 0-30 are it), bits 0-7 the label, bit 8 "has a value", bits
 * 10-30 the offset of the children, times 256 if bit 9 is set.
 */

/* Finds the longest string of a checked map that begins the text: its bytes, or 0 if there is none. *replacement ends
 * with a 0. */
int64_t charmap_match(const uint8_t *map, const char **replacement, const char *text, int64_t length);
