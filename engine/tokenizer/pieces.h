/* Encoding by a SentencePiece model without the library, several times as fast: unigram (the best path by Viterbi, in
 * the same floating point arithmetic as the library's since 0.2) and BPE (merges word by word).
 *
 * Models that need more than that (user-defined pieces, spaces as suffixes) are left to the library. A pieces is
 * immutable and shared by threads, each with its own pieces_scratch.
 */
#pragma once

#include <stdint.h>

#include "engine/text/buffer.h"
#include "engine/tokenizer/sentencepiece_model.h"

typedef struct pieces pieces;
typedef struct pieces_scratch pieces_scratch;

/* Returns NULL if the model needs the library. The model must outlive the pieces. */
pieces *pieces_open(const sentencepiece_model *m);
void pieces_close(pieces *p);

pieces_scratch *pieces_scratch_open(void);
void pieces_scratch_close(pieces_scratch *s);

/* Appends the ids of well-formed UTF-8; length < 2^31 - 1. */
void pieces_encode(const pieces *p, pieces_scratch *s, buffer_ids *out, const char *text, int64_t length);
