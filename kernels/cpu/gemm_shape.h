/* A matrix product as gemm.c asks for it, of oneDNN or of our tiles: C[m, n] = A B (+ bias) (+ C), operands strided. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"

/* Of A and B one stride is 1: element (i, j) of A is at i row + j column. */
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
    bool adds; /* the product is added to what C holds */
} gemm_operands;

/* Products one after another, of any sizes: the shape and the operands of each are asked for, and neither `threads` nor
 * scratch of those is read. m = 0: there is nothing to do; k = 0: the product is zeros. */
typedef struct gemm_group {
    int64_t count;
    void (*product)(gemm_shape *s, gemm_operands *operands, const void *of, int64_t i);
    const void *of;
} gemm_group;
