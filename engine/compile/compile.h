/* Compile: from a configuration and a place in the grid to planned programs, without a device and without peers.
 *
 *     shape -> parameters (storage.c) -> recorded chunks -> schedule, lowering -> one list (unroll.c) -> reductions and
 *     optimizer (update.c) -> waits, shared storage, lifetimes, addresses (place.c)
 *
 * A `compiled` owns everything it points to, in one pool. Any rank of any layout can be compiled anywhere: `plan` does it
 * for ranks that do not exist, `train` for its own.
 */
#ifndef PHALANX_ENGINE_COMPILE_COMPILE_H
#define PHALANX_ENGINE_COMPILE_COMPILE_H

#include "engine/config/config.h"
#include "models/decoder.h"
#include "parallel/grid.h"
#include "parallel/schedule.h"

enum { COMPILE_ALIGNMENT = 256 }; /* bytes, of every tensor with storage */

typedef struct compile_options {
    model_shape shape;
    dtype compute;
    int64_t sequence;
    int micro_batch, microbatches; /* sequences; micro-batches a step */
    bool document_mask;
    grid grid;
    schedule_kind schedule;
    int chunks;                  /* per stage */
    const int *layers_per_chunk; /* of the whole model in order, or NULL: divided automatically */
    bool sequence_parallel;
    int zero;
    bool gather_each, reduce_each; /* ZeRO 3 weights, ZeRO 2-3 gradients: each micro-batch, or once a step */
    recompute recompute;
    int64_t budget;            /* bytes of arena; 0: none */
    const op_backend *backend; /* whose scratch is planned; NULL: none */
    int threads;
    bool train, evaluate;                 /* which programs */
    int decode_samples, decode_positions; /* 0: no decoding program */
} compile_options;

/* The tensors that the host fills before a program, and reads after it. All persistent, at the arena's beginning: the ids of
 * a batch first, which have a block to themselves (compiled.batch_bytes). */
typedef struct compiled_inputs {
    tensor tokens, targets, positions, document_start; /* int32 [micro-batches, tokens of a micro-batch] */
    tensor rope_table;                                 /* fp32 [positions, head_size] */
    tensor scalars;                                    /* step_scalars, as bytes */
    tensor loss;                                       /* fp32 [1]: this rank's sum over tokens */
    tensor loss_total;                                 /* fp32 [1]: over the grid, on every rank */
    tensor bins;                                       /* int64 [SUM_BINS] of the squared norm */
    tensor control;                                    /* fp32 [CONTROL_COUNT] */
    tensor logits;                                     /* decoding: [samples, vocabulary rows] T */
} compiled_inputs;

/* A program with its tensors in place. */
typedef struct compiled_program {
    program list;
    int64_t transient_bytes, lower_bound; /* of the transient region */
    int64_t peak_kept, peak_temporary;    /* alive where the lower bound is reached */
    int requests;                         /* asynchronous ops in flight are numbered 0 .. requests-1 */
    double flops[PHASE_COUNT];
    double matrix_flops; /* of all phases: the model's, without what is made again */
    int64_t tensors;
} compiled_program;

typedef struct compiled {
    pool pool;
    compile_options options;
    decoder model;
    compiled_inputs inputs;
    tensor **caches; /* decoding: k and v of each layer */
    int cache_count;
    compiled_program training, evaluation, decoding;
    int64_t batch_bytes;      /* of the ids, from the arena's beginning */
    int64_t mirror_bytes;     /* of all inputs, likewise: on a device, what has a copy in host memory */
    int64_t pinned_bytes;     /* host memory of a device: the mirror, and a second block of ids to read ahead into */
    int64_t persistent_bytes; /* transients begin here */
    int64_t arena_bytes;
    int64_t class_bytes[CLASS_COUNT]; /* persistent classes */
    bool first_stage, last_stage;
    int stage_layers;
    int dropped;          /* RECOMPUTE_CHOSEN: forward ops whose outputs are made again */
    const char *decision; /* which, in words */
} compiled;

/* A usage failure (an impossible layout, a budget that cannot be met) is one line. `out` must be freed either way. */
status compile(compiled *out, const compile_options *options);
/* The model and its persistent tensors only, without programs. */
status compile_model(compiled *out, const compile_options *options);
/* Of a compiled model: do two ranks of one stage hold parameters and tokens of the same sizes? */
bool compile_same_sizes(const compiled *a, const compiled *b);
/* Which of the ranks whose gradients sum with this one's owns most, the lowest of several, as an index along AXIS_GRADIENT;
 * *spread: how many bytes less the least one owns. */
int compile_largest_owner(const compiled *c, int64_t *spread);
void compile_free(compiled *c);
/* The options that a configuration and a grid mean. */
status compile_options_from(compile_options *out, const config *c, const grid *g, const op_backend *backend,
                            int threads);

/* FLOPs of the model for one token of training (forward and backward products, causal attention counted as half), over all ranks. */
double compile_flops_per_token(const model_shape *shape, int64_t sequence);

#endif
