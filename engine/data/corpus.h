/* Encodes all documents in many threads. The results come in the documents' order, for any number of threads.
 *
 * One thread reads, `threads` encode batches of about a megabyte, the caller's thread receives. Memory is bounded by
 * the batches in progress, about two megabytes for each, and two long documents (a document is not divided).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/documents.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/status.h"

/* Receives a line (with its end) that locates and explains each bad record, in the documents' order. Called by the
 * caller's thread; a failure ends the whole. */
typedef status corpus_reject(void *context, const char *lines, int64_t length);

typedef struct corpus_settings {
    int threads;           /* threads that encode; at least 1 */
    int flags;             /* flags of tokenizer_encode */
    bool begin;            /* puts the tokenizer's bos before each document */
    bool end_of_document;  /* appends the tokenizer's end of document */
    corpus_reject *reject; /* leaves bad records out; NULL: the first one is a failure */
} corpus_settings;

typedef struct corpus_count {
    int64_t documents, bytes, tokens; /* bytes of text, unpacked and out of its JSON */
    int64_t malformed;                /* documents in which U+FFFD replaced malformed UTF-8 */
    int64_t bad;                      /* records without text; without `reject`, the one that is the failure */
} corpus_count;

/* Receives each document; a failure ends the whole. Called by the caller's thread. */
typedef status corpus_sink(void *context, const int32_t *ids, int64_t count);
/* Receives the progress ten times a second or more; a failure ends the whole. May be NULL. */
typedef status corpus_tick(void *context, const corpus_count *so_far);

/* Reports the first failure in the documents' order, and stops the documents after it. */
status corpus_encode(const tokenizer *t, documents *d, const corpus_settings *settings, corpus_count *out,
                     corpus_sink *sink, corpus_tick *tick, void *context);
