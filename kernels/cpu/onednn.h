/* Products by oneDNN, the only file that knows its interface (2.x or 3.x). A product belongs to the table it was found
 * in. */
#pragma once

#include "kernels/cpu/products.h"
#include "kernels/table/op.h"
#include "memory/status.h"

struct onednn_product;
/* Its version and the instruction set that it uses. */
void onednn_words(char *out, int bytes);
/* The product of a shape: described on first asking and kept in a table of the process, a memo of a pure function. */
status onednn_product_get(struct onednn_product **out, const gemm_shape *s);
/* False if running it would allocate memory: oneDNN's older products, which it takes below AVX-512, pack operands into
 * buffers of their own whatever the scratchpad mode. False too for bf16 products on AMX whose depth leaves 31 of a
 * tile's 32: those of oneDNN 2.6.3 are wrong, or end the program with an illegal instruction (k = 63, 1567, ...; found
 * by comparing every depth). */
bool onednn_product_usable(const struct onednn_product *p);
int64_t onednn_product_scratch(const struct onednn_product *p);
/* Compile what onednn_product_run will execute, at most once a shape: for ops that are such products. `run`: how they
 * are computed by it. */
status onednn_product_prepare(const op_prepared **out, struct onednn_product *p,
                              bool (*run)(const op_prepared *self, const op *o, const run_context *r));
/* `prepared`: by onednn_product_prepare. operands->adds: only where shape.add */
void onednn_product_run(const op_prepared *prepared, const gemm_operands *operands);
