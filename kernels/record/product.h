/* The operands of a matrix product. An op of class PRODUCT is C[m, n] = A B (+ bias) (+ an addend, or C), A[m, k] and
 * B[k, n] as they lie or transposed. Which operand is which, and along which dimension it has m, n or k, is said once,
 * in ops/product.c; costs, prices, cuts and both backends read it here. Tensors are the op's. */
#pragma once

#include "kernels/table/op.h"
#include "kernels/table/precision.h"
#include "kernels/record/program.h"

typedef struct matrix_product {
    int64_t m, n, k;
    tensor *a, *b, *c;
    bool a_transposed, b_transposed; /* A lies as [k, m]; B lies as [n, k] */
    bool accumulates;                /* C is a "+=" output: the product may be added to it, and is where `added` is C */
    tensor *bias;                    /* [n], added to each row; or NULL */
    tensor *added;                   /* [m, n], added to the product: an addend, or C; or NULL */
    tensor *gelu;                    /* [m, n] fused with it: z, written before y = gelu(z), or read for dz; or NULL */
} matrix_product;

typedef enum product_side { PRODUCT_M, PRODUCT_N, PRODUCT_K } product_side;

/* Returns the operands of `o`, of class PRODUCT; its output must be described. */
matrix_product product_of(const op *o);
/* Multiply-adds count 2; neither bias nor addend counts. */
double product_flops(const matrix_product *p);
/* Returns the dimension in which input `i` has rows m, columns n or depth k; -1: none. Every output is [m, n]. */
int product_input_dim(const op *o, int i, product_side side);
/* Returns the precision that multiplies operands of these types; NULL: none does. */
const precision_row *product_precision(const op *o);
/* Decides the types of the products, grouped ones among them, that a body has recorded: each operand lies in the type
 * that the precision's row says, or the process dies. */
void product_check_types(const program *body, precision_kind kind);

/* A product of matrices, or one of each expert's. */
static inline bool product_multiplies(const op *o)
{
    return op_is(o, OP_CLASS_PRODUCT) || op_is(o, OP_CLASS_GROUPED);
}

/* True for the gradient of a weight, which no op of its micro-batch waits for. */
static inline bool product_is_free(const op *o)
{
    return op_is(o, OP_CLASS_PRODUCT) && op_has(o, OP_WEIGHT);
}
