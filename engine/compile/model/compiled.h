/* What is compiled: the options, one rank's share of the model, its programs. Types only: compile_model.h and
 * compile_program.h make them, step/ has the steps. */
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

enum { COMPILE_ALIGNMENT = 256 };           /* bytes, of every tensor with storage */
enum { COMPILE_RAMP = 29 };                 /* the most training programs with fewer micro-batches */
enum { COMPILE_HIGHER = LADDER_RUNGS - 1 }; /* and with room for more rows of experts */

/* What travels while what computes: see order.h. */
typedef enum compile_order {
    ORDER_AS_LOWERED,
    ORDER_EARLY,  /* launches are early */
    ORDER_FILLED, /* and products are moved between a launch and the op that needs it */
    ORDER_HALVED, /* and there are twice as many of them, so that some are left for the forward pass after */
    /* The last three, and where none of them is beside a transfer of the forward pass, its own product in parts: */
    ORDER_EARLY_PARTS,
    ORDER_FILLED_PARTS,
    ORDER_HALVED_PARTS,
    ORDER_COUNT,
} compile_order;

/* The programs of rungs above the first (layers/ladder.h). Those of a search, which asks for their bytes alone, are of
 * the few micro-batches that reach the peak of all. */
typedef enum compile_higher { HIGHER_WHOLE, HIGHER_SHORT, HIGHER_NONE } compile_higher;

typedef struct compile_optimizer {
    config_optimizer name;
    bool nesterov;
    config_adjust adjust;
    double qk_clip;      /* of scores, by Muon (optimizer.h); 0: none */
    dtype state, master; /* narrower than fp32: stochastically rounded; a master of the compute type is the weight */
} compile_optimizer;

typedef struct compile_options {
    model_shape shape;
    precision_kind precision;
    int64_t sequence;
    int micro_batch, microbatches; /* sequences; micro-batches a step */
    int ramp[COMPILE_RAMP];        /* micro-batches of the steps before, ascending; 0: no more */
    bool document_mask;
    layer_balance router_over; /* of the loss that balances experts */
    layer_transfers transfers; /* chosen by transfer_choose() */
    grid grid;
    config_layout layout; /* its list of layers and its words are the caller's */
    /* Of SCHEDULE_AUTO, or where the vocabulary is divided, which takes a while: the caller's (compile_program.h);
     * NULL: compile() makes it. */
    const schedule *found;
    const schedule *few; /* that of recompute_microbatches(), where the vocabulary is divided; NULL: made each time */
    compile_order order; /* the best, as far as memory allows */
    compress_method compress; /* of gradients, where they are summed over data ranks */
    compile_optimizer optimizer;
    bool offload;   /* optimizer states and masters of matrices are in a device's pinned host memory */
    int64_t window; /* bytes of the arena that they pass through */
    recompute recompute;
    int64_t budget;            /* bytes of arena; 0: none */
    const op_backend *backend; /* whose scratch is planned; NULL: none */
    const devices_row *device; /* whose figures weigh computing against bytes; NULL: the backend's, or an H100's */
    bool tf32;                 /* its fp32 products may round their operands */
    bool any_order;            /* train.deterministic: false; of prices alone */
    bool graph;                /* it plays each program as one CUDA graph */
    int threads;
    int64_t loss_tokens;  /* tokens per loss chunk; 0: automatic (tokens.h) */
    bool verify;          /* room to look for silent corruption (compile.h) */
    bool train, evaluate; /* which programs */
    compile_higher higher;
    int decode_samples, decode_positions; /* 0: no decoding program */
} compile_options;

/* The tensor whose bytes `t` has in the end: a placed program has views of views (place.h). NULL: of none. */
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

/* A program with its tensors in place. It owns its ops and transient tensors; persistent ones are the model's. */
typedef struct compiled_program {
    pool pool;
    program list;
    int64_t transient_bytes, lower_bound; /* of the transient region */
    int64_t enough;                       /* of them, for a trial: placing stops there; 0: near the lower bound */
    int64_t peak_kept, peak_temporary;    /* alive where the lower bound is reached */
    int requests;                         /* asynchronous ops are numbered 0 .. requests-1, each once */
    /* of a training program: until this op weights and optimizer are those of the step before; else -1 */
    int first_change;
    double flops[PHASE_COUNT];
    int64_t tensors;
    int64_t placed; /* transient tensors with bytes of their own; their ids are below it */
} compiled_program;

typedef struct compiled {
    pool pool;
    compile_options options;
    decoder model;
    const int *owners;      /* by the parameter's number: the replica that owns it whole, or -1 */
    const storage *storage; /* likewise */
    recorder_grid around;
    layer_inputs values;
    int state_count;              /* values.states */
    const char *feedback_section; /* of checkpoints: what this rank's compressed gradients lacked; NULL: none are */
    int feedback_ranks;           /* how many replicas have such a section */
    int64_t batch_bytes;          /* of the ids, from the arena's beginning */
    int64_t mirror_bytes;         /* of all values, likewise: on a device, what has a copy in host memory */
    int64_t pinned_bytes;     /* host memory of a device: the mirror, a second block of ids to read ahead into, what is
                                 offloaded, marks */
    int64_t persistent_bytes; /* transients begin here */
    int64_t class_bytes[CLASS_COUNT]; /* persistent classes */
    bool first_stage, last_stage;
    int stage_layers;
    /* compile(): */
    schedule *found; /* by itself, or NULL */
    compiled_program training, evaluation, decoding, ramp[COMPILE_RAMP];
    /* Of training, and of each of the ramp, the rungs above the first (layers/ladder.h); empty above the last. */
    compiled_program higher[1 + COMPILE_RAMP][COMPILE_HIGHER];
    compiled_program
        gathers; /* of weights that ranks have updated, before anything but a step reads them; empty: they are whole */
    int64_t arena_bytes;
    int64_t sums,
        /* address and bytes of what verification notes: a note, a sum for each state, and of an op's outputs; 2 words
         * each */
        sums_bytes;
    int64_t before, before_bytes; /* and of what an op is about to change */
    int marks;                    /* of the program that has most */
    int64_t workspace;            /* bytes that each of certain ops may have (place.h) */
    int dropped;                  /* RECOMPUTE_CHOSEN: forward ops whose outputs are recomputed */
    const char *decision;         /* which, in words */
    compile_order order;          /* of the training programs */
} compiled;
