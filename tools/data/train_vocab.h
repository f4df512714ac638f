/* tokenize --train-vocab: a SentencePiece model trained on the inputs, shown on the way. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/documents.h"
#include "memory/status.h"

typedef struct train_vocab_options {
    const char *output; /* the model's file */
    const char *type;   /* "unigram" or "bpe" */
    int64_t vocab_size;
    int64_t total; /* bytes of the input files; 0: unknown */
    bool skip_bad; /* pass over bad records */
    bool quiet;
} train_vocab_options;

/* Reads all documents. A signal (tools/stop.h) ends the process. */
status train_vocab(const train_vocab_options *o, documents *d);
