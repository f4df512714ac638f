/* A fragment lists one rank's part of a checkpoint, until the ranks' fragments are merged into its manifest.
 *
 * It is lines of text, so that writing and merging need no memory that grows with the model: tensors are ordered by
 * section and name, and merging takes the smallest of all ranks' next ones. The run's id, the checkpoint's name and the
 * ranks are in the first line: a fragment of another run, or of another save, is refused.
 *
 *     fragment 1 RUN NAME RANK RANKS          file BYTES CRC32C NAME          end CRC32C (of all before the line)
 *     tensor DTYPE DIMS SIZES... SECTION NAME          piece FILE OFFSET BYTES CRC32C STARTS... SIZES...
 *
 * A `fragment` maps a file for reading; the caller owns it until fragment_close.
 */
#pragma once

#include "engine/checkpoint/manifest.h"
#include "engine/system/mapping.h"

/* Identifies a fragment: run, checkpoint, rank. */
typedef struct fragment_owner {
    const char *run, *name; /* the run's id, hexadecimal or ""; the checkpoint's name, without spaces */
    int rank, ranks;
} fragment_owner;

/* ---- writing, in this order: the head, every file, every tensor followed by its pieces, the end ---- */

/* Returns the first line of a fragment, or of another kind of file that a rank owns; the caller frees it. */
char *fragment_head(const char *kind, const fragment_owner *owner);
status fragment_put_file(direct *out, const manifest_file *file);
status fragment_put_tensor(direct *out, const char *section, dtype type, const rectangle *of);
status fragment_put_piece(direct *out, int dims, const manifest_piece *piece);
/* The end, with the checksum of all before it */
#define FRAGMENT_TAIL       "end %08x\n"
#define FRAGMENT_TAIL_BYTES 13

/* Orders tensors in a fragment by section, then by name. */
int fragment_order(const char *section, const char *name, const char *other_section, const char *other_name);

/* ---- reading ---- */

/* A tensor's line; its strings are not terminated. */
typedef struct fragment_entry {
    const char *section, *name;
    int section_length, name_length;
    dtype type;
    int dims;
    int64_t global[BOX_DIMS];
} fragment_entry;

typedef struct fragment {
    mapping file;
    const char *at, *end; /* the next line; the beginning of the last one */
    const char *path;     /* path for messages; owned by the caller */
    int first_file;       /* manifest index of its first file */
    bool has_next;
    fragment_entry next; /* the tensor to which the next pieces belong */
} fragment;

/* Checks the checksum and the owner. */
status fragment_open(fragment *out, const char *path, const fragment_owner *owner);
/* Opens a fragment in memory that outlives it. */
status fragment_parse(fragment *out, const char *text, int64_t bytes, const char *path, const fragment_owner *owner);
void fragment_close(fragment *f);
/* Reads the next file into *out, with its name in the caller's FRAGMENT_NAME bytes; *there is false after the last. */
enum { FRAGMENT_NAME = 256 };
status fragment_next_file(fragment *f, manifest_file *out, bool *there);

/* A growing array for the pieces of one tensor; the caller frees `item`. */
typedef struct fragment_pieces {
    manifest_piece *item;
    int capacity;
} fragment_pieces;

/* Writes the files and tensors of all fragments as the body of a manifest, after its head. Every tensor must be covered
 * once. The fragments are read to their ends. */
status fragment_merge(direct *out, fragment *all, int count, fragment_pieces *pieces, const char *where);
