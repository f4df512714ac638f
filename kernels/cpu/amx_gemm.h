/* Products of bf16 by the tile registers of AMX: for experts, whose sizes are not known when a library's products are
 * prepared. */
#pragma once

#include "kernels/cpu/gemm_shape.h"

/* Has the processor such tiles, and does the system let us use them? It is asked once a process. */
bool amx_gemm_usable(void);
int64_t amx_gemm_scratch(int threads);
/* A and B bf16, without a bias; C bf16 or fp32. scratch: amx_gemm_scratch(threads) bytes */
void amx_gemm_run_group(const gemm_group *g, void *scratch, int threads);
