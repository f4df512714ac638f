/* Byte-level byte pair encoding as Hugging Face's tokenizer.json describes it (GPT-2, Llama 3, Qwen and their kin).
 *
 * Text passes: added tokens that want the raw text -> normal form -> added tokens that want the normal form -> one or
 * more pre-tokenizer steps that cut it -> merges. A bpe is built by bpe_json.c, then immutable and shared by threads;
 * each brings a bpe_scratch, which also remembers the tokens of words seen lately. bpe_close frees what it points to.
 */
#ifndef PHALANX_ENGINE_TOKENIZER_BPE_H
#define PHALANX_ENGINE_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/tokenizer/added.h"
#include "engine/text/buffer.h"
#include "engine/tokenizer/merges.h"
#include "engine/tokenizer/pattern.h"
#include "engine/text/unicode.h"
#include "engine/tokenizer/vocabulary.h"
#include "memory/status.h"

/* One step of pre-tokenizing: cut at the matches of a pattern. */
typedef struct bpe_step {
    pattern *cut;                   /* NULL: does not cut */
    bool drop_matches, drop_others; /* what is not a pre-token */
    bool prefix_space;              /* before cutting, put a space in front of text that begins without one */
} bpe_step;

enum { BPE_STEPS = 8, BPE_FORMS = 4 };

typedef struct bpe {
    unicode_classes *classes;
    vocabulary *vocabulary; /* the model's tokens by their bytes, the added ones as well */
    merges *merges;
    added *raw, *normalized; /* added tokens looked for before and after normalization */
    bpe_step steps[BPE_STEPS];
    int step_count;
    unicode_form forms[BPE_FORMS]; /* normal forms to apply, in order */
    int form_count;
    int32_t byte_ids[256];    /* the token of one byte; -1: none */
    int32_t unknown;          /* the id of bytes without a token; -1: they are dropped */
    bool fuse_unknown;        /* one for a run of them */
    bool whole_words;         /* a word that is a token is that token, whatever the merges (ignore_merges) */
    buffer_ids before, after; /* special tokens that the post-processor puts around a text */
} bpe;

typedef struct bpe_scratch bpe_scratch;

void bpe_close(bpe *b);
bpe_scratch *bpe_scratch_open(void);
void bpe_scratch_close(bpe_scratch *s);

/* Append the tokens of well-formed UTF-8; `plain`: special tokens in it are text like any other. A scratch serves one
 * bpe only. */
status bpe_encode(const bpe *b, bpe_scratch *s, buffer_ids *out, const char *text, int64_t length, bool plain);

#endif
