/* Writing a model's weights to a new folder in either format: what `phalanx convert` does, and an export.
 *
 * Tensors stream through a few buffers, so that memory does not grow with the model. The folder is made under a
 * temporary name and renamed when all of it is on disk: it is there whole or not at all.
 */
#pragma once

#include "engine/state/weights/weights.h"

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
