/* For tokenize, merge and split: writing data sets, and copying documents and the tokenizer from one data set to
 * another. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/files/indexed.h"
#include "engine/text/buffer.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/status.h"

/* What is written is a file of this machine, and no object of a store: one line of a failure says so. */
status dataset_is_here(const char *option, const char *path);
/* Make the folder of a data set to be written; fails where there is one already, unless `force`. */
status dataset_prepare(const char *prefix, bool force);
/* Make the folder of a file that will be written. */
status dataset_make_parent(const char *path);
/* The vocabulary size from which a writer chooses the narrowest type of ids that fits all inputs. */
int64_t dataset_room(indexed *const *inputs, int count);
/* `ids` is scratch, the caller's. */
status dataset_copy(indexed_writer *w, buffer_ids *ids, const indexed *x, int64_t document);
/* Close the writer if all went well so far, else abandon what it wrote. */
status dataset_finish(status s, indexed_writer *w);
/* The tokenizer beside a data set; NULL when there is none. A damaged one is a failure. */
status dataset_tokenizer(tokenizer **out, const char *prefix);
