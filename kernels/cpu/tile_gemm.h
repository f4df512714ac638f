/* Products of any type on any processor, by the tiles of tile.h. */
#pragma once

#include "kernels/cpu/gemm_shape.h"

struct isa;

int64_t tile_gemm_scratch(int threads);
/* scratch: tile_gemm_scratch(threads) bytes; the operands' own is not read */
void tile_gemm_run_group(const gemm_group *g, void *scratch, int threads, const struct isa *set);
void tile_gemm_run(const gemm_shape *s, const gemm_operands *operands, const struct isa *set);
