/* The manifest of a checkpoint says which rectangle of which tensor lies where, in which file, with which checksum.
 *
 * A manifest is JSON; its last line is the CRC32C of all before it, so that no damage goes unseen. It is built by
 * adding files and pieces, or read from a file; it belongs to its maker until manifest_free, with all names in it.
 *
 *     {"format":"phalanx checkpoint","version":1,"ranks":4,"run":"0123456789abcdef0123456789abcdef",
 *     "meta":{...},                                                        the caller's own
 *     "files":[{"name":"model-00000.safetensors","bytes":1234,"crc32c":"01234567"}, ...],
 *     "tensors":[{"section":"model","name":"lm_head.weight","dtype":"bf16","shape":[100,64],"pieces":[
 *       {"start":[0,0],"size":[50,64],"file":0,"offset":512,"bytes":6400,"crc32c":"89abcdef"}, ...]}, ...],
 *     "crc32c":"01234567"}
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/box.h"
#include "engine/system/direct.h"
#include "memory/dtype.h"
#include "memory/scope.h"
#include "memory/status.h"

#define MANIFEST_FORMAT  "phalanx checkpoint"
#define MANIFEST_VERSION 1
/* The text's end, which the checksum leaves out */
#define MANIFEST_TAIL       "\"crc32c\":\"%08x\"}\n"
#define MANIFEST_TAIL_BYTES 21

enum { MANIFEST_RUN = 33 }; /* bytes of a run's id: up to 32 hexadecimal digits */

typedef struct manifest_file {
    char *name; /* relative to the checkpoint's folder */
    int64_t bytes;
    uint32_t crc32c; /* checksum of the whole file */
    bool has_crc32c; /* older checkpoints have none */
} manifest_file;

typedef struct manifest_piece {
    box part; /* the rectangle within the tensor */
    int file; /* index into files */
    int64_t offset, bytes;
    uint32_t crc32c;
} manifest_piece;

typedef struct manifest_tensor {
    char *section, *name;
    dtype type;
    int dims;
    int64_t global[BOX_DIMS];
    manifest_piece *pieces;
    int count;
} manifest_tensor;

typedef struct manifest {
    int ranks;              /* number of ranks that wrote it */
    char run[MANIFEST_RUN]; /* id of one start of a run, the same in all its files; "": unknown */
    json_t *meta;
    manifest_file *files;
    int file_count;
    manifest_tensor *tensors; /* ordered by first appearance */
    int tensor_count;
    json_t *index; /* {"section/name": index into tensors} */
} manifest;

/* Makes an id that no other start has. */
status manifest_draw_run_id(char run[MANIFEST_RUN]);
bool manifest_is_run(const char *run); /* may be NULL */

manifest *manifest_make(int ranks);
void manifest_free(manifest *m);
AUTO_CLOSES(manifest, manifest_free)
/* Adds a file, takes its name, and returns the file's index. */
int manifest_add_file(manifest *m, const manifest_file *file);
/* Copies `of` (section, name, type, shape). Fails if the tensor is known with another shape or type. */
status manifest_add_piece(manifest *m, const manifest_tensor *of, const manifest_piece *piece);
/* Returns NULL if there is none. */
const manifest_tensor *manifest_find(const manifest *m, const char *section, const char *name);

/* Checks that every tensor is covered by its pieces once and wholly, and no two pieces share bytes of a file. `where`
 * begins the message. */
status manifest_check(const manifest *m, const char *where);
/* Checks coverage for one tensor, and sorts its pieces. */
status manifest_check_tensor(const manifest_tensor *t, const char *where);

/* Writes it atomically. */
status manifest_write(const manifest *m, const char *path);
/* Write it in parts, so that only one tensor is in memory: the head, every file, every tensor, the end. */
status manifest_text_head(direct *out, int ranks, const char *run, json_t *meta);
status manifest_text_file(direct *out, const manifest_file *file, bool first);
status manifest_text_tensor(direct *out, const manifest_tensor *t, bool first);
status manifest_text_end(direct *out);

/* Checks every field and the checksum; manifest_check() checks that the tensors are complete. */
status manifest_read(manifest **out, const char *path);
status manifest_parse(manifest **out, const char *text, int64_t bytes, const char *path);
