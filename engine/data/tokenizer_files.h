/* Tokenizers as files: found, opened and saved, in folders and beside data sets. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "engine/text/buffer.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/status.h"
#include "models/shape.h"

/* spec: "bytes"; a SentencePiece model, a tokenizer.json or a saved tokenizer, told apart by content; a folder that
 * holds one (tokenizer.model, tokenizer.bytes or tokenizer.json, the first of them that is there; but a tokenizer.json
 * beside a tokenizer.model, as AutoTokenizer does, unless it cannot be read or an export wrote it). Beside a
 * tokenizer.json a tokenizer_config.json is read. Files and folders may be a store's: s3://BUCKET/KEY, and
 * s3://BUCKET/PREFIX/ for a folder. */
status tokenizer_files_open(tokenizer **out, const char *spec);
/* Opens the tokenizer that tokenizer_files_save_beside left beside a data set, here or in a store (s3://). */
status tokenizer_files_open_beside(tokenizer **out, const char *prefix);
bool tokenizer_files_is_in(const char *folder);     /* true if a folder holds one */
bool tokenizer_files_is_beside(const char *prefix); /* true if one is beside a data set */

/* Copies the source file(s) into a folder, under the names that tokenizer_files_open looks for. */
status tokenizer_files_save(const tokenizer *t, const char *folder);
/* Saves them as PREFIX.tokenizer.json and so on. */
status tokenizer_files_save_beside(const tokenizer *t, const char *prefix);

/* Read and write the beginning of a data set's documents, recorded beside it in PREFIX.facts; unknown without it. */
status tokenizer_files_begin(tokenizer_begin *out, const char *prefix);
status tokenizer_files_save_begin(const char *prefix, tokenizer_begin begin);

/* Completes a Hugging Face folder, in which the tokenizer's own files are already, so that AutoTokenizer gives our ids:
 * tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json. Existing files stay, but for
 * a recorded beginning of a text; missing ones are written. `tokens`: bos_token_id and so on, for
 * generation_config.json. A tokenizer that has no exact counterpart is left as it is, with a warning. */
status tokenizer_export(const tokenizer *t, const char *folder, const model_shape *shape, const json_t *tokens);

/* Appends a tokenizer as Hugging Face's tokenizer.json, from which the `tokenizers` library gives our ids.
 *
 * A byte-level BPE is its own file, but for a recorded beginning of a text. The byte tokenizer becomes a byte-level BPE
 * without merges. A SentencePiece model becomes a Unigram or BPE model after a normalizer that marks spaces as the
 * model does; settings without an exact counterpart there are refused by name. In unigram models with scores of many
 * bits (sentencepiece_model_round) paths of nearly equal scores may be decided differently, for `tokenizers` adds in
 * double precision; of a character map it looks up whole graphemes first, so that rare sequences (a letter with marks
 * of another script) can become something else. */
status tokenizer_json_write(buffer *out, const tokenizer *t);
/* True if this tokenizer, too, takes names of special tokens within a text as text, where `tokenizers` by itself would
 * make them ids. */
bool tokenizer_json_splits_names(const tokenizer *t);
