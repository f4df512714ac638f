/* Types of the compiler: the options, one rank's share of the model, its programs. compile_model.h and
 * compile_program.h make them; step/ has the steps. */
#pragma once

#include "engine/config/config.h"
#include "kernels/compress.h"
#include "kernels/device.h"
#include "kernels/table/precision.h"
#include "kernels/record/storage.h"
#include "memory/pool.h"
#include "models/decoder.h"
#include "parallel/comm/grid.h"
#include "parallel/schedule/schedule.h"

enum { COMPILE_ALIGNMENT = 256 };               /* bytes, of every tensor with storage */
enum { COMPILE_RAMP = 29 };                     /* the most training programs with fewer micro-batches */
enum { COMPILE_HIGHER = CAPACITY_BUCKETS - 1 }; /* the most training programs with room for more rows of experts */

/* Which transfers overlap which ops: see order.h. */
typedef enum compile_order {
    ORDER_AS_LOWERED,
    ORDER_EARLY,  /* launches move early */
    ORDER_FILLED, /* also, products move between a launch and the op that needs it */
    ORDER_HALVED, /* also, products are halved, so that some are left for the next forward pass */
    /* Same as the last three, but a forward transfer that no other product hides gets its own product in parts: */
    ORDER_EARLY_PARTS,
    ORDER_FILLED_PARTS,
    ORDER_HALVED_PARTS,
    ORDER_COUNT,
} compile_order;

/* Programs of capacity buckets above the first (layers/capacity.h). A search only needs their bytes: its programs have
 * just the few micro-batches that reach the peak of all. */
typedef enum compile_higher { HIGHER_WHOLE, HIGHER_SHORT, HIGHER_NONE } compile_higher;

typedef struct compile_optimizer {
    config_optimizer name;
    bool nesterov;
    config_adjust adjust;
    double qk_clip;      /* limit of attention scores under Muon (optimizer.h); 0: none */
    dtype state, master; /* narrower than fp32: stochastically rounded; a master of the compute type is the weight */
} compile_optimizer;

typedef struct compile_options {
    model_shape shape;
    precision_kind precision;
    int64_t sequence;
    int micro_batch, microbatches; /* sequences; micro-batches a step */
    int ramp[COMPILE_RAMP];        /* micro-batches of the ramp's earlier steps, ascending; 0: no more */
    bool document_mask;
    layer_balance router_over; /* scope of the loss that balances experts */
    layer_transfers transfers; /* chosen by transfer_choose() */
    grid grid;
    config_layout layout; /* its list of layers and its words are the caller's */
    /* The caller's schedule (compile_program.h) for SCHEDULE_AUTO or a divided vocabulary, where finding it takes a
     * while; NULL: compile() makes it. */
    const schedule *found;
    const schedule *few; /* schedule of recompute_microbatches(), if the vocabulary is divided; NULL: made each time */
    compile_order order; /* the best that fits the memory */
    compress_method compress; /* method for gradients that are summed over data ranks */
    compile_optimizer optimizer;
    bool offload;   /* optimizer states and masters of matrices are in a device's pinned host memory */
    int64_t window; /* bytes of the arena that offloaded values pass through */
    recompute recompute;
    int64_t budget;            /* bytes of arena; 0: none */
    const op_backend *backend; /* plans scratch for this backend; NULL: none */
    const devices_row *device; /* its figures weigh computing against bytes; NULL: the backend's, or an H100's */
    bool tf32;                 /* its fp32 products may round their operands */
    bool any_order;            /* train.deterministic: false; only affects prices */
    bool graph;                /* plays each program as one CUDA graph */
    int threads;
    int64_t loss_tokens;  /* tokens per loss chunk; 0: automatic (tokens.h) */
    bool verify;          /* reserves room to look for silent corruption (compile.h) */
    bool train, evaluate; /* programs to compile */
    compile_higher higher;
    int decode_samples, decode_positions; /* 0: no decoding program */
} compile_options;

/* Returns the tensor that holds the bytes of `t`: a placed program has views of views (place.h). NULL for NULL. */
static inline tensor *compiled_holder(const tensor *t)
{
    while (t && t->base)
        t = t->base;
    return (tensor *)t;
}

/* Operand k of an op, or NULL: its inputs, its outputs, its working memory. */
enum { COMPILED_OPERANDS = OP_MAX_IN + OP_MAX_OUT + 1 };
static inline tensor *compiled_operand(const op *o, int k)
{
    return k < OP_MAX_IN ? o->in[k] : k < OP_MAX_IN + OP_MAX_OUT ? o->out[k - OP_MAX_IN] : o->scratch;
}

/* A program with placed tensors. It owns its ops and transient tensors; persistent ones are the model's. */
typedef struct compiled_program {
    pool pool;
    program list;
    int64_t transient_bytes, lower_bound; /* bytes of the transient region */
    int64_t enough;                       /* a trial stops placing at this many bytes; 0: near the lower bound */
    int64_t peak_kept, peak_temporary;    /* bytes alive at the lower bound's peak */
    int requests;                         /* asynchronous ops are numbered 0 .. requests-1, each once */
    /* training program: weights and optimizer are the previous step's until this op; else -1 */
    int first_change;
    double flops[PHASE_COUNT];
    int64_t tensors;
    int64_t placed; /* transient tensors with bytes of their own; their ids are below it */
} compiled_program;

typedef struct compiled {
    pool pool;
    compile_options options;
    decoder model;
    const int *owners;      /* [parameter] the replica that owns it whole, or -1 */
    const storage *storage; /* [parameter] */
    recorder_grid around;
    layer_inputs values;
    int state_count;              /* values.states */
    const char *feedback_section; /* checkpoint section of this rank's error feedback; NULL: no compression */
    int feedback_ranks;           /* number of replicas with such a section */
    int64_t batch_bytes;          /* bytes of the ids, which begin the arena */
    int64_t mirror_bytes;         /* bytes of all values, which begin the arena; a device mirrors them in host memory */
    int64_t pinned_bytes;         /* pinned host memory of a device: mirror, a second block of ids to read ahead into,
                               * offloaded state, marks */
    int64_t persistent_bytes;     /* transient tensors begin here */
    int64_t class_bytes[CLASS_COUNT]; /* bytes of persistent classes */
    bool first_stage, last_stage;
    int stage_layers;
    /* compile(): */
    schedule *found; /* made by compile(), or NULL */
    compiled_program training, evaluation, decoding, ramp[COMPILE_RAMP];
    /* Capacity buckets above the first (layers/capacity.h) of training, then of each of the ramp; empty past the
     * last. */
    compiled_program higher[1 + COMPILE_RAMP][COMPILE_HIGHER];
    compiled_program gathers; /* gathers updated weights for readers outside a step; empty: they are whole */
    int64_t arena_bytes;
    int64_t sums,
        /* address and bytes of verification's notes: a note, a sum for each state and for an op's outputs; 2 words
         * each */
        sums_bytes;
    int64_t before, before_bytes; /* the same for tensors that an op is about to change */
    int marks;                    /* maximum over the programs */
    int64_t workspace;            /* bytes of working memory per library op (place.h) */
    int dropped;                  /* RECOMPUTE_CHOSEN: number of forward ops with recomputed outputs */
    const char *decision;         /* these ops, in words */
    compile_order order;          /* order of the training programs */
} compiled;
