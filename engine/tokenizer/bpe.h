/* Implements byte pair encoding as Hugging Face's tokenizer.json describes it: of bytes (GPT-2, Llama 3, Qwen, Pythia
 * and their kin), or of characters, where a SentencePiece model was converted (Gemma, Phi-3, Llama 2).
 *
 * Text passes: added tokens that want the raw text -> normalizers -> added tokens that want the normal form -> one or
 * more pre-tokenizer steps that cut it -> merges. Where characters merge, a space stands for SentencePiece's mark
 * U+2581 from the step on that puts marks. A bpe is built by bpe_json.c, then immutable and shared by threads; each
 * brings a bpe_scratch, which also remembers the tokens of words seen lately. bpe_close frees its contents.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/text/buffer.h"
#include "engine/text/unicode.h"
#include "engine/tokenizer/merges.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/vocabulary.h"
#include "memory/status.h"
#include "memory/scope.h"

/* Added tokens: whole strings that are one id wherever they occur, found before the text is cut any further.
 *
 * At each position the longest one is taken, from left to right. Each may want to be a word of its own, and may take
 * the white space on its left or right with it. An added is filled, sealed by added_sort, then read by any number of
 * threads. */
typedef struct added_token {
    char *text; /* owned by the added */
    int64_t length;
    int32_t id;
    bool special, single_word, left_strip, right_strip;
} added_token;

typedef struct added added;

added *added_open(void);
void added_put(added *a, const added_token *token); /* copies the text */
void added_sort(added *a);

/* One step of pre-tokenizing: cut at the matches of a pattern. */
typedef struct bpe_step {
    pattern *cut;                   /* NULL: does not cut */
    bool drop_matches, drop_others; /* drops text that is not a pre-token */
    bool prefix_space;              /* puts a space in front of text that begins without one, before it cuts */
} bpe_step;

enum { BPE_STEPS = 8, BPE_NORMALS = 4 };

/* One step of normalizing. */
typedef struct bpe_normal {
    enum { BPE_FORM, BPE_PREPEND, BPE_MARK } kind; /* normal form; a mark in front of a text; marks for spaces */
    unicode_form form;                             /* form of BPE_FORM */
} bpe_normal;

/* Parts that get a mark in front from Metaspace: all parts between added tokens, the one that begins the text, none. */
typedef enum bpe_scheme { BPE_ALWAYS, BPE_FIRST, BPE_NEVER } bpe_scheme;

typedef struct bpe {
    unicode_classes *classes;
    vocabulary *vocabulary; /* the model's tokens by their bytes, the added ones as well */
    merges *merges;
    added *raw, *normalized; /* added tokens searched before and after normalization */
    bpe_step steps[BPE_STEPS];
    int step_count;
    bpe_normal normals[BPE_NORMALS]; /* applied in this order */
    int normal_count;
    bool characters;          /* merges characters, not bytes; a character without a token becomes its bytes' tokens */
    bool metaspace;           /* the pre-tokenizer puts marks for spaces, and in front as `scheme` says */
    bpe_scheme scheme;        /* scheme of metaspace */
    bool words_apart;         /* characters only: no merge reaches across the beginning of a word */
    bool strips_first;        /* decoding removes a space in front */
    int32_t byte_ids[256];    /* the token of one byte; -1: none */
    int32_t unknown;          /* the id of bytes without a token; -1: they are dropped */
    bool fuse_unknown;        /* one unknown for a run of them */
    bool whole_words;         /* a word that is a token becomes it, whatever the merges (ignore_merges) */
    buffer_ids before, after; /* special tokens that the post-processor puts around a text */
} bpe;

typedef struct bpe_scratch bpe_scratch;

void bpe_close(bpe *b);
AUTO_CLOSES(bpe, bpe_close)
bpe_scratch *bpe_scratch_open(void);
void bpe_scratch_close(bpe_scratch *s);

/* Normalizes: *text and *length become the normal form, in one of the two buffers or unmoved. */
status bpe_normalize(const bpe *b, buffer normal[2], const char **text, int64_t *length);

/* Appends the tokens of well-formed UTF-8; `plain`: special tokens in it are text like any other. A scratch serves one
 * bpe only. */
status bpe_encode(const bpe *b, bpe_scratch *s, buffer_ids *out, const char *text, int64_t length, bool plain);

/* Reads a Hugging Face tokenizer.json into a bpe. Refuses unsupported settings by their name in the file, so that no
 * text is encoded differently than its author meant. `name` comes first in the message of a failure. */
status bpe_json_open(bpe **out, const char *json, size_t length, const char *name);
