/* Declarations that the families of ops share. Each file of this folder has one family and, side by side, each op's
 * recording for layers (record_, kernels/record/record.h), its shape rule (infer_), its cost (cost_) and its gradient
 * (gradient_), which the op table finds by name.
 *
 * A shape rule describes the outputs' shape, type and placement, from the inputs and attributes, and refuses operands
 * it cannot take; operands.h explains the letters of placement rules.
 *
 * A cost is floating-point operations and bytes of memory traffic. Products count 2 a multiply-add; causal attention
 * counts the (query, key) pairs that its mask leaves, exactly, document boundaries aside. Other ops count a few
 * operations an element, exp and the like as one. Bytes: every operand once, and once more where an output is added to.
 *
 * A gradient rule is called once per forward op, in reverse order, with the cotangents of the op's outputs. It asks for
 * forward tensors with recorder_use() and hands on cotangents with recorder_flow(). Where an implementation can add to
 * the cotangent so far (`addend`), the rule takes it instead of recording an add. */
#pragma once

#include "kernels/record/operands.h"
#include "kernels/table/precision.h"
#include "kernels/record/record.h"
#include "memory/log.h"

#define OP(name, ...)                                                                                                  \
    void infer_##name(op *o);                                                                                          \
    op_cost cost_##name(const op *o);                                                                                  \
    void gradient_##name(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT]);
#include "kernels/table/ops.def"

/* ---- recording ----------------------------------------------------------------------------------------------- */

/* The first output of an op that is recorded like `like`. */
tensor *record_first(recorder *r, const char *name, const op *like, unsigned outputs);

/* ---- shape rules --------------------------------------------------------------------------------------------- */

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

/* The bytes of x, seen as y; y's placement is the caller's. */
static inline void infer_view(tensor *y, tensor *x)
{
    infer_shape_like(y, x);
    y->base = tensor_root(x);
    y->offset = x->offset;
    y->pitch = x->pitch;
}

static inline bool infer_is_compute(const tensor *t)
{
    return precision_computes_in((dtype)t->type);
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

/* Refuses q, k other than [t, heads head_size], [keys, kv_heads head_size] of one type. */
void infer_check_heads(const op *o, const tensor *q, const tensor *k);

/* The shape rule of an op, where it is one call; and where it is another op's. */
#define INFER(name, ...)                                                                                               \
    void infer_##name(op *o)                                                                                           \
    {                                                                                                                  \
        __VA_ARGS__;                                                                                                   \
    }
#define INFER_AS(name, other) INFER(name, infer_##other(o))

/* ---- costs --------------------------------------------------------------------------------------------------- */

double cost_elements(const tensor *t); /* 0 of an absent operand */
double cost_bytes(const tensor *t);
/* The bytes of every operand once; `again`: a mask of the outputs that are read too. */
double cost_traffic(const op *o, unsigned again);
/* `flops`, and the traffic of all operands; `accumulated`: a mask of the outputs that the op may add to. */
op_cost cost_of(const op *o, double flops, unsigned accumulated);
/* A few operations for each element of the first input. */
op_cost cost_each(const op *o, double operations, unsigned accumulated);
/* No operation: the traffic alone. */
op_cost cost_moved(const op *o);

/* The cost of the op `o` of a row, where it is one expression. */
#define COST(name, ...)                                                                                                \
    op_cost cost_##name(const op *o)                                                                                   \
    {                                                                                                                  \
        return __VA_ARGS__;                                                                                            \
    }

/* ---- gradients ----------------------------------------------------------------------------------------------- */

/* Records the gradient op of the parameter `w`, with the gradient as its one output. */
void gradient_of_weight(recorder *r, const char *name, op like, const tensor *w);
/* Records an op like `like`; returns the cotangent that it makes, its first output. */
tensor *gradient_by(recorder *r, const op *like);
/* Records an op like `like`, and lets its first `count` outputs, the cotangents of `of`, flow: columns into their
 * base's. */
void gradient_of_each(recorder *r, const op *like, tensor *const *of, int count);
_Noreturn void gradient_refuse(const op *o);

/* The gradient of an op, where it is one call. */
#define GRADIENT_BY(name, ...)                                                                                         \
    void gradient_##name(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])                                \
    {                                                                                                                  \
        __VA_ARGS__;                                                                                                   \
    }

/* An op without a gradient: layers do not record it, or fusion makes it afterwards. */
#define NO_GRADIENT(name)                                                                                              \
    void gradient_##name(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])                                \
    {                                                                                                                  \
        (void)r;                                                                                                       \
        (void)cotangent;                                                                                               \
        gradient_refuse(o);                                                                                            \
    }
/* The same with its cost, one expression. */
#define GRADIENTLESS(name, ...)                                                                                        \
    COST(name, __VA_ARGS__)                                                                                            \
    NO_GRADIENT(name)
