/* Hugging Face's config.json: reading it into a model_shape, and writing one that transformers loads.
 *
 * What the decoder cannot compute is refused by key and value, in one line; keys that say nothing about the computation
 * (dropout, initialisation, caching) are passed over. Absent keys mean what they mean to transformers. The ids of
 * special tokens, which are not part of a shape, travel beside it as a JSON object that belongs to the caller.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "memory/dtype.h"
#include "models/shape.h"

/* The keys that `tokens` may hold: bos_token_id, eos_token_id, pad_token_id, each a number or a list of them. */
extern const char *const huggingface_token_keys[]; /* ends with NULL */

/* `path` begins the messages. `tokens` (a new object) may be NULL. On failure nothing is set. */
status huggingface_parse(model_shape *shape, json_t **tokens, const char *text, size_t bytes, const char *path);

/* The same; `asked`, an object of the caller's, gets a member for each key that was asked for, whether the text has it
 * or not, up to the one that is refused. */
status huggingface_parse_asking(model_shape *shape, json_t **tokens, json_t *asked, const char *text, size_t bytes,
                                const char *path);

typedef enum huggingface_role {
    HUGGINGFACE_TAKEN,    /* it says something about the shape, or is kept */
    HUGGINGFACE_DEMANDED, /* it must have one value, or one of two */
    HUGGINGFACE_SILENT,   /* it says nothing about the forward pass */
    HUGGINGFACE_UNKNOWN,  /* no reader asks for it */
} huggingface_role;

typedef struct huggingface_meaning {
    huggingface_role role;
    const char *becomes; /* keys of phalanx's configuration; "": none */
    const char *meaning; /* in words, or "" */
    const char *only[2]; /* of what is demanded: its values as JSON; both NULL: it must be absent */
} huggingface_meaning;

/* What a key of config.json means where the architecture is this one. Never fails. */
huggingface_meaning huggingface_means(shape_architecture architecture, const char *key);
/* The keys that say nothing about any forward pass (keys.def), by index; NULL: there are no more. */
const char *huggingface_silent(int index);

/* The text of a config.json, the caller's. `tokens` may be NULL. Fails if transformers' model of that name cannot be of
 * this shape. */
status huggingface_text(char **out, const model_shape *shape, dtype type, const json_t *tokens);
