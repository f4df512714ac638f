/* Element-wise ops. */
#include "kernels/ops/family.h"

/* The placements of element-wise forward ops, of linear ones, and of gradient ops, which have the cotangent beside the
 * input. */
#define PLACE_EACH        "r>r 0>0 1>1 2>2 s>s"
#define PLACE_EACH_LINEAR "r>r 0>0 1>1 2>2 s>s p>p"
#define PLACE_EACH_GRAD   "rr>r 00>0 11>1 22>2 ps>p"

/* The recording of an op that reads one tensor. */
#define RECORD(name)                                                                                                   \
    tensor *record_##name(recorder *r, const char *label, tensor *x)                                                   \
    {                                                                                                                  \
        return record_first(r, label, &(op){.kind = OP_##name, .in = {x}}, 1);                                         \
    }
/* Its gradient by the op NAME_grad, which reads the cotangent and the op's input. */
#define GRADIENT(name)                                                                                                 \
    void gradient_##name(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])                                \
    {                                                                                                                  \
        op like = {.kind = OP_##name##_grad, .in = {cotangent[0], recorder_use(r, o->in[0])}, .at = o->at};            \
        recorder_flow(r, o->in[0], gradient_by(r, &like));                                                             \
    }

RECORD(gelu)

void infer_gelu(op *o)
{
    OPERANDS_CHECK(infer_is_compute(o->in[0]), "x must be of a compute type");
    infer_shape_like(o->out[0], o->in[0]);
    operands_place(o, PLACE_EACH);
}

COST(gelu, cost_each(o, 8, 0))
GRADIENT(gelu)

void infer_gelu_grad(op *o)
{
    OPERANDS_CHECK(infer_is_compute(o->in[1]) && infer_same(o->in[0], o->in[1]), "dy like x");
    infer_shape_like(o->out[0], o->in[1]);
    operands_place(o, PLACE_EACH_GRAD);
}

GRADIENTLESS(gelu_grad, cost_each(o, 14, 0))

RECORD(gelu_exact)
INFER_AS(gelu_exact, gelu)
COST(gelu_exact, cost_each(o, 30, 0))
GRADIENT(gelu_exact)

INFER_AS(gelu_exact_grad, gelu_grad)
GRADIENTLESS(gelu_exact_grad, cost_each(o, 45, 0))

tensor *record_scale(recorder *r, const char *name, tensor *x, double factor)
{
    return record_first(r, name, &(op){.kind = OP_scale, .in = {x}, .at.constants.scale = (float)factor}, 1);
}

void infer_scale(op *o)
{
    OPERANDS_CHECK(infer_is_compute(o->in[0]), "x must be of a compute type");
    infer_shape_like(o->out[0], o->in[0]);
    operands_place(o, PLACE_EACH_LINEAR);
}

COST(scale, cost_each(o, 1, 0))

void gradient_scale(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    recorder_flow(r, o->in[0], gradient_by(r, &(op){.kind = OP_scale, .in = {cotangent[0]}, .at = o->at}));
}

tensor *record_soft_cap(recorder *r, const char *name, tensor *x, double cap)
{
    return record_first(r, name, &(op){.kind = OP_soft_cap, .in = {x}, .at.constants.cap = (float)cap}, 1);
}

void infer_soft_cap(op *o)
{
    OPERANDS_CHECK(o->at.constants.cap > 0, "constants.cap must be positive");
    infer_gelu(o);
}

COST(soft_cap, cost_each(o, 8, 0))
GRADIENT(soft_cap)

void infer_soft_cap_grad(op *o)
{
    OPERANDS_CHECK(o->at.constants.cap > 0, "constants.cap must be positive");
    infer_gelu_grad(o);
}

GRADIENTLESS(soft_cap_grad, cost_each(o, 10, 0))

RECORD(swiglu)

void infer_swiglu(op *o)
{
    const tensor *x = o->in[0];
    OPERANDS_CHECK(infer_is_activation(x) && x->shape[1] % 2 == 0, "x[t, 2f]");
    infer_shape(o->out[0], (dtype)x->type, 2, x->shape[0], x->shape[1] / 2, 0);
    operands_place(o, PLACE_EACH);
}

COST(swiglu, cost_of(o, 4 * cost_elements(o->out[0]), 0))
GRADIENT(swiglu)

void infer_swiglu_grad(op *o)
{
    const tensor *dy = o->in[0], *x = o->in[1];
    OPERANDS_CHECK(infer_is_activation(x) && x->shape[1] % 2 == 0 &&
                       infer_is_matrix(dy, (dtype)x->type, x->shape[0], x->shape[1] / 2),
                   "dy[t, f], x[t, 2f]");
    infer_shape_like(o->out[0], x);
    operands_place(o, PLACE_EACH_GRAD);
}

GRADIENTLESS(swiglu_grad, cost_each(o, 9, 0))

RECORD(geglu)
INFER_AS(geglu, swiglu)
COST(geglu, cost_of(o, 9 * cost_elements(o->out[0]), 0))
GRADIENT(geglu)

INFER_AS(geglu_grad, swiglu_grad)
GRADIENTLESS(geglu_grad, cost_each(o, 9, 0))

tensor *record_swiglu_clamped(recorder *r, const char *name, tensor *x, double limit, double slope)
{
    return record_first(r, name,
                        &(op){.kind = OP_swiglu_clamped, .in = {x}, .at.constants = {(float)slope, (float)limit}}, 1);
}

void infer_swiglu_clamped(op *o)
{
    OPERANDS_CHECK(o->at.constants.cap > 0, "constants.cap must be positive");
    infer_swiglu(o);
}

COST(swiglu_clamped, cost_of(o, 8 * cost_elements(o->out[0]), 0))
GRADIENT(swiglu_clamped)

void infer_swiglu_clamped_grad(op *o)
{
    OPERANDS_CHECK(o->at.constants.cap > 0, "constants.cap must be positive");
    infer_swiglu_grad(o);
}

GRADIENTLESS(swiglu_clamped_grad, cost_each(o, 14, 0))

tensor *record_add(recorder *r, const char *name, tensor *a, tensor *b)
{
    return record_first(r, name, &(op){.kind = OP_add, .in = {a, b}}, 1);
}

void infer_add(op *o)
{
    OPERANDS_CHECK(infer_is_compute(o->in[0]) && infer_same(o->in[0], o->in[1]), "a and b of one shape and type");
    infer_shape_like(o->out[0], o->in[0]);
    operands_place(o, "rr>r 00>0 11>1 22>2 ss>s pp>p");
}

COST(add, cost_each(o, 1, 0))

void gradient_add(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    recorder_flow(r, o->in[0], cotangent[0]);
    recorder_flow(r, o->in[1], cotangent[0]);
}

void infer_accumulate(op *o)
{
    OPERANDS_CHECK(o->in[0]->type == DTYPE_FP32 && infer_same(o->in[0], o->out[0]), "part and total fp32 of one shape");
    operands_place(o, PLACE_EACH_LINEAR);
}

GRADIENTLESS(accumulate, (op_cost){cost_elements(o->in[0]), cost_traffic(o, 1)})

tensor *record_dropout(recorder *r, const char *name, tensor *x, tensor *scalars, tensor *token_positions,
                       const op_attributes *at)
{
    return record_first(r, name, &(op){.kind = OP_dropout, .in = {x, scalars, token_positions}, .at = *at}, 1);
}

void infer_dropout(op *o)
{
    OPERANDS_CHECK(infer_is_activation(o->in[0]) && infer_is_scalars(o->in[1]), "x[t, h] and the step's scalars");
    OPERANDS_CHECK(infer_is_vector(o->in[2], DTYPE_INT32, o->in[0]->shape[0]), "token_positions int32[t]");
    OPERANDS_CHECK(o->at.dropout.sample_tokens > 0, "dropout.sample_tokens must say how many tokens a sample has");
    OPERANDS_CHECK(o->at.dropout.probability >= 0 && o->at.dropout.probability < 1,
                   "the probability must be in [0, 1)");
    infer_shape_like(o->out[0], o->in[0]);
    operands_place(o,
                   "r..>r 0..>0 s..>s p..>p"); /* shard(1): the element's number would need the rank's first column */
}

COST(dropout, cost_each(o, 12, 0))
GRADIENT_BY(dropout, recorder_flow(r, o->in[0], record_dropout(r, "dx", cotangent[0], o->in[1], o->in[2], &o->at)))

tensor *record_cast(recorder *r, const char *name, tensor *x, dtype type)
{
    tensor *y = recorder_input(r, name, type, x->dims, x->shape, x->place);
    y->producer = recorder_record(r, name, &(op){.kind = OP_cast, .in = {x}, .out = {y}}, 0, NULL);
    return y;
}

void infer_cast(op *o)
{
    OPERANDS_CHECK(infer_is_compute(o->in[0]) && infer_is_compute(o->out[0]) && o->out[0]->type != o->in[0]->type &&
                       infer_same_shape(o->out[0], o->in[0]),
                   "to and from two different compute types, of one shape");
    operands_place(o, PLACE_EACH_LINEAR);
}

GRADIENTLESS(cast, cost_moved(o))

tensor *record_arrange(recorder *r, const char *name, tensor *x, tensor *token_positions)
{
    return record_first(r, name, &(op){.kind = OP_arrange, .in = {x, token_positions}}, 1);
}

void infer_arrange(op *o)
{
    const tensor *x = o->in[0];
    OPERANDS_CHECK(infer_is_activation(x) && infer_is_vector(o->in[1], DTYPE_INT32, x->shape[0]),
                   "x[t, n], token_positions int32[t]");
    infer_shape_like(o->out[0], x);
    operands_place(o, "r.>r 1.>1 s.>s p.>p b.>b");
}

COST(arrange, cost_moved(o))

void gradient_arrange(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    op back = {.kind = OP_arrange, .in = {cotangent[0], o->in[1]}, .at.rotation.inverse = !o->at.rotation.inverse};
    recorder_flow(r, o->in[0], gradient_by(r, &back));
}

RECORD(copy)

void infer_copy(op *o)
{
    infer_shape_like(o->out[0], o->in[0]);
    operands_place(o, PLACE_EACH_LINEAR);
}

COST(copy, cost_moved(o))
GRADIENT_BY(copy, recorder_flow(r, o->in[0], gradient_by(r, &(op){.kind = OP_copy, .in = {cotangent[0]}})))

INFER(zero, OPERANDS_CHECK(o->out[0]->dims > 0, "what is to be zeroed must be described"))
GRADIENTLESS(zero, cost_moved(o))
