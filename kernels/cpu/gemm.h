/* A matrix product as the backends of gemm.c see it: C[m, n] = A B (+ bias) (+ C), operands strided. */
#ifndef PHALANX_KERNELS_CPU_GEMM_H
#define PHALANX_KERNELS_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"
#include "memory/status.h"

struct isa;

/* Of A and B one stride is 1: element (i, j) of A stands at i row + j column. */
typedef struct gemm_shape {
    int64_t m, n, k;
    int64_t a_row, a_column, b_row, b_column, c_row;
    int32_t type;   /* dtype of A, B and the bias */
    int32_t c_type; /* dtype of C */
    int32_t bias;   /* bias[n] is added */
    int32_t add;    /* what C holds can be added */
    int32_t threads;
} gemm_shape;

typedef struct gemm_operands {
    void *c;
    const void *a, *b, *bias;
    void *scratch;
} gemm_operands;

/* ---- onednn.c ---- */

struct onednn_product;
/* The product of a shape: described on first asking and kept in a table of the process, a memo of a pure function. */
status onednn_product_get(struct onednn_product **out, const gemm_shape *s);
/* False if running it would allocate memory: oneDNN's older products, which it takes below AVX-512, pack operands into buffers of
 * their own whatever the scratchpad mode. False too for bf16 products on AMX whose depth leaves 31 of a tile's 32: those of
 * oneDNN 2.6.3 are wrong, or end the program with an illegal instruction (k = 63, 1567, ...; found by comparing every depth). */
bool onednn_product_usable(const struct onednn_product *p);
int64_t onednn_product_scratch(const struct onednn_product *p);
/* Compile what onednn_product_run will execute; at most once a shape. */
status onednn_product_prepare(struct onednn_product *p);
/* add: only where shape.add */
void onednn_product_run(struct onednn_product *p, const gemm_operands *operands, bool add);
/* Free the table; products got before are gone. */
void onednn_release(void);

/* ---- tile_gemm.c: any type, any processor, by the tiles of tile.h ---- */

int64_t tile_gemm_scratch(int threads);
void tile_gemm_run(const gemm_shape *s, const gemm_operands *operands, bool add, const struct isa *set);

#endif
