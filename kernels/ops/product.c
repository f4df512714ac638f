/* Matrix products, their gradients, and products that are fused with the GELU beside them. */
#include "kernels/fuse.h"
#include "kernels/ops/family.h"

tensor *record_linear(recorder *r, const char *name, tensor *x, tensor *w, tensor *bias)
{
    return record_first(r, name, &(op){.kind = OP_linear, .in = {x, w, bias}}, 1);
}

void infer_linear(op *o)
{
    operands_present(o);
    const tensor *x = o->in[0], *w = o->in[1], *bias = o->in[2];
    OPERANDS_CHECK(infer_is_activation(x) && w->dims == 2 && w->type == x->type && w->shape[1] == x->shape[1],
                   "x[t, k], w[n, k] of one type");
    OPERANDS_CHECK(!bias || infer_is_vector(bias, (dtype)x->type, w->shape[0]), "bias[n] of the same type");
    infer_shape(o->out[0], (dtype)x->type, 2, x->shape[0], w->shape[0], 0);
    /* A partial sum takes a bias that is itself placed partial: one rank has it, the others none. */
    operands_place(o, "rrr>r s00>1 11p>p 0ss>0 sss>s");
}

op_cost cost_linear(const op *o)
{
    double product = 2 * cost_elements(o->in[0]) * (double)o->in[1]->shape[0];
    return cost_of(o, product + (o->in[2] ? cost_elements(o->out[0]) : 0), 0);
}

void gradient_linear(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    tensor *dy = cotangent[0], *x = o->in[0], *w = o->in[1], *bias = o->in[2];
    if (recorder_wants(r, x)) {
        op like = {.kind = OP_linear_grad_input, .in = {dy, recorder_use(r, w), recorder_flow_take(r, x)}};
        recorder_flow_set(r, x, gradient_by(r, &like));
    }
    gradient_of_weight(r, "dw", (op){.kind = OP_linear_grad_weight, .in = {dy, recorder_use(r, x)}}, w);
    if (bias)
        gradient_of_weight(r, "db", (op){.kind = OP_bias_grad, .in = {dy}}, bias);
}

void infer_linear_grad_input(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *w = o->in[1], *addend = o->in[2];
    OPERANDS_CHECK(infer_is_activation(dy) && w->dims == 2 && w->type == dy->type && w->shape[0] == dy->shape[1],
                   "dy[t, n], w[n, k] of one type");
    OPERANDS_CHECK(!addend || infer_is_matrix(addend, (dtype)dy->type, dy->shape[0], w->shape[1]),
                   "addend[t, k] of the same type");
    infer_shape(o->out[0], (dtype)dy->type, 2, dy->shape[0], w->shape[1], 0);
    operands_place(o, "rrr>r 10p>p r11>1 0s0>0 psp>p");
}

op_cost cost_linear_grad_input(const op *o)
{
    double product = 2 * cost_elements(o->in[0]) * (double)o->in[1]->shape[1];
    return cost_of(o, product + (o->in[2] ? cost_elements(o->out[0]) : 0), 0);
}

NO_GRADIENT(linear_grad_input)

void infer_linear_grad_weight(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *x = o->in[1];
    OPERANDS_CHECK(infer_is_activation(dy) && infer_is_activation(x) && dy->type == x->type &&
                       dy->shape[0] == x->shape[0],
                   "dy[t, n], x[t, k] of one type");
    OPERANDS_CHECK(infer_is_matrix(o->out[0], DTYPE_FP32, dy->shape[1], x->shape[1]), "dw[n, k] fp32");
    operands_place(o, "rr>r 1s>0 r1>1 00>p ps>p");
}

op_cost cost_linear_grad_weight(const op *o)
{
    return cost_of(o, 2 * cost_elements(o->in[0]) * (double)o->in[1]->shape[1], 1);
}

NO_GRADIENT(linear_grad_weight)

/* A fused op is inferred, and costs, as the two ops that it is made of. */
static void infer_fused(op *o)
{
    operands_present(o);
    op first = fuse_first(o), second = fuse_second(o);
    op_row_of(&first)->infer(&first);
    op_row_of(&second)->infer(&second);
}

static op_cost cost_fused(const op *o)
{
    op first = fuse_first(o), second = fuse_second(o);
    double flops = op_row_of(&first)->cost(&first).flops + op_row_of(&second)->cost(&second).flops;
    return cost_of(o, flops, 0);
}

void infer_linear_gelu(op *o)
{
    infer_fused(o);
}

op_cost cost_linear_gelu(const op *o)
{
    return cost_fused(o);
}

NO_GRADIENT(linear_gelu)

void infer_linear_grad_gelu(op *o)
{
    infer_fused(o);
}

op_cost cost_linear_grad_gelu(const op *o)
{
    return cost_fused(o);
}

NO_GRADIENT(linear_grad_gelu)

void infer_bias_grad(op *o)
{
    operands_present(o);
    OPERANDS_CHECK(infer_is_activation(o->in[0]), "dy[t, n]");
    OPERANDS_CHECK(infer_is_vector(o->out[0], DTYPE_FP32, o->in[0]->shape[1]), "db[n] fp32");
    operands_place(o, "r>r 1>0 0>p p>p");
}

op_cost cost_bias_grad(const op *o)
{
    return cost_each(o, 1, 1);
}

NO_GRADIENT(bias_grad)
