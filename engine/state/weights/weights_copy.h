/* Writes a model's weights to a new folder in either format, for `phalanx convert` and exports.
 *
 * Tensors stream through a few buffers, so that memory does not grow with the model. The folder is made under a
 * temporary name and renamed when all of it is on disk: it appears atomically.
 */
#pragma once

#include "engine/state/weights/weights.h"
#include "memory/scope.h"

typedef enum weights_format { WEIGHTS_HUGGINGFACE, WEIGHTS_PHALANX } weights_format;

enum { WEIGHTS_KEEP = -1 }; /* every tensor's own type */

typedef struct weights_copy_options {
    weights_format format;
    int type;            /* a dtype, or WEIGHTS_KEEP */
    int64_t shard_bytes; /* bytes of tensors per file; 0: 5 GB */
    bool replace;        /* replaces an existing model's folder when the new one is complete */
    const char *card;    /* README.md of a Hugging Face folder; NULL: none */
    /* gets the bytes written; a failure stops the copying and removes its files; may be NULL */
    status (*progress)(void *context, int64_t done, int64_t total);
    void *context;
} weights_copy_options;

/* Copies weights and tokenizer files. `to` must not exist, or be an empty folder, or one to replace. */
status weights_copy(weights *from, const char *to, const weights_copy_options *options);

/* A mixture-of-experts model upcycled from a dense one (2212.05055): each expert is a copy of the dense layer's MLP,
 * routers are drawn as in any fresh run, and all else is the dense model's. If weights sum to 1 over a token's experts
 * the first loss is the dense model's.
 */
typedef struct upcycle upcycle;

/* `from` must stay open as long as the result. A failure names the difference to `from` other than experts
 * (models/dense.h). */
status upcycle_open(upcycle **out, weights *from, const model_shape *shape);
void upcycle_close(upcycle *u);
AUTO_CLOSES(upcycle, upcycle_close)

/* Reads a rectangle of a tensor of the model with experts, except a router's, which stays as drawn. A state_reader. */
status upcycle_read(void *u, const rectangle *of, const box_memory *to);
