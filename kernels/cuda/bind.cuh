/* Turns an op's operands into addresses and pitches for the entry points cuda_NAME. The op table is C. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#define class class_of /* a word of C++ */
#include "kernels/attention.h"
#include "kernels/cuda/cuda.h"
#include "kernels/ops/compression.h"
#undef class
}

#include "kernels/cuda/launch.h"

template <typename T = void> static inline T *data(const tensor *t, const run_context *r)
{
    return (T *)tensor_at(t, r->arena);
}

/* The address of a tensor that must have no gaps between its rows. */
template <typename T = void> static inline T *whole(const op *o, const tensor *t, const run_context *r)
{
    cuda_must_be_whole(o, t);
    return data<T>(t, r);
}

static inline launch_matrix matrix(const tensor *t, const run_context *r)
{
    return t ? launch_matrix{data(t, r), t->pitch} : launch_matrix{};
}

static inline int64_t columns_of(const tensor *t)
{
    return t->shape[0] ? tensor_elements(t) / t->shape[0] : 0;
}
