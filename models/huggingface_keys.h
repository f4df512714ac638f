/* Reads groups of keys of Hugging Face's config.json into a model_shape and writes them from it; a plain number is a
 * row of keys.def instead. Also helpers that every reader of keys uses. Includers: models/huggingface*.c.
 *
 * A setting that the engine does not implement is refused in one line that names file, key and value.
 */
#pragma once

#include <jansson.h>

#include "models/shape.h"

typedef struct huggingface_reader {
    const json_t *root;
    const char *path; /* begins the messages */
    json_t *asked;    /* gets a member for each key of the root that is looked up, present or not; NULL: not wanted */
} huggingface_reader;

/* Returns the root's value of a key, JSON's null too; NULL if absent. Readers use this or a function below, so that the
 * looked-up keys are recorded; keys.def, sizes.def or the demands state their meaning. */
const json_t *huggingface_raw_key(const huggingface_reader *r, const char *key);
/* As above, but NULL for JSON's null too. */
const json_t *huggingface_key(const huggingface_reader *r, const char *key);

/* Returns a member of an object within the root: NULL if absent or null. */
const json_t *huggingface_item(const json_t *object, const char *key);
/* Returns the value as JSON, the caller's to free. */
char *huggingface_value_text(const json_t *value);
/* Fails with "KEY is VALUE: WHY". */
status huggingface_refuse(const huggingface_reader *r, const char *key, const json_t *value, const char *why);
/* Fails because the key is missing, which models of the architecture need. */
status huggingface_refuse_missing(const huggingface_reader *r, const model_shape *s, const char *key);
/* Reads an integer >= `low`; `fallback` if the key is absent. Fails with `why` for any other value. */
status huggingface_read_count(const huggingface_reader *r, int *out, const char *key, int low, int fallback,
                              const char *why);
/* Read a value, `fallback` if the key is absent; fail if it has another type. */
status huggingface_read_bool(const huggingface_reader *r, bool *out, const char *key, bool fallback);
status huggingface_read_number(const huggingface_reader *r, double *out, const json_t *object, const char *key,
                               double fallback);

/* Read and write bases and scaling of rotary frequencies: rope_theta and rope_scaling (transformers 4), or both in
 * rope_parameters (5), one table for all layers or one for each type. Writes the form of 5 if s->rope_parameters is
 * set, else that of 4, which 5 reads too. */
status huggingface_read_rope(const huggingface_reader *r, model_shape *s);
void huggingface_put_rope(json_t *root, const model_shape *s);

/* Read and write the layers of sliding-window attention and the window's length. Needs s->layers. */
status huggingface_read_window(const huggingface_reader *r, model_shape *s);
void huggingface_put_window(json_t *root, const model_shape *s);
/* Read and write the layers without rotary embedding. */
status huggingface_read_unrotated(const huggingface_reader *r, model_shape *s);
void huggingface_put_unrotated(json_t *root, const model_shape *s);

/* Read and write the sizes of latent attention (MLA): qk_nope_head_dim as s->head_size, and the keys that it requires.
 * Needs s->rope_head_size. */
status huggingface_read_latent(const huggingface_reader *r, model_shape *s);
void huggingface_put_latent(json_t *root, const model_shape *s);

/* Read and write the number of experts, their layers, the router's scores and its balancing loss. Needs s->layers. */
status huggingface_read_experts(const huggingface_reader *r, model_shape *s);
void huggingface_put_experts(json_t *root, const model_shape *s);
