/* Layers: functions that record the forward pass of one part of the model, and the parameters each part reads.
 *
 * A layer takes a recorder and tensors, records ops and returns its output; it never spells out a backward pass. All
 * parameters are owned by the model that built the structs below. Activations are [tokens, features], the samples of a
 * micro-batch end to end; with sequence parallelism a residual stream is a shard over tokens.
 */
#pragma once

#include "kernels/record/record.h"
#include "layers/balance.h"
#include "layers/capacity.h"

enum layer_input {
#define INPUT(name, ...) INPUT_##name,
#include "layers/inputs.def"
    INPUT_COUNT,
};

enum layer_value {
#define VALUE(name, ...) VALUE_##name,
#include "layers/values.def"
    VALUE_COUNT,
};

/* The sizes that rows of values.def name; 0: there is no such value. */
typedef struct layer_sizes {
    dtype compute;         /* operand type of products */
    int64_t rope[3];       /* positions, columns, and positions of the windows' own table */
    int64_t logits[2];     /* samples that are decoded, and this rank's rows of the vocabulary */
    int64_t over;          /* capacity buckets */
    int64_t routers;       /* 1 where the model has experts, else 0 */
    int64_t choices;       /* experts of all layers that have them */
    int64_t mtp, clips;    /* 1 where an MTP module trains; where QK-clip notes scores */
    int64_t max_logits[2]; /* sizes under QK-clip: layers of the rank that attend, and their heads */
} layer_sizes;

typedef enum layer_mixer {
#define MIXER(name, ...) MIXER_##name,
#include "layers/mixers.def"
    MIXER_COUNT,
} layer_mixer;

/* Communication choices, where two ways lead to the same values. */
typedef struct layer_transfers {
    bool latents; /* context ranks gather latents and expand all; else they gather keys and values */
    bool slots;   /* where ranks divide experts, tokens travel in slots; else all tokens are gathered */
} layer_transfers;

/* Tensors that the host gives to a program and reads back: all of a step's, or one layer's of one micro-batch. */
typedef struct layer_inputs {
    union {
        struct {
#define INPUT(name, ...) tensor *name;
#include "layers/inputs.def"
        };
        /* int32 [micro-batches, tokens of a micro-batch]; no rows: not given; of a layer [tokens], or NULL */
        tensor *ids[INPUT_COUNT];
    };
    union {
        struct {
#define VALUE(name, ...) tensor *name;
#include "layers/values.def"
        };
        tensor *value[VALUE_COUNT];
    };
    tensor *const *states; /* decoding: states of the mixers, each block's from its `state` on; else NULL */
    int sequence;          /* tokens of a sample */
    int64_t micro_batch;   /* tokens of a micro-batch, of all ranks that divide them */
    int run;               /* length of this rank's runs of neighbouring tokens of a sample; 0: whole samples */
    bool zigzag;           /* zig-zag shards of samples: run i and the i-th last, on each rank that divides them */
    layer_transfers transfers;
    float epsilon;                     /* added to mean squares of norms */
    double router_loss, router_z_loss; /* coefficients; 0: there is none */
    layer_balance router_over;
    int routers; /* blocks with experts, of the model */
    bool mtp;    /* the MTP module computes, too */
    float dropout;
} layer_inputs;

typedef struct norm_layer {
    const parameter *weight, *bias; /* bias NULL: RMS norm */
    float offset;                   /* RMS norm: added to the weight */
} norm_layer;

/* Keys and values of all heads are products of one row a token, the latent, and so may be queries (2405.04434). */
typedef struct latent_layer {
    const parameter *q_down, *q_norm; /* [q rank, hidden], [q rank]; NULL: queries are products of the block's input */
    const parameter *q_up;            /* [heads head_size, q rank] of this rank's heads */
    const parameter *kv_down;         /* [rank + rotated, hidden]: the latent, then the rotated elements of all keys */
    const parameter *q_down_bias, *kv_down_bias; /* biases of these two products; or NULL */
    const parameter *kv_norm;                    /* [rank] */
    const parameter *kv_up; /* [heads (head_size - rotated) + heads v_head_size, rank]: all keys, all values */
    int rank, rotated;      /* rotated: the last elements of a head of q and k */
} latent_layer;

