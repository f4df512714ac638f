/* Gradients of weights in two halves, of which the second hides a later transfer. */
#pragma once

#include "engine/compile/model/compiled.h"
#include "kernels/record/product.h"

/* A view of rows (dim 0) or columns (1) [first, first + count) of a tensor. */
tensor *order_part(compiled_program *out, tensor *of, int dim, int64_t first, int64_t count);
/* Narrows a product to its rows (PRODUCT_M) or columns (PRODUCT_N) [first, first + count): each operand that has them,
 * unless it is NULL, becomes a view. */
void order_cut(compiled_program *out, op *product, product_side side, int64_t first, int64_t count);
/* Gradients of weights in halves; returns the list as it was, with which halves that still are neighbours are
 * joined. */
program order_halve(compiled_program *out);
void order_join(program *list, const program *whole);
