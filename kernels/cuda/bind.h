/* What bindings share: from an op's operands to addresses and pitches. */
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.h"
#include "memory/log.h"

static inline void launched(const op *o, int error)
{
    char text[256];
    MUST(error == 0, "%s: the launch failed with CUDA error %d", op_text(text, sizeof text, o), error);
}

static inline void *at(const tensor *t, const run_context *r)
{
    return tensor_at(t, r->arena);
}

/* A tensor that must have no gaps between its rows. */
static inline void *whole(const op *o, const tensor *t, const run_context *r)
{
    char text[256];
    MUST(!t || tensor_contiguous(t), "%s: the kernel takes contiguous operands only", op_text(text, sizeof text, o));
    return at(t, r);
}

static inline int64_t columns_of(const tensor *t)
{
    return t->shape[0] ? tensor_elements(t) / t->shape[0] : 0;
}

static inline launch_matrix matrix(const tensor *t, const run_context *r)
{
    return (launch_matrix){at(t, r), t->pitch};
}

static inline launch_extent extent_of(const tensor *t)
{
    return (launch_extent){t->shape[0], columns_of(t)};
}
