/* Checkpoints: tensors in pieces, written by many ranks, read by any number of others.
 *
 * A checkpoint is a folder of safetensors files and a manifest (manifest.h), which says which rectangle of which tensor
 * lies where, so that loading into another layout is intersecting rectangles. Tensors are known by a section ("model",
 * "master", "moment1", ...) and their Hugging Face name; their shape is the global one.
 *
 *     checkpoints/step-00000100/manifest.json, model-00000.safetensors (section-rank), moment1-00000.safetensors, ...
 *     checkpoints/latest                        a text file: the name of the newest whole checkpoint
 *
 * A checkpoint is written under a temporary name, every file and folder fsynced, then renamed, and `latest` last: when
 * anything fails or stops at any point, `latest` still names a whole one. An open checkpoint is the caller's until
 * checkpoint_close. One thread at a time may use it.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "memory/box.h"
#include "engine/checkpoint/manifest.h"
#include "memory/dtype.h"
#include "memory/scope.h"
#include "memory/status.h"

/* Makes the bytes of a piece's `at.data` readable between the two calls, for data that is not in host memory. */
typedef struct checkpoint_source {
    void *(*borrow)(void *context, const void *data, int64_t bytes); /* NULL: `data` is readable itself */
    void (*give_back)(void *context, void *borrowed, const void *data, int64_t bytes);
    void *context;
} checkpoint_source;

/* One rank's part of a tensor. A piece without elements is allowed, and left out. */
typedef struct checkpoint_piece {
    const char *section; /* letters, digits, underscores */
    rectangle of;
    box_memory at; /* only read; its type is the stored one; a transposed layout is stored row-major */
    checkpoint_source source;
} checkpoint_piece;

/* Returns the number of bytes from a piece's first element to its last. */
int64_t checkpoint_extent(const checkpoint_piece *p);

/* Waits for all ranks; fails on every rank, with a message that names the rank, if `mine` is a failure on any. */
typedef status checkpoint_barrier(void *context, status mine);

/* One rank's part of a checkpoint. */
typedef struct checkpoint_share {
    const checkpoint_piece *pieces;
    int count;
    int rank, ranks;
    const char *run; /* an id of hexadecimal digits, the same on all ranks, or "" */
    bool any_values; /* also writes values that are not finite, for dumps */
} checkpoint_share;

/* Collective over the share's ranks. `folder` (made if need be) is a run's checkpoints folder, `name` that of the new
 * checkpoint; an older one of that name is replaced. `meta`, of rank 0, is the rest of the state: step, data position,
 * ... The pieces of all ranks must cover each tensor exactly once. `barrier` may be NULL for one rank. It fails on
 * every rank or on none; then `latest` is unchanged, and temporary files have been removed. */
status checkpoint_write(const char *folder, const char *name, const checkpoint_share *mine, json_t *meta,
                        checkpoint_barrier *barrier, void *context);

/* ---- reading ---- */

typedef struct checkpoint checkpoint;

/* `path`: the folder of a checkpoint, a checkpoints folder, or a run's folder (the latter two: the latest). */
status checkpoint_open(checkpoint **out, const char *path);
void checkpoint_close(checkpoint *c);
AUTO_CLOSES(checkpoint, checkpoint_close)
/* Allows later reads of values that are not finite. */
void checkpoint_accept_any(checkpoint *c);
/* Returns the checkpoint's own folder. */
const char *checkpoint_folder(const checkpoint *c);
const manifest *checkpoint_manifest(const checkpoint *c);
/* Returns a few words that tell it from every other checkpoint, wherever its copies lie; the caller frees them. */
char *checkpoint_identity(const checkpoint *c);
/* Returns the writer's meta, or an empty object. It belongs to `c`. */
json_t *checkpoint_meta(const checkpoint *c);
int checkpoint_tensors(const checkpoint *c);
const manifest_tensor *checkpoint_at(const checkpoint *c, int i);
/* NULL if there is none */
const manifest_tensor *checkpoint_find(const checkpoint *c, const char *section, const char *name);
/* Fails, by name, if the section lacks one of these tensors or has another. */
status checkpoint_expect(const checkpoint *c, const char *section, const char *const *names, int count);

/* Reads a rectangle of a tensor of shape of->global, converted to to->type. Verifies once, of every stored piece that
 * it touches, the checksum and that the values are finite; they must be so after the conversion, too. */
status checkpoint_read(checkpoint *c, const char *section, const rectangle *of, const box_memory *to);
/* Verifies the checksum of every piece and of every file, and that all are of one run. */
status checkpoint_verify(checkpoint *c);
