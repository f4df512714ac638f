/* Shared by tokenize, merge and split: writes data sets, and copies documents and the tokenizer from one to another. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/files/indexed.h"
#include "engine/text/buffer.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/status.h"

/* Fails with one line if the output is an object of a store: outputs are files of this machine. */
status dataset_is_here(const char *option, const char *path);
/* Makes the folder of a data set to be written; fails if the data set exists, unless `force`. */
status dataset_prepare(const char *prefix, bool force);
/* Makes the folder of a file that will be written. */
status dataset_make_parent(const char *path);
/* Returns the vocabulary size from which a writer chooses the narrowest type of ids that fits all inputs. */
int64_t dataset_room(indexed *const *inputs, int count);
/* Copies a document; `ids` is the caller's scratch. */
status dataset_copy(indexed_writer *w, buffer_ids *ids, const indexed *x, int64_t document);
/* Closes the writer if `s` is OK, else abandons its output. */
status dataset_finish(status s, indexed_writer *w);
/* Opens the tokenizer beside a data set; NULL if there is none. A damaged one is a failure. */
status dataset_tokenizer(tokenizer **out, const char *prefix);
