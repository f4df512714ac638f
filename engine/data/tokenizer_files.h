/* Tokenizers as files: found, opened and saved, in folders and beside data sets. */
#pragma once

#include <stdbool.h>

#include "engine/tokenizer/tokenizer.h"

/* spec: "bytes"; a SentencePiece model, a tokenizer.json or a saved tokenizer, told apart by content; a folder that
 * holds one (tokenizer.model, tokenizer.bytes or tokenizer.json, the first of them that is there; but a tokenizer.json
 * beside a tokenizer.model, as AutoTokenizer does, unless it cannot be read or an export wrote it). Beside a
 * tokenizer.json a tokenizer_config.json is read. Files and folders may be a store's: s3://BUCKET/KEY, and
 * s3://BUCKET/PREFIX/ for a folder. */
status tokenizer_files_open(tokenizer **out, const char *spec);
/* The tokenizer that tokenizer_files_save_beside left beside a data set, here or in an object store (s3://). */
status tokenizer_files_open_beside(tokenizer **out, const char *prefix);
bool tokenizer_files_is_in(const char *folder);     /* whether a folder holds one */
bool tokenizer_files_is_beside(const char *prefix); /* whether there is one beside a data set */

/* Write a copy of the source file(s) into a folder, under the names that tokenizer_files_open looks for. */
status tokenizer_files_save(const tokenizer *t, const char *folder);
/* The same as PREFIX.tokenizer.json and so on. */
status tokenizer_files_save_beside(const tokenizer *t, const char *prefix);
