/* A C interface to the SentencePiece library: load, encode, train.
 *
 * A sentencepiece_processor is immutable and shared by threads. Decoding needs no library: sentencepiece_model.h has
 * the texts of all pieces.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/buffer.h"
#include "memory/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sentencepiece_processor sentencepiece_processor;

/* bytes: a model file that sentencepiece_model_open has accepted */
status sentencepiece_open(sentencepiece_processor **out, const void *bytes, int64_t length, const char *name);
void sentencepiece_close(sentencepiece_processor *p);

/* Appends the ids of well-formed UTF-8; length < 2^31. */
status sentencepiece_encode(const sentencepiece_processor *p, buffer_ids *out, const char *text, int64_t length);

/* Returns ids of reserved pieces; -1: the model has none. */
typedef struct sentencepiece_ids {
    int32_t unknown, bos, eos, pad;
} sentencepiece_ids;
sentencepiece_ids sentencepiece_reserved(const sentencepiece_processor *p);

typedef struct sentencepiece_training {
    int64_t vocab_size;
    const char *type;       /* "unigram" or "bpe" */
    int64_t most_sentences; /* more are sampled, by a fixed seed */
    int threads;            /* part of the result: sums of floating point numbers depend on it */
} sentencepiece_training;

/* Returns the next sentence to train on: false at the end. The text stays valid until the next call. */
typedef bool sentencepiece_next(void *context, const char **text, int64_t *length);

/* Trains a lossless model: no normalization, spaces kept, digits one by one, unseen characters as bytes. Ids: 0
 * unknown, 1 bos, 2 eos, then the bytes. Scores are rounded (sentencepiece_model_round). The same sentences give the
 * same model. */
status sentencepiece_train(buffer *model, const sentencepiece_training *how, sentencepiece_next *next, void *context);

#ifdef __cplusplus
}
#endif
