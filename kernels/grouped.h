/* A grouped product multiplies the rows of each expert by that expert's weight. The sizes of tensors are planned, the
 * number of rows of an expert is data (`offsets`, read by kernels alone); costs and prices take the average. Which
 * operand is which is said once, in ops/grouped.c. Tensors are the op's. */
#pragma once

#include "kernels/table/op.h"

/* One expert's part is C[m, n] = A B, of which the side `by` is its rows: m, or for a weight's gradient k. */
typedef struct grouped_product {
    int64_t experts;
    int64_t rows;    /* rows of A, and of C or B: all experts' rows and the rows that no expert has */
    int64_t m, n, k; /* sizes of one expert; the side of its rows is 0 */
    tensor *a, *b, *c, *offsets;
    tensor *bias;      /* [experts n], added to the rows of C; or NULL */
    bool b_transposed; /* B lies as [n, k] */
    bool sums;         /* C is a weight's gradient: A lies as [k, m], C is a "+=" output */
} grouped_product;

/* Returns the operands of `o`, of class GROUPED; its output must be described. */
grouped_product grouped_of(const op *o);
/* Rows, columns and depth of the product of an expert that has as many rows as the others. */
void grouped_average(double size[3], const grouped_product *p);
/* Every row counts as one that an expert has; multiply-adds count 2. */
double grouped_flops(const grouped_product *p);
