/* The parts of phalanx tokenize: its inputs, a vocabulary that it trains, the records that it rejects. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/documents.h"
#include "memory/status.h"

/* The files that tokenize reads: those it is told, those of a list, those of folders.
 *
 * A folder stands for the files in it and below it whose names say that they hold text (.txt, .text, .md, .jsonl,
 * .ndjson, .json, each packed or not, .parquet, .arrow, .feather), in the order of their paths' bytes. Hidden files and
 * folders, and those that begin with an underscore as Spark's do, are left out. The same of objects below
 * s3://BUCKET/PREFIX/, whose slash at the end says that it is a folder. Inputs are the caller's until inputs_free.
 */
typedef struct inputs {
    char **paths; /* [count]; "-" is standard input */
    int count, room;
    bool quiet; /* do not say what of a folder was taken and left out */
} inputs;

/* Add a file or an object, a folder's files, or "-". */
status inputs_add(inputs *in, const char *path);
/* Add what a file names, a path a line; "-": what standard input names. */
status inputs_add_list(inputs *in, const char *list);
void inputs_free(inputs *in);

/* tokenize --train-vocab: a SentencePiece model trained on the inputs, shown on the way. */
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

/* The file of tokenize --skip-bad: a line for each bad record.
 *
 * A regular file appears whole with the data set, in rejects_close, or not at all; a device, a pipe or `-` (standard
 * output) takes the lines as they come. The caller owns it until rejects_close or rejects_abandon.
 */
typedef struct rejects rejects;

/* Fails where the file is one of the `count` inputs, as after `--skip-bad` without a name before a list of files, and
 * where it is there already, unless `force`. Changes nothing. */
status rejects_check(const char *path, char *const *files, int count, bool force);
status rejects_open(rejects **out, const char *path);
status rejects_add(rejects *r, const char *lines, int64_t length);
status rejects_close(rejects *r);
void rejects_abandon(rejects *r); /* NULL is accepted */
