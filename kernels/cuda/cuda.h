/* The device's implementations: cuda_NAME for every row of the op table, beside its kernels, and the working memory
 * that some want. Each enqueues kernels on the run_context's stream and returns; none allocates, waits or owns memory.
 * Operands are addresses in the device's arena. A refused launch is an error of the device and dies.
 */
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/table/op.h"

/* The table of the implementations; planning uses it without a device. */
extern const op_backend backend_cuda;

#define OP(name, ...) void cuda_##name(const op *o, const run_context *r);
#include "kernels/table/ops.def"

/* Defines the implementation of a row that is one call. */
#define CUDA_OP(name, ...)                                                                                             \
    void cuda_##name(const op *o, const run_context *r)                                                                \
    {                                                                                                                  \
        __VA_ARGS__;                                                                                                   \
    }

/* Defines the bytes of o->scratch that the kernels of an op use, as one expression. */
#define CUDA_SCRATCH(function, ...)                                                                                    \
    int64_t function(const op *o)                                                                                      \
    {                                                                                                                  \
        return __VA_ARGS__;                                                                                            \
    }

/* Bytes of o->scratch that an op's kernels use. */
int64_t cuda_bias_grad_scratch(const op *o);
int64_t cuda_norm_grad_scratch(const op *o);
int64_t cuda_head_norm_grad_scratch(const op *o);
int64_t cuda_width_dots_scratch(const op *o);
int64_t cuda_embed_grad_scratch(const op *o);
int64_t cuda_attention_grad_scratch(const op *o);
int64_t cuda_attention_sinks_grad_scratch(const op *o);
int64_t cuda_cross_entropy_scratch(const op *o);
int64_t cuda_assign_scratch(const op *o);
int64_t cuda_slots_scratch(const op *o);
int64_t cuda_balance_scratch(const op *o);
/* Bytes of o->scratch that any op uses; 0 for most. */
int64_t bind_scratch_bytes(const op *o, int threads);
/* Checks the CUDA error that an entry point's launches returned, 0 for none. */
void cuda_launched(const op *o, int error);
void cuda_must_be_whole(const op *o, const tensor *t);

/* Ops of the class UPDATE, as many tensors as one launch takes.
 *
 * The program has one op a tensor, and most tensors are small. An `updates` collects such ops and launches them when
 * its list is full, when an op of another kind or type comes, or when its owner must have them on the stream: before
 * enqueuing a reader of their outputs. Waiting for a communication needs no launch: a later launch only runs after
 * more. Plain memory, zeroed at first; one stream.
 */
typedef struct updates {
    launch_update_segment at[LAUNCH_UPDATE_SEGMENTS];
    const op *of[LAUNCH_UPDATE_SEGMENTS]; /* the op that asked for each */
    int held;
} updates;

/* Adds op `o`, of the class UPDATE. */
void updates_add(updates *u, const op *o, const run_context *r);
/* Launches everything added: it runs after the stream's earlier work and before its later work. */
void updates_launch(updates *u, const run_context *r);
