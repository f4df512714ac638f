/* The products of cuBLASLt.
 *
 * `gemm` is what one opened device keeps for its products: the library's handle, and a plan (descriptors and
 * algorithms) for each distinct shape, which ops share and which is offered to `tuning`. Plans belong to the gemm and
 * live until gemm_close, which comes after the last use of the tuning.
 */
#pragma once

#include "kernels/cuda/tuning.h"
#include "kernels/table/op.h"

typedef struct gemm gemm;

/* Bytes of o->scratch that the library may use as its workspace; 0 for ops that are no products. No device is
 * needed. */
int64_t gemm_workspace_bytes(const op *o);
status gemm_open(gemm **out, bool tf32, tuning *t);
void gemm_close(gemm *g);
/* Descriptors and an algorithm for `o`, whose operands lie in the arena at `arena`: sets o->prepared. */
status gemm_prepare_on(gemm *g, op *o, char *arena);
