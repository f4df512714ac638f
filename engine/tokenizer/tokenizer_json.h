/* A tokenizer as Hugging Face's tokenizer.json: what the `tokenizers` library makes of it has our ids.
 *
 * A byte-level BPE is its own file. The byte tokenizer becomes a byte-level BPE without merges. A SentencePiece model
 * becomes a Unigram or BPE model after a normalizer that marks spaces as the model does; what has no exact counterpart
 * there is refused by name. In unigram models with scores of many bits (sentencepiece_model_round) paths of nearly
 * equal scores may be decided differently, for `tokenizers` adds in double precision; of a character map it looks up
 * whole graphemes first, so that rare sequences (a letter with marks of another script) can become something else.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "engine/text/buffer.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/status.h"

/* Append the file's text. */
status tokenizer_json_write(buffer *out, const tokenizer *t);

/* What that file calls a special token: a JSON string, the caller's; null for the id -1. */
json_t *tokenizer_json_name(const tokenizer *t, int32_t id);

/* Whether names of special tokens within a text are text to this tokenizer, too, where `tokenizers` would by itself
 * make them ids. */
bool tokenizer_json_splits_names(const tokenizer *t);
