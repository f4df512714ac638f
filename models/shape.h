/* The plain description of one decoder-only transformer: every size, and which traits its architecture fixes. There is
 * one decoder; an architecture is a row of architectures.def, a size a row of sizes.def, a weight a row of parts.def.
 *
 * A model_shape is a value, copied freely, without memory of its own, independent of devices, layouts and precision.
 */
#pragma once

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

/* Properties that an architecture fixes: a row of architectures.def. The last three are a model's defaults. */
typedef struct shape_traits {
    const char *name;          /* model.architecture and Hugging Face's model_type */
    const char *causal, *bare; /* transformers' classes: the decoder with its head, the decoder alone */
    shape_family family;
    uint64_t traits, keys; /* bit i: shape_trait i, shape_key i */
    bool tied_embeddings;
    double norm_epsilon;
    double rope_theta;
} shape_traits;

/* How rotary frequencies are scaled (rope.c). */
typedef enum shape_rope_kind {
    ROPE_LLAMA3,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_YARN,
    ROPE_LONGROPE,
    ROPE_KINDS
} shape_rope_kind;

/* Words of the kinds, Hugging Face's rope_type; NULL ends the list. */
extern const char *const shape_rope_words[ROPE_KINDS + 1];

/* The most frequencies with longrope factors of their own, enough for a head of 128 elements. */
enum { SHAPE_ROPE_FACTORS = 64 };

/* factor 0: not at all. */
typedef struct shape_rope_scaling {
    shape_rope_kind kind;
    double factor;
    int64_t original_max_sequence;                      /* llama3, yarn and longrope */
    double low_frequency_factor, high_frequency_factor; /* llama3 */
    double beta_fast, beta_slow;                        /* yarn */
    double mscale, mscale_all_dim;                      /* yarn in latent attention */
    double attention_factor;                            /* yarn and longrope */
    bool fractional;
    /* longrope: divisors of each frequency, in sequences up to the original length and in longer ones; 0 ends each
     * list */
    double short_factor[SHAPE_ROPE_FACTORS], long_factor[SHAPE_ROPE_FACTORS];
} shape_rope_scaling;

/* The types of sizes, by the word of their rows in sizes.def. */
#define SHAPE_INT    int
#define SHAPE_LONG   int64_t
#define SHAPE_NUMBER double
#define SHAPE_BOOL   bool

typedef struct model_shape {
    shape_architecture architecture;
#define FIELD_LAYER(kind, member) SHAPE_##kind member;
#define FIELD_MODEL(kind, member) SHAPE_##kind member;
#define FIELD_MEMBER(kind, member)
#define MODEL_SIZE(kind, member, low, high, of, ...) FIELD_##of(kind, member)
#include "models/sizes.def"
    shape_rope_scaling rope_scaling;
    double dropout; /* probability; after the embeddings and both residual branches */
} model_shape;

/* One layer of a model: layers may differ, and code that asks about a layer reads this. */
typedef struct layer_shape {
    uint64_t traits; /* which kind of attention and of mlp, with which norms and biases */
#undef FIELD_MODEL
#define FIELD_MODEL(kind, member)
#define MODEL_SIZE(kind, member, low, high, of, ...) FIELD_##of(kind, member)
#include "models/sizes.def"
#undef FIELD_LAYER
#undef FIELD_MODEL
#undef FIELD_MEMBER
    int64_t window;    /* a token sees this many tokens, itself included; 0: all before it */
    double rope_theta; /* base of the rotary frequencies; 0: no rotation */
    bool local;        /* rope_theta is the base of layers with a window */
} layer_shape;

/* Never fails for a value of the enumeration. */
const shape_traits *shape_traits_of(shape_architecture architecture);
/* True if the architecture has the trait; if its config.json has the key. */
bool shape_has(const model_shape *shape, shape_trait trait);
bool shape_has_key(shape_architecture architecture, shape_key key);

/* True if rotary frequencies are scaled in this way. */
bool shape_scales(const model_shape *shape, shape_rope_kind kind);

/* Default factor of cosines and sines under yarn and longrope; 0 for other kinds. */
double shape_attention_factor(const model_shape *shape);

/* Factor of scores under yarn in latent attention, beside that of cosines and sines; else 1. */
double shape_scores_factor(const model_shape *shape);

/* Elements of a head that rotate, where any do: the first ones, or the last where there is rope_head_size. */
int shape_rotated(const model_shape *shape);

/* Elements of a head's value. */
int shape_value_size(const layer_shape *layer);

/* Width of a token's cached row under latent attention: the latent and the rotated part of keys. */
int shape_latent_width(const layer_shape *layer);

/* Number of layers, plus one for an MTP module, which is numbered as the block after the last layer. */
int shape_blocks(const model_shape *shape);
/* Passes of the head over a token in training: one for the layers, and one for an MTP module. */
int shape_head_passes(const model_shape *shape);
/* Returns block `layer` of the model; -1: the shape that weights outside the layers see. */
layer_shape shape_layer(const model_shape *shape, int layer);
/* A model of `layers` layers that are all like layer `layer`. */
model_shape shape_repeating(const model_shape *shape, int layer, int layers);
/* Returns a model of `layers` layers that are all like layer `layer`. */
int shape_kinds(int *kind, const model_shape *shape);

/* Number of blocks with experts; number of these before block `layer`. */
int shape_routers(const model_shape *shape);
int shape_routers_before(const model_shape *shape, int layer);

/* SHAPE_ARCHITECTURES if no architecture has this name. */
shape_architecture shape_architecture_named(const char *name);

/* Fills in the values that are 0 and follow from others, by sizes.def. */
void shape_fill(model_shape *shape);

/* One line that names the impossible value, or STATUS_OK. */
status shape_check(const model_shape *shape);
