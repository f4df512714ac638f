/* Groups of keys of Hugging Face's config.json that are more than a number each, read into a model_shape and written
 * from it; with helpers that every reader of keys uses. Includers: models/huggingface*.c.
 *
 * Settings that cannot be computed are refused in one line by file, key and value.
 */
#pragma once

#include <jansson.h>

#include "models/shape.h"

typedef struct huggingface_reader {
    const json_t *root;
    const char *path; /* begins the messages */
    json_t *asked;    /* gets a member for each key of the root that was asked for, present or not; NULL: not wanted */
} huggingface_reader;

/* Returns a key of the root as it is written, null too; NULL if absent. Readers of keys of the root use this or a
 * function below, so that a reading knows which keys it took; keys.def, sizes.def or the demands state its meaning. */
const json_t *huggingface_said(const huggingface_reader *r, const char *key);
/* The same, NULL if absent or null. */
const json_t *huggingface_ask(const huggingface_reader *r, const char *key);

/* Returns a member of an object within the root: NULL if absent or null. */
const json_t *huggingface_get(const json_t *object, const char *key);
/* Returns the value as JSON, the caller's to free. */
char *huggingface_dump(const json_t *value);
/* Fails: key is value: why. */
status huggingface_refuse(const huggingface_reader *r, const char *key, const json_t *value, const char *why);
/* Fails: the key is missing, and models of the architecture need it. */
status huggingface_missing(const huggingface_reader *r, const model_shape *s, const char *key);
/* Reads a whole number from `low` on; an absent key is the fallback. Fails with `why` where the value is another. */
status huggingface_read_count(const huggingface_reader *r, int *out, const char *key, int low, int fallback,
                              const char *why);
/* Read a value; an absent key is the fallback. Fail where the value is of another type. */
status huggingface_read_bool(const huggingface_reader *r, bool *out, const char *key, bool fallback);
status huggingface_read_number(const huggingface_reader *r, double *out, const json_t *of, const char *key,
                               double fallback);

/* Read and write bases and scaling of rotary frequencies: rope_theta and rope_scaling (transformers 4), or both in
 * rope_parameters (5), a table for all layers or one a type of layers. Writing uses 5's words where s->rope_parameters
 * asks for them, else 4's, which 5 reads too. */
status huggingface_read_rope(const huggingface_reader *r, model_shape *s);
void huggingface_put_rope(json_t *root, const model_shape *s);

/* Read and write which layers see a window only, and its length. Needs s->layers. */
status huggingface_read_window(const huggingface_reader *r, model_shape *s);
void huggingface_put_window(json_t *root, const model_shape *s);
/* Read and write which layers do not rotate. */
status huggingface_read_unrotated(const huggingface_reader *r, model_shape *s);
void huggingface_put_unrotated(json_t *root, const model_shape *s);

/* A head's elements that do not rotate, beside qk_rope_head_dim that do, into s->head_size; and keys that must be there
 * where attention is latent. Needs s->rope_head_size. */
status huggingface_read_latent(const huggingface_reader *r, model_shape *s);
void huggingface_put_latent(json_t *root, const model_shape *s);

/* Read and write the number of experts, their layers, the router's weighing and the loss that balances it. Needs
 * s->layers. */
status huggingface_read_experts(const huggingface_reader *r, model_shape *s);
void huggingface_put_experts(json_t *root, const model_shape *s);
