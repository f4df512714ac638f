/* Matrix products as gemm.c and grouped.c ask for them, and ours: tile_gemm.c multiplies any type on any processor by
 * the tiles of tile.h, amx_gemm.c bf16 by the tile registers of AMX, for experts, of unknown size when a library's
 * products are prepared. C[m, n] = A B (+ bias) (+ C), operands strided. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"

/* One stride of A and of B is 1: element (i, j) of A is at i row + j column. */
typedef struct gemm_shape {
    int64_t m, n, k;
    int64_t a_row, a_column, b_row, b_column, c_row;
    int32_t type;   /* dtype of A, B and the bias */
    int32_t c_type; /* dtype of C */
    int32_t bias;   /* bias[n] is added */
    int32_t add;    /* the product may be added to C's values */
    int32_t threads;
} gemm_shape;

typedef struct gemm_operands {
    void *c;
    const void *a, *b, *bias;
    void *scratch;
    bool adds; /* the product is added to C's values */
} gemm_operands;

/* Products one after another, of any sizes: the shape and the operands of each are asked for, and their `threads` and
 * scratch are not read. m = 0: no work; k = 0: the product is zeros. */
typedef struct gemm_group {
    int64_t count;
    void (*product)(gemm_shape *s, gemm_operands *operands, const void *of, int64_t i);
    const void *of;
} gemm_group;

struct isa;
int64_t tile_gemm_scratch(int threads);
/* scratch: tile_gemm_scratch(threads) bytes; the operands' own is not read */
void tile_gemm_run_group(const gemm_group *g, void *scratch, int threads, const struct isa *set);
void tile_gemm_run(const gemm_shape *s, const gemm_operands *operands, const struct isa *set);

/* Has the processor such tiles, and does the system let us use them? It is asked once a process. */
bool amx_gemm_usable(void);
int64_t amx_gemm_scratch(int threads);
/* A and B bf16, without a bias; C bf16 or fp32. scratch: amx_gemm_scratch(threads) bytes */
void amx_gemm_run_group(const gemm_group *g, void *scratch, int threads);

static inline int64_t gemm_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Parts of at most `most` that divide n evenly, multiples of `unit`. */
static inline int64_t gemm_part(int64_t n, int64_t most, int64_t unit)
{
    int64_t parts = (n + most - 1) / most, part = (n + parts - 1) / parts;
    return gemm_least((part + unit - 1) / unit * unit, most);
}
