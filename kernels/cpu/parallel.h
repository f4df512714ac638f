/* How the kernels share work among threads: in equal consecutive parts, so that a part always falls to the same
 * thread. */
#pragma once

#include <omp.h>
#include <stdint.h>

#include "kernels/table/op.h"

/* Below this many elements waking a second thread costs more than it saves. */
enum { PARALLEL_SMALLEST = 16384 };

static inline int parallel_threads(const run_context *r, int64_t elements)
{
    return elements < PARALLEL_SMALLEST || r->threads < 1 ? 1 : r->threads;
}

/* Elements of `count` operands from the first on. */
static inline int64_t operand_elements(const op *o, int first, int count)
{
    int64_t sum = 0;
    for (int i = first; i < first + count; i++)
        sum += tensor_elements(o->in[i]);
    return sum;
}

/* The address of index `row` of dimension 0; NULL stays out: the tensor must be there. */
static inline char *row_at(const tensor *t, const run_context *r, int64_t row)
{
    return (char *)tensor_at(t, r->arena) + row * t->pitch * dtype_bytes((dtype)t->type);
}

/* Elements of one index of dimension 0. */
static inline int64_t row_length(const tensor *t)
{
    return (t->dims > 1 ? t->shape[1] : 1) * (t->dims > 2 ? t->shape[2] : 1);
}
