/* What an op's outputs are: shape, type and placement, from its inputs and attributes; infer.c has the ops of layers,
 * infer_update.c those of updates and of communication. operands.h explains the letters of the placement rules. */
#ifndef PHALANX_KERNELS_INFER_H
#define PHALANX_KERNELS_INFER_H

#include "kernels/operands.h"

#define OP(name, ...) void infer_##name(op *o);
#include "kernels/ops.def"
#undef OP

/* Of compress and decompress: into how many parts the rows of x are divided, and the bytes of each in a message. */
int infer_parts(const op *o, const tensor *x);
int64_t infer_part_bytes(const op *o, const tensor *x);

static inline void infer_shape(tensor *out, dtype type, int dims, int64_t a, int64_t b, int64_t c)
{
    if (!out)
        return;
    out->dims = (uint8_t)dims;
    out->type = (uint8_t)type;
    int64_t shape[TENSOR_DIMS] = {a, b, c};
    out->pitch = 1;
    for (int i = 0; i < TENSOR_DIMS; i++) {
        out->shape[i] = i < dims ? shape[i] : 0;
        if (i > 0 && i < dims)
            out->pitch *= shape[i];
    }
}

static inline void infer_shape_like(tensor *out, const tensor *x)
{
    infer_shape(out, (dtype)x->type, x->dims, x->shape[0], x->shape[1], x->shape[2]);
}

static inline bool infer_is_compute(const tensor *t)
{
    return t->type == DTYPE_FP32 || t->type == DTYPE_BF16 || t->type == DTYPE_FP16;
}

static inline bool infer_is_matrix(const tensor *t, dtype type, int64_t rows, int64_t columns)
{
    return t->dims == 2 && t->type == type && t->shape[0] == rows && t->shape[1] == columns;
}

static inline bool infer_is_vector(const tensor *t, dtype type, int64_t count)
{
    return t->dims == 1 && t->type == type && t->shape[0] == count;
}

static inline bool infer_same_shape(const tensor *a, const tensor *b)
{
    return a->dims == b->dims && a->shape[0] == b->shape[0] && (a->dims < 2 || a->shape[1] == b->shape[1]) &&
           (a->dims < 3 || a->shape[2] == b->shape[2]);
}

static inline bool infer_same(const tensor *a, const tensor *b)
{
    return infer_same_shape(a, b) && a->type == b->type;
}

static inline bool infer_is_activation(const tensor *t)
{
    return t->dims == 2 && infer_is_compute(t);
}

static inline bool infer_is_scalars(const tensor *t)
{
    return tensor_contiguous(t) && tensor_bytes(t) >= (int64_t)sizeof(step_scalars);
}

#endif
