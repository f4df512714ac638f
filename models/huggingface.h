/* Hugging Face's config.json: reading it into a model_shape, and writing one that transformers loads.
 *
 * Settings that the decoder cannot compute are refused by key and value, in one line; keys irrelevant to the
 * computation (dropout, initialisation, caching) are skipped. Absent keys have transformers' defaults. The ids of
 * special tokens, which are not part of a shape, travel beside it as a JSON object that belongs to the caller.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "memory/dtype.h"
#include "models/shape.h"

/* The keys that `tokens` may hold: bos_token_id, eos_token_id, pad_token_id, each a number or a list of them. */
extern const char *const huggingface_token_keys[]; /* ends with NULL */

/* Parses a config.json. `path` begins the messages. `tokens` (a new object) may be NULL. Failures set no output. */
status huggingface_parse(model_shape *shape, json_t **tokens, const char *text, size_t bytes, const char *path);

/* The same; `asked`, an object of the caller's, gets a member for each key that was asked for, whether the text has it
 * or not, up to the one that is refused. */
status huggingface_parse_asking(model_shape *shape, json_t **tokens, json_t *asked, const char *text, size_t bytes,
                                const char *path);

typedef enum huggingface_role {
    HUGGINGFACE_TAKEN,    /* it sets something of the shape, or is kept */
    HUGGINGFACE_DEMANDED, /* it must have one value, or one of two */
    HUGGINGFACE_SILENT,   /* the forward pass does not depend on it */
    HUGGINGFACE_UNKNOWN,  /* no reader asks for it */
} huggingface_role;

typedef struct huggingface_meaning {
    huggingface_role role;
    const char *becomes; /* keys of phalanx's configuration; "": none */
    const char *meaning; /* its meaning in words, or "" */
    const char *only[2]; /* a demanded key's allowed values as JSON; both NULL: it must be absent */
} huggingface_meaning;

/* Returns the meaning of a key of config.json under this architecture. Never fails. */
huggingface_meaning huggingface_means(shape_architecture architecture, const char *key);
/* Returns the keys that no forward pass depends on (keys.def), by index; NULL: there are no more. */
const char *huggingface_silent(int index);

/* Writes the text of a config.json, the caller's. `tokens` may be NULL. Fails if transformers' model of that name
 * cannot have this shape. */
status huggingface_text(char **out, const model_shape *shape, dtype type, const json_t *tokens);
