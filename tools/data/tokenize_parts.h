/* The parts of phalanx tokenize: its inputs, the vocabulary that it trains, the records that it rejects. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/documents.h"
#include "memory/status.h"

/* The files that tokenize reads: named ones, those in lists and those in folders.
 *
 * A folder stands for the files in it and below it with a name of a text file (.txt, .text, .md, .jsonl, .ndjson,
 * .json, each packed or not, .parquet, .arrow, .feather), in byte order of their paths. Hidden files and folders are
 * left out, and so are names that begin with an underscore, as Spark's do. The same holds for objects below
 * s3://BUCKET/PREFIX/; the slash at the end marks a folder. The caller owns the inputs until inputs_free.
 */
typedef struct inputs {
    char **paths; /* [count]; "-" is standard input */
    int count;
    bool quiet; /* suppresses the report of files taken and left out */
} inputs;

/* Adds a file or an object, a folder's files, or "-". */
status inputs_add(inputs *in, const char *path);
/* Adds the paths that a file lists, one a line; "-": standard input lists them. */
status inputs_add_list(inputs *in, const char *list);
void inputs_free(inputs *in);

/* tokenize --train-vocab: trains a SentencePiece model on the inputs and reports its progress. */
typedef struct train_vocab_options {
    const char *output; /* file of the trained model */
    const char *type;   /* "unigram" or "bpe" */
    int64_t vocab_size;
    int64_t total; /* bytes of the input files; 0: unknown */
    bool skip_bad; /* skip bad records */
    bool quiet;
} train_vocab_options;

/* Reads all documents. A signal (tools/stop.h) ends the process. */
status train_vocab(const train_vocab_options *o, documents *d);

/* The file of tokenize --skip-bad: a line for each bad record.
 *
 * A regular file appears whole with the data set, in rejects_close, or not at all; a device, a pipe or `-` (standard
 * output) takes the lines as they come. The caller owns it until rejects_close or rejects_abandon.
 */
typedef struct rejects rejects;

/* Fails if the file is one of the `count` inputs, as after `--skip-bad` without a name before a list of files, or if it
 * exists, unless `force`. Changes no file. */
status rejects_check(const char *path, char *const *files, int count, bool force);
status rejects_open(rejects **out, const char *path);
status rejects_add(rejects *r, const char *lines, int64_t length);
status rejects_close(rejects *r);
void rejects_abandon(rejects *r); /* NULL is accepted */
