/* The manifest of a checkpoint: which rectangle of which tensor lies where, in which file, with which checksum.
 *
 * A manifest is JSON whose last line is the CRC32C of all before it, so that no damage goes unseen. It is built by
 * adding files and pieces, or read from a file; it belongs to its maker until manifest_free, with all names in it.
 *
 *     {"format":"phalanx checkpoint","version":1,"ranks":4,"run":"0123456789abcdef0123456789abcdef",
 *     "meta":{...},                                                        what the caller had to say
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
/* after everything that the checksum covers */
#define MANIFEST_TAIL       "\"crc32c\":\"%08x\"}\n"
#define MANIFEST_TAIL_BYTES 21

enum { MANIFEST_RUN = 33 }; /* bytes of a run's id: up to 32 hexadecimal digits */

typedef struct manifest_file {
    char *name; /* within the checkpoint's folder */
    int64_t bytes;
    uint32_t crc32c; /* of the whole file */
    bool has_crc32c; /* checkpoints made before there was one have none */
} manifest_file;

typedef struct manifest_piece {
    box part; /* of the tensor */
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
    int count, capacity;
} manifest_tensor;

typedef struct manifest {
    int ranks;              /* that wrote it */
    char run[MANIFEST_RUN]; /* of one start of a run, the same in all its files; "": unknown */
    json_t *meta;
    manifest_file *files;
    int file_count, file_capacity;
    manifest_tensor *tensors; /* in the order of first appearance */
    int tensor_count, tensor_capacity;
    json_t *index; /* {"section/name": index into tensors} */
} manifest;

/* An id that no other start has. */
status manifest_draw_run(char run[MANIFEST_RUN]);

manifest *manifest_make(int ranks);
void manifest_free(manifest *m);
AUTO_CLOSES(manifest, manifest_free)
/* The index of the new file, whose name is the manifest's from now on. */
int manifest_add_file(manifest *m, const manifest_file *file);
/* Of `of` (section, name, type, shape) is made a copy. Fails if the tensor is known with another shape or type. */
status manifest_add_piece(manifest *m, const manifest_tensor *of, const manifest_piece *piece);
/* NULL if there is none */
const manifest_tensor *manifest_find(const manifest *m, const char *section, const char *name);

/* Every tensor is covered by its pieces once and wholly, and no two pieces share bytes of a file. `where` begins the
 * message. */
status manifest_check(const manifest *m, const char *where);
/* The first of the two for one tensor, whose pieces it sorts. */
status manifest_check_tensor(const manifest_tensor *t, const char *where);

/* Written atomically. */
status manifest_write(const manifest *m, const char *path);
/* The same in parts, for who has never more than one tensor at hand: the head, every file, every tensor, the end. */
status manifest_text_head(direct *out, int ranks, const char *run, json_t *meta);
status manifest_text_file(direct *out, const manifest_file *file, bool first);
status manifest_text_tensor(direct *out, const manifest_tensor *t, bool first);
status manifest_text_end(direct *out);

/* Every field is checked, and the checksum; not that the tensors are complete: that is manifest_check. */
status manifest_read(manifest **out, const char *path);
status manifest_parse(manifest **out, const char *text, int64_t bytes, const char *path);