typedef struct attention_layer {
    const parameter
        *qkv;            /* [(heads + 2 kv_heads) head_size, hidden]: this rank's q heads, k heads, v heads; where there
                             are latents, q heads alone or NULL */
    latent_layer latent; /* kv_up NULL: there is none */
    const parameter *qkv_bias, *q_norm, *k_norm; /* or NULL */
    const parameter *sinks;                      /* [heads], scores without values; or NULL */
    const parameter *out;                        /* [hidden, heads v_head_size] */
    const parameter *out_bias;  /* placed partial: the group's first rank has it, the others have NULL */
    int heads, kv_heads;        /* this rank's */
    int head_size, v_head_size; /* elements of a head of q and k; of v */
    int window;
    double multiplier; /* factor of scores; 0: 1 / sqrt(head_size) */
    double cap;        /* soft cap of scores: cap tanh(score / cap); 0: none */
    float norm_offset; /* added to the weights of q_norm and k_norm */
    bool width_norm;   /* q_norm and k_norm are over all heads of all tensor ranks, not over each */
    bool local;        /* uses the rotary table of windows */
    bool rotary;       /* queries and keys are rotated by their positions */
    bool interleaved;  /* rotation pairs neighbours, not elements half a head apart */
    bool shared;       /* the model has fewer key/value heads than heads */
    int index;         /* number among this rank's layers that attend */
} attention_layer;

typedef struct mlp_layer {
    const parameter *up; /* gated: gate | up, [2 ffn, hidden]; else [ffn, hidden] */
    const parameter *up_bias;
    const parameter *down;      /* [hidden, ffn] */
    const parameter *down_bias; /* like out_bias */
    bool gated, gelu;           /* gelu: the gate is gelu, not silu */
    bool exact;                 /* gelu without a gate is exact, not its tanh form */
} mlp_layer;

/* Experts of a layer; the rank has the ones that AXIS_EXPERT assigns to it. */
typedef struct experts_layer {
    const parameter *router; /* [experts, hidden] */
    const parameter *bias;   /* [experts]: added to scores where experts are chosen; NULL: none */
    const parameter *up;     /* this rank's experts, one after the other: gate | up, [2 ffn, hidden] each */
    const parameter *down;   /* the same experts: [hidden, ffn] each */
    const parameter *router_bias, *up_bias, *down_bias; /* biases of these three products; or NULL */
    double limit, slope;                                /* limit > 0: the activation is swiglu_clamped */
    capacity_shape capacity;                            /* lacks tokens and ranks */
    op_routing routing;                                 /* how a token's experts are chosen */
    bool gelu;                                          /* the gate is gelu, not silu */
    bool fp32_logits; /* fp32 logits of the router, without a bias; else logits of x's type */
    int index;        /* number among the model's layers with experts */
} experts_layer;

/* Weights of an MTP module (layers/loss.c) beside its block's. */
typedef struct mtp_layer {
    norm_layer enorm, hnorm, norm; /* norms of the embedding, of the head's input, of the block's output */
    const parameter *joined;       /* [hidden, 2 hidden]: makes the block's input of the first two */
} mtp_layer;

/* Norm, mixers and post-norm: mixers read the norm's output, and the post-norm reads the sum of the mixers' outputs. */
typedef struct sublayer {
    norm_layer norm, post_norm; /* weight NULL: none */
    unsigned mixers;            /* 1 << MIXER_name of each; 0: there is no such sublayer */
    bool joins;                 /* continues the branch of the sublayer before it: reads the same norm input and is
                                   added to it; else it begins a branch, which reads the stream with all before */
} sublayer;

enum { LAYER_SUBLAYERS = 2 };

typedef struct block_layer {
    mtp_layer mtp; /* norms and matrices NULL: none */
    sublayer sub[LAYER_SUBLAYERS];
    attention_layer attention;
    mlp_layer mlp;
    experts_layer experts;
    double multiplier; /* factor of sublayers' outputs; 0: none */
    int state;         /* the first of the block's states among the rank's (layer_inputs.states) */
} block_layer;

