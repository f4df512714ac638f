/* The reference backend: every op of the table written naively in float64, the oracle of all other implementations.
 *
 * It runs on *twins*: ops whose floating-point operands are described anew as fp64, in an arena of their own; integers,
 * bins and scalars are as they are. reference_program.h makes twins of ops. The code follows the formulas of
 * kernels/table/ops.def element by element, shares nothing with the other backends, and reads each element before it
 * writes the one that may lie in its place. Nothing here owns memory.
 */
#pragma once

#include "kernels/table/op.h"

#define OP(name, ...) void reference_##name(const op *o, const run_context *r);
#include "kernels/table/ops.def"

extern const op_backend reference_backend;

/* Philox 4x32-10: out[4] from counter[4] under key[2] */
void reference_philox(uint32_t *out, const uint32_t *counter, const uint32_t *key);
/* What bins int64[SUM_BINS] hold, summed in long double; NaN if a value was not finite. */
double reference_bins_value(const int64_t *bins);

/* Row `row` of an fp64 operand: elements pitch apart in dimension 0. Dies on an operand of another type. */
double *reference_row(const tensor *t, const run_context *r, int64_t row);
/* Elements of one row. */
int64_t reference_width(const tensor *t);
