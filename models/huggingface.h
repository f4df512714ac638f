/* Hugging Face's config.json: reading it into a model_shape, and writing one that transformers loads.
 *
 * What the decoder cannot compute is refused by key and value, in one line; keys that say nothing about the computation
 * (dropout, initialisation, caching) are passed over. Absent keys mean what they mean to transformers. The ids of
 * special tokens, which are not part of a shape, travel beside it as a JSON object that belongs to the caller.
 */
#ifndef PHALANX_MODELS_HUGGINGFACE_H
#define PHALANX_MODELS_HUGGINGFACE_H

#include <jansson.h>
#include <stddef.h>

#include "memory/dtype.h"
#include "models/shape.h"

/* The keys that `tokens` may hold: bos_token_id, eos_token_id, pad_token_id, each a number or a list of them. */
extern const char *const huggingface_token_keys[]; /* ends with NULL */

/* `path` begins the messages. `tokens` (a new object) may be NULL. On failure nothing is set. */
status huggingface_parse(model_shape *shape, json_t **tokens, const char *text, size_t bytes, const char *path);

/* The text of a config.json, the caller's. `tokens` may be NULL. Fails if transformers' model of that name cannot be of
 * this shape. */
status huggingface_text(char **out, const model_shape *shape, dtype type, const json_t *tokens);

#endif
