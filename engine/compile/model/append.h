/* Ops outside the micro-batches: gathers before them, and after them reductions, norm and optimizer. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Makes an op (op_make() of kernels/record/op_make.h; `into` is for output 0) and appends it to the program. */
op *append_op(compiled_program *out, phase when, const char *label, const op *like, unsigned outputs, tensor *into);
/* Rows of a tensor as a view. */
tensor *append_rows(compiled_program *out, tensor *of, int64_t first, int64_t rows);