typedef struct embedding_layer {
    const parameter *table;     /* [vocabulary / tensor, hidden], this rank's rows from `first` */
    const parameter *positions; /* [positions, hidden] or NULL */
    int64_t first;
    double multiplier; /* 0: none */
    bool rounds;       /* rounds to the table's type, before it multiplies */
} embedding_layer;

/* An MTP module: a block after the last layer, with the model's table or a copy of it. */
typedef struct mtp_module {
    int number; /* the block's number, after the layers'; 0: there is none */
    const block_layer *block;
    embedding_layer embedding; /* embeds next tokens; has no positions; table NULL: all stages together have it */
} mtp_module;

typedef struct loss_layer {
    norm_layer norm;
    double multiplier;     /* factor of logits; 0: none */
    double cap;            /* soft cap of logits: cap tanh(logit / cap); 0: none */
    const parameter *head; /* [vocabulary / tensor, hidden]; the embedding's table where tied */
    int64_t first, count;  /* this rank's first id, and how many of its rows are ids and not padding */
    int64_t chunk_tokens;  /* number of tokens that have logits in memory at a time */
} loss_layer;

/* A residual stream between two blocks: its value is sum + delta (delta NULL: sum alone). Carrying the two lets the
 * next norm do the addition. */
typedef struct stream {
    tensor *sum, *delta;
    struct router_pool *routers; /* where losses are pooled over layers; else NULL */
} stream;

/* Logits of the routers so far, and the sum of their loads. */
typedef struct router_pool {
    tensor **logits; /* one per layer, as many as the chunk has layers */
    tensor *load;
    int count;
} router_pool;

/* The sites that draw (dropout) are numbered over the whole model: first the embedding's, then each block's. */
enum { LAYER_EMBEDDING_SITES = 1, LAYER_BLOCK_SITES = 2 };

/* norm(x) */
tensor *layer_norm_of(recorder *r, const char *name, tensor *x, const norm_layer *n, const layer_inputs *in);
/* y = norm(s), or s itself where there is no norm; s, the stream with the delta added in, stays in the stream. */
tensor *layer_norm(recorder *r, stream *s, const norm_layer *n, const layer_inputs *in);
/* A mixer's input: the norm's output x, its own states when decoding (else NULL), and the routers so far. */
typedef struct mixer_input {
    tensor *x, *const *states;
    router_pool *routers;
} mixer_input;

/* A decoding state of a block: [samples, positions, size[0]], or [samples, size[0], size[1]]. */
typedef struct layer_state {
    const char *name;
    bool by_position;
    int64_t size[2];
    bool divided; /* the tensor ranks divide size[0] */
    bool wide;    /* fp32, as a scan's sums are; else the type of activations */
} layer_state;

enum { LAYER_STATES = 4 }; /* the most states of a block */

typedef enum layer_crossing { CROSSING_NOTHING, CROSSING_KEYS, CROSSING_LATENTS } layer_crossing;

/* A row of layers/mixers.def; functions NULL: it has none. */
typedef struct layer_mixer_row {
    int sublayer;
    layer_crossing crossing;
    const char *sum;
    tensor *(*record)(recorder *r, const block_layer *b, const layer_inputs *in, const mixer_input *from);
    /* Fills `out` with the mixer's decoding states and returns their number. */
    int (*states)(layer_state out[LAYER_STATES], const block_layer *b);
    /* Says which rows of the weight `p` make which heads' queries or keys, without a threshold; blocks 0: none do. */
    op_qk_clip (*clip)(const block_layer *b, const parameter *p);
} layer_mixer_row;

extern const layer_mixer_row layer_mixers[MIXER_COUNT];

/* True if one of its mixers has scores of queries and keys (QK-clip's). */
bool layer_attends(const block_layer *b);
/* Says which of the block's queries and keys the rows of `p` make (QK-clip). */
op_qk_clip layer_clipped(const block_layer *b, const parameter *p);
/* Fills `out` with a block's decoding states, mixer after mixer; returns their number. */
int layer_states(layer_state out[LAYER_STATES], const block_layer *b);

