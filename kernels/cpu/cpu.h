/* The host's implementations: cpu_NAME for every row of the op table, and their preparation. Each reads and writes its
 * operands in the arena of the run_context only; working memory is the op's scratch tensor. */
#pragma once

#include "kernels/table/op.h"

#define OP(name, ...) void cpu_##name(const op *o, const run_context *r);
#include "kernels/table/ops.def"

/* The implementation of a row, where it is one call. */
#define CPU_OP(name, ...)                                                                                              \
    void cpu_##name(const op *o, const run_context *r)                                                                 \
    {                                                                                                                  \
        __VA_ARGS__;                                                                                                   \
    }

/* gemm.c: the primitive of a product, made before the first step and shared by the ops of one shape. */
status gemm_prepare(op *o, int threads);
/* oneDNN's version and the instruction set that it uses. */
void gemm_words(char *out, int bytes);
int64_t gemm_scratch_bytes(const op *o, int threads);

/* Bytes of o->scratch that an op wants, where they are one expression. */
#define CPU_SCRATCH(name, ...)                                                                                         \
    int64_t name##_scratch_bytes(const op *o, int threads)                                                             \
    {                                                                                                                  \
        return __VA_ARGS__;                                                                                            \
    }

int64_t assign_scratch_bytes(const op *o, int threads);
int64_t balance_scratch_bytes(const op *o, int threads);
int64_t balance_grad_scratch_bytes(const op *o, int threads);
int64_t grouped_scratch_bytes(const op *o, int threads);
int64_t norm_scratch_bytes(const op *o, int threads);
int64_t attention_scratch_bytes(const op *o, int threads);
int64_t attention_grad_scratch_bytes(const op *o, int threads);
int64_t attention_decode_scratch_bytes(const op *o, int threads);
int64_t latent_decode_scratch_bytes(const op *o, int threads);
