/* The plain description of one decoder-only transformer: every size, and the few choices in which the architectures
 * differ. There is one decoder; an architecture is a row of traits in shape.c and a family of checkpoint names.
 *
 * A model_shape is a value: copied freely, owns nothing. It says nothing about devices, layouts or precision.
 */
#ifndef PHALANX_MODELS_SHAPE_H
#define PHALANX_MODELS_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

typedef enum shape_architecture {
    SHAPE_GPT2,
    SHAPE_LLAMA,
    SHAPE_MISTRAL,
    SHAPE_QWEN2,
    SHAPE_QWEN3,
    SHAPE_ARCHITECTURES
} shape_architecture;

typedef enum shape_norm {
    SHAPE_LAYER_NORM, /* (x - mean) / sqrt(variance + epsilon) * weight + bias */
    SHAPE_RMS_NORM,   /* x / sqrt(mean(x^2) + epsilon) * weight */
} shape_norm;

/* What an architecture fixes. The last three are what a model gets when nobody says otherwise. */
typedef struct shape_traits {
    const char *name; /* as in model.architecture and Hugging Face's model_type */
    shape_norm norm;
    bool learned_positions; /* a table of position embeddings; otherwise rotary */
    bool gated;             /* down(silu(gate x) * up x); otherwise down(gelu_tanh(up x)) */
    bool bias_qkv;
    bool bias_linear; /* on the attention's output and on the mlp */
    bool qk_norm;     /* RMS norm of each head's query and key, before the rotation */
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
    bool tied_embeddings;   /* the output projection is the embedding table */
    double rope_theta;
    shape_rope_scaling rope_scaling;
    double norm_epsilon;
    double dropout; /* probability; after the embeddings and both residual branches */
} model_shape;

/* Never fails for a value of the enumeration. */
const shape_traits *shape_traits_of(shape_architecture architecture);

/* SHAPE_ARCHITECTURES if no architecture has this name. */
shape_architecture shape_architecture_named(const char *name);

/* Fill in what follows from the rest where it is 0: head_size = hidden_size / heads, kv_heads = heads, ffn_size =
 * 4 hidden_size or, for gated mlps, 8/3 hidden_size rounded up to a multiple of 256 (Llama's rule), and rope_theta and
 * norm_epsilon of the architecture. */
void shape_fill(model_shape *shape);

/* One line that names the impossible value, or STATUS_OK. */
status shape_check(const model_shape *shape);

/* Exact number of parameters, tied ones counted once, without any padding. */
int64_t shape_parameters(const model_shape *shape);

#endif
