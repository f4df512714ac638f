/* The plain description of one decoder-only transformer: every size, and which traits its architecture fixes. There is
 * one decoder; an architecture is a row of architectures.def, a weight a row of parts.def.
 *
 * A model_shape is a value: copied freely, owns nothing. It says nothing about devices, layouts or precision.
 */
#ifndef PHALANX_MODELS_SHAPE_H
#define PHALANX_MODELS_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

typedef enum shape_architecture {
#define ARCHITECTURE(name, ...) SHAPE_##name,
#include "models/architectures.def"
    SHAPE_ARCHITECTURES
} shape_architecture;

typedef enum shape_trait {
#define TRAIT(name, ...) TRAIT_##name,
#include "models/architectures.def"
    TRAIT_COUNT
} shape_trait;

typedef enum shape_key {
#define KEY(name, ...) KEY_##name,
#include "models/architectures.def"
    KEY_COUNT
} shape_key;

/* Families of names. */
typedef enum shape_family {
#define FAMILY(name, ...) FAMILY_##name,
#include "models/architectures.def"
    FAMILY_COUNT
} shape_family;

/* What an architecture fixes: a row of architectures.def. The last three are what a model gets when nobody says
 * otherwise. */
typedef struct shape_traits {
    const char *name;          /* as in model.architecture and Hugging Face's model_type */
    const char *causal, *bare; /* transformers' classes: the decoder with its head, the decoder alone */
    shape_family family;
    uint64_t traits, keys; /* bit i: shape_trait i, shape_key i */
    bool tied_embeddings;
    double norm_epsilon;
    double rope_theta;
} shape_traits;

/* Llama 3's scaling of the rotary frequencies. factor 0: off. */
typedef struct shape_rope_scaling {
    double factor;
    double low_frequency_factor, high_frequency_factor;
    int64_t original_max_sequence;
} shape_rope_scaling;

typedef struct model_shape {
    shape_architecture architecture;
    int layers;
    int heads, kv_heads; /* kv_heads divides heads */
    int head_size;       /* heads * head_size need not equal hidden_size */
    int64_t hidden_size;
    int64_t ffn_size; /* width of one branch: gate and up are [ffn_size, hidden_size] each */
    int64_t vocab_size;
    int64_t max_sequence;
    int64_t sliding_window; /* a token sees this many tokens, itself included; 0: all before it */
    /* Whatever the window, the first layers see all tokens before theirs, and so does the last of each so many; 0: none
     * does. */
    int full_first, full_every;
    bool tied_embeddings; /* the output projection is the embedding table */
    double rope_theta;
    shape_rope_scaling rope_scaling;
    double norm_epsilon;
    double dropout; /* probability; after the embeddings and both residual branches */
} model_shape;

/* One layer of a model, as everybody reads it who asks what a layer is: layers may differ. */
typedef struct layer_shape {
    uint64_t traits; /* which kind of attention and of mlp, with which norms and biases */
    int heads, kv_heads, head_size;
    int64_t hidden_size, ffn_size;
    int64_t window;    /* a token sees this many tokens, itself included; 0: all before it */
    double rope_theta; /* base of the rotary frequencies; 0: nothing is rotated */
} layer_shape;

/* Never fails for a value of the enumeration. */
const shape_traits *shape_traits_of(shape_architecture architecture);
/* Does the architecture have the trait; has its config.json the key? */
bool shape_has(const model_shape *shape, shape_trait trait);
bool shape_has_key(shape_architecture architecture, shape_key key);

/* Layer `layer` of the model; -1: what the weights see that are of no layer. */
layer_shape shape_layer(const model_shape *shape, int layer);
/* A model of `layers` layers that are all like layer `layer`. */
model_shape shape_repeating(const model_shape *shape, int layer, int layers);
/* The kinds of layers, numbered as they come: kind[layer] of every layer of the model. Returns how many there are. */
int shape_kinds(int *kind, const model_shape *shape);

/* SHAPE_ARCHITECTURES if no architecture has this name. */
shape_architecture shape_architecture_named(const char *name);

/* Fill in what follows from the rest where it is 0: head_size = hidden_size / heads, kv_heads = heads, ffn_size =
 * 4 hidden_size or, for gated mlps, 8/3 hidden_size rounded up to a multiple of 256 (Llama's rule), and rope_theta and
 * norm_epsilon of the architecture. */
void shape_fill(model_shape *shape);

/* One line that names the impossible value, or STATUS_OK. */
status shape_check(const model_shape *shape);

#endif
