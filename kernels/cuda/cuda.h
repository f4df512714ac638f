/* The device's implementations: cuda_NAME for every row of the op table, beside its kernels, and the working memory
 * that some want. Each enqueues kernels on the run_context's stream and returns; nothing here allocates, waits or owns
 * memory. Operands are addresses in the device's arena. A refused launch is an error of the device and dies.
 */
#pragma once

#include "kernels/table/op.h"

#define OP(name, ...) void cuda_##name(const op *o, const run_context *r);
#include "kernels/table/ops.def"
#undef OP

/* Bytes of o->scratch that kernels want. */
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
/* The same of any op; 0 for most. */
int64_t bind_scratch_bytes(const op *o, int threads);
/* What an entry point says of its launches: a CUDA error, 0 for none. */
void cuda_launched(const op *o, int error);
void cuda_must_be_whole(const op *o, const tensor *t);
