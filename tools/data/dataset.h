/* Shared by tokenize, merge and split: writes data sets, and copies documents and the tokenizer from one to another. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/files/indexed.h"
#include "engine/text/buffer.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/status.h"

/* Fails with one line if the output is an object of a store, where only data sets are written. */
status dataset_is_here(const char *option, const char *path);

/* A data set to be written: here, or in an object store, for which it is first made in a folder below $TMPDIR. */
typedef struct dataset_output {
    const char *name; /* PREFIX, or s3://BUCKET/PREFIX */
    char *prefix;     /* where to write it here */
    char *folder;     /* a store's: the folder of that; else NULL */
} dataset_output;

/* Makes the folder of a data set; fails if the data set exists, unless `force`. The name must outlive the output. */
status dataset_output_open(dataset_output *out, const char *name, bool force);
/* Uploads a store's data set if `s` is OK, its index last, and frees the output; one that is all zero is accepted. */
status dataset_output_end(dataset_output *out, status s);
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
