/* Writing a model's weights to a new folder in either format: what `phalanx convert` does, and an export.
 *
 * Tensors stream through a few buffers, so that memory does not grow with the model. The folder is made under a
 * temporary name and renamed when all of it is on disk: it is there whole or not at all.
 */
#pragma once

#include "engine/state/weights/weights.h"
#include "memory/scope.h"

typedef enum weights_format { WEIGHTS_HUGGINGFACE, WEIGHTS_PHALANX } weights_format;

enum { WEIGHTS_KEEP = -1 }; /* every tensor's own type */

typedef struct weights_copy_options {
    weights_format format;
    int type;            /* a dtype, or WEIGHTS_KEEP */
    int64_t shard_bytes; /* tensors of one file; 0: 5 GB */
    bool replace;        /* a model's folder that is there is replaced when the new one is whole */
    const char *card;    /* README.md of a Hugging Face folder; NULL: none */
    /* bytes written; a failure ends the copying, and nothing is left of it; may be NULL */
    status (*progress)(void *context, int64_t done, int64_t total);
    void *context;
} weights_copy_options;

/* `to` must not exist, or be an empty folder, or one to replace. Tokenizer files are copied along. */
status weights_copy(weights *from, const char *to, const weights_copy_options *options);

/* A model with experts that begins as a dense one (2212.05055): each expert is a copy of the dense layer's mlp, routers
 * are drawn as in any fresh run, and all else is the dense model's. With weights that sum to 1 over a token's experts
 * the first loss is the dense model's.
 */
typedef struct upcycle upcycle;

/* `from` must stay open as long as the result. A failure names what keeps the model from being `from`'s but for its
 * experts (models/dense.h). */
status upcycle_open(upcycle **out, weights *from, const model_shape *shape);
void upcycle_close(upcycle *u);
AUTO_CLOSES(upcycle, upcycle_close)

/* Reads a rectangle of a tensor of the model with experts. A state_reader; a router's is left as it is, drawn. */
status upcycle_read(void *u, const rectangle *of, const box_memory *to);
