/* The device's implementations: cuda_NAME for every row of the op table, and the working memory they want. Each
 * enqueues kernels on the run_context's stream and returns; operands are addresses in the device's arena. A refused
 * launch is an error of the device and dies.
 */
#pragma once

#include "kernels/table/op.h"

#define OP(name, ...) void cuda_##name(const op *o, const run_context *r);
#include "kernels/table/ops.def"
#undef OP

/* Bytes of o->scratch that the kernels of bind.c want; 0 for most. */
int64_t bind_scratch_bytes(const op *o, int threads);
