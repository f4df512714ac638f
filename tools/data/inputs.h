/* The files that tokenize reads: those it is told, those of a list, those of folders.
 *
 * A folder stands for the files in it and below it whose names say that they hold text (.txt, .text, .md, .jsonl,
 * .ndjson, .json, each packed or not, .parquet, .arrow, .feather), in the order of their paths' bytes. Hidden files and
 * folders, and those that begin with an underscore as Spark's do, are left out. The same of objects below
 * s3://BUCKET/PREFIX/, whose slash at the end says that it is a folder. Inputs are the caller's until inputs_free.
 */
#pragma once

#include <stdbool.h>

#include "memory/status.h"

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
