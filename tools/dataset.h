/* What tokenize, merge and split share: the data sets that they write, and documents copied from data sets to data sets
 * with the tokenizer beside them. */
#ifndef PHALANX_TOOLS_DATASET_H
#define PHALANX_TOOLS_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/files/indexed.h"
#include "engine/text/buffer.h"
#include "engine/text/tokenizer.h"
#include "memory/status.h"

/* Make the folder in which a data set will be; refuse to replace one that is there, unless by force. */
status dataset_prepare(const char *prefix, bool force);
/* Make the folder of a file that will be written. */
status dataset_make_parent(const char *path);
/* The vocabulary size by which a writer chooses the narrowest type that all inputs fit. */
int64_t dataset_room(indexed *const *inputs, int count);
/* `ids` is scratch, the caller's. */
status dataset_copy(indexed_writer *w, buffer_ids *ids, const indexed *x, int64_t document);
/* Close the writer if all went well so far, else abandon what it wrote. */
status dataset_finish(status s, indexed_writer *w);
/* The tokenizer beside a data set; NULL when there is none. One that is there but damaged is a failure. */
status dataset_tokenizer(tokenizer **out, const char *prefix);

#endif
