/* What a grouped product multiplies: the rows of each expert by that expert's weight. The sizes of tensors are planned,
 * how many rows an expert has is data (`offsets`, read by kernels alone); costs and prices take the average. Which
 * operand is which is said once, in ops/grouped.c. Tensors are the op's. */
#pragma once

#include "kernels/table/op.h"

/* One expert's part is C[m, n] = A B, of which the side `by` is its rows: m, or for a weight's gradient k. */
typedef struct grouped_product {
    int64_t experts;
    int64_t rows;    /* of A, and of C or B: those of all experts and those that nobody has */
    int64_t m, n, k; /* of one expert, the side that is its rows 0 */
    tensor *a, *b, *c, *offsets;
    tensor *bias;  /* [experts n], added to the rows of C; or NULL */
    bool b_turned; /* B lies as [n, k] */
    bool sums;     /* C is a weight's gradient: A lies as [k, m], C is a "+=" output */
} grouped_product;

/* What `o`, of class GROUPED, multiplies; its output must be described. */
grouped_product grouped_of(const op *o);
/* Rows, columns and depth of the product of an expert that has as many rows as the others. */
void grouped_average(double size[3], const grouped_product *p);
/* Every row counts as one that an expert has; multiply-adds count 2. */
double grouped_flops(const grouped_product *p);