tensor *mix_attention(recorder *r, const block_layer *b, const layer_inputs *in, const mixer_input *from);
tensor *mix_latent(recorder *r, const block_layer *b, const layer_inputs *in, const mixer_input *from);
/* Sums the outputs of each token's experts on x, weighted by the router. */
tensor *mix_experts(recorder *r, const block_layer *b, const layer_inputs *in, const mixer_input *from);
int states_attention(layer_state out[LAYER_STATES], const block_layer *b);
int states_latent(layer_state out[LAYER_STATES], const block_layer *b);
op_qk_clip clip_attention(const block_layer *b, const parameter *p);
op_qk_clip clip_latent(const block_layer *b, const parameter *p);
/* Returns x, or x with the losses of a pool's routers attached: its uses bring their gradients to the logits. */
tensor *layer_pooled_losses(recorder *r, const layer_inputs *in, const router_pool *routers, tensor *x);
void layer_block(recorder *r, stream *s, const block_layer *b, const layer_inputs *in);
/* The embedding of ids, by the rank's rows of the vocabulary, summed over the tensor ranks. */
tensor *layer_embed(recorder *r, const embedding_layer *e, tensor *ids);
/* Applies the rest to the embedding x: a multiplier, positions, dropout. */
tensor *layer_embedded(recorder *r, const embedding_layer *e, const layer_inputs *in, tensor *x);
/* The head reads the output of the last layer, and that of the MTP module. */
enum { LAYER_HEAD_PASSES = 2 };
/* Makes the head's inputs, [tokens, hidden], times the multiplier of the logits: out[0] is the stream's norm, out[1]
 * the MTP module's output, computed from that norm and `next` (m NULL: there is no module, and out[1] is NULL). */
void layer_last(recorder *r, tensor *out[LAYER_HEAD_PASSES], stream *s, const loss_layer *l, const mtp_module *m,
                const layer_inputs *in, tensor *next);
/* x times a layer's multiplier, x itself where that is 0 */
tensor *layer_multiply(recorder *r, tensor *x, double multiplier);
/* Adds the micro-batch's loss to in->loss, and the MTP module's (NULL: there is none) to in->mtp_loss. Training begins
 * the backward pass here: the gradient of the loss is recorded beside its forward pass, chunk by chunk, so that logits
 * of a whole micro-batch never exist. */
void layer_loss(recorder *r, stream *s, const loss_layer *l, const mtp_module *m, const layer_inputs *in);
/* Computes the same in two steps, for a vocabulary that the stages divide, too: first the statistics of this stage's
 * logits from the head's input y, [ranks tokens, 3] of its tensor ranks; then the loss from the statistics of all
 * stages. `pass`: 0 for the last layer, 1 for the MTP module. */
typedef struct head_pass {
    tensor *x, *head, *logits, *statistics; /* logits: before their cap */
} head_pass;
head_pass layer_head(recorder *r, const loss_layer *l, const layer_inputs *in, int pass, tensor *y);
/* When training returns this stage's part of the cotangent of y, else NULL; in the backward pass, after
 * recorder_begin_backward(). */
tensor *layer_head_loss(recorder *r, const loss_layer *l, const layer_inputs *in, int pass, const head_pass *h,
                        tensor *statistics);
/* logits[tokens, vocabulary] of every token, for decoding */
tensor *layer_logits(recorder *r, stream *s, const loss_layer *l, const layer_inputs *in);
/* Selects from this rank's token ids the ones that it has between blocks under sequence parallelism. */
tensor *layer_own_rows(recorder *r, tensor *ids);
/* x after dropout; x itself when off or not training */
tensor *layer_dropout(recorder *r, const layer_inputs *in, tensor *x);

/* Begin and end linear layers on an input that ranks divide: with sequence parallelism they gather and scatter tokens,
 * without it they share the value and reduce the partial sums. */
tensor *layer_enter(recorder *r, tensor *x);
tensor *layer_leave(recorder *r, tensor *x);
