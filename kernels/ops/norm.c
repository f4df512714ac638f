/* Norms over the rows of activations. */
#include "kernels/ops/family.h"

#include <string.h>

static void check_norm(const op *o, const tensor *x, const tensor *w, const tensor *residual)
{
    OPERANDS_CHECK(infer_is_activation(x) && infer_is_vector(w, (dtype)x->type, x->shape[1]),
                   "x[t, h], w[h] of one type");
    OPERANDS_CHECK(!residual || infer_same(residual, x), "the residual must be like x");
    OPERANDS_CHECK(o->at.epsilon >= 0, "epsilon must not be negative");
}

tensor *record_norm(recorder *r, const char *name, tensor **sum, tensor *x, tensor *residual, record_norm_of n)
{
    op like = {.kind = OP_rmsnorm, .in = {x, n.w, residual}, .at.epsilon = n.epsilon, .at.offset = n.offset};
    if (n.b)
        like = (op){.kind = OP_layernorm, .in = {x, n.w, n.b, residual}, .at.epsilon = n.epsilon};
    int s = n.b ? 3 : 2;
    op *o = recorder_record(r, name, &like, (n.b ? 7u : 3u) | (residual ? 1u << s : 0), NULL);
    if (sum)
        *sum = residual ? o->out[s] : x;
    return o->out[0];
}

void infer_rmsnorm(op *o)
{
    const tensor *x = o->in[0];
    check_norm(o, x, o->in[1], o->in[2]);
    OPERANDS_CHECK(!o->in[2] == !o->out[2], "the sum s is an output exactly when there is a residual");
    infer_shape_like(o->out[0], x);
    infer_shape(o->out[1], DTYPE_FP32, 1, x->shape[0], 0, 0);
    if (o->out[2])
        infer_shape_like(o->out[2], x);
    operands_place(o, "rrr>rrr 0s0>000 sss>sss");
}

COST(rmsnorm, cost_each(o, o->in[2] ? 5 : 4, 0))

/* The gradient of both norms: outputs y, rstd, [mean], s; parameters w, [b]. */
static void gradient_norm(recorder *r, const op *o, tensor *const *cotangent, tensor *b, tensor *residual, int s)
{
    tensor *x = o->in[0], *w = o->in[1];
    tensor *dy = cotangent[0], *addend = o->out[s] ? cotangent[s] : recorder_flow_take(r, x);
    tensor *dx = addend;
    if (dy) {
        tensor *sum = recorder_use(r, o->out[s] ? o->out[s] : x), *rstd = recorder_use(r, o->out[1]);
        op like = {.kind = OP_rmsnorm_grad, .at.epsilon = o->at.epsilon, .at.offset = o->at.offset};
        uint8_t also = 0;
        like.out[1] = recorder_gradient(r, w, &like.at.accumulate);
        like.out[2] = b ? recorder_gradient(r, b, &also) : NULL;
        MUST(!b || also == like.at.accumulate, "%s: weight and bias gradients out of step", o->label);
        tensor *const in[OP_MAX_IN] = {dy, sum, recorder_use(r, w), rstd};
        memcpy(like.in, in, sizeof in);
        like.in[4] = b ? recorder_use(r, o->out[2]) : addend;
        if (b) {
            like.kind = OP_layernorm_grad;
            like.in[5] = addend;
        }
        dx = gradient_by(r, &like);
        if (b)
            recorder_gradient_done(r, b, false);
        recorder_gradient_done(r, w, false);
    }
    if (!o->out[s]) {
        recorder_flow_set(r, x, dx);
        return;
    }
    recorder_flow(r, x, dx);
    recorder_flow(r, residual, dx);
}

void gradient_rmsnorm(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    gradient_norm(r, o, cotangent, NULL, o->in[2], 2);
}

void infer_rmsnorm_grad(op *o)
{
    const tensor *dy = o->in[0], *s = o->in[1], *w = o->in[2], *addend = o->in[4];
    check_norm(o, s, w, addend);
    OPERANDS_CHECK(infer_same(dy, s) && infer_is_vector(o->in[3], DTYPE_FP32, s->shape[0]), "dy like s, rstd fp32[t]");
    OPERANDS_CHECK(infer_is_vector(o->out[1], DTYPE_FP32, s->shape[1]), "dw[h] fp32");
    infer_shape_like(o->out[0], s);
    operands_place(o, "rrrrr>rr 00s00>0p psssp>pp");
}

COST(rmsnorm_grad, cost_each(o, 10, 2))
NO_GRADIENT(rmsnorm_grad)

void infer_layernorm(op *o)
{
    const tensor *x = o->in[0];
    check_norm(o, x, o->in[1], o->in[3]);
    OPERANDS_CHECK(infer_same(o->in[2], o->in[1]), "b must be like w");
    OPERANDS_CHECK(!o->in[3] == !o->out[3], "the sum s is an output exactly when there is a residual");
    infer_shape_like(o->out[0], x);
    infer_shape(o->out[1], DTYPE_FP32, 1, x->shape[0], 0, 0);
    infer_shape(o->out[2], DTYPE_FP32, 1, x->shape[0], 0, 0);
    if (o->out[3])
        infer_shape_like(o->out[3], x);
    operands_place(o, "rrrr>rrrr 0ss0>0000 ssss>ssss");
}

COST(layernorm, cost_each(o, o->in[3] ? 8 : 7, 0))

void gradient_layernorm(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    gradient_norm(r, o, cotangent, o->in[2], o->in[3], 3);
}

void infer_layernorm_grad(op *o)
{
    const tensor *dy = o->in[0], *s = o->in[1], *w = o->in[2], *addend = o->in[5];
    check_norm(o, s, w, addend);
    OPERANDS_CHECK(infer_same(dy, s) && infer_is_vector(o->in[3], DTYPE_FP32, s->shape[0]), "dy like s, rstd fp32[t]");
    OPERANDS_CHECK(infer_is_vector(o->in[4], DTYPE_FP32, s->shape[0]), "mean fp32[t]");
    OPERANDS_CHECK(infer_is_vector(o->out[1], DTYPE_FP32, s->shape[1]) &&
                       infer_is_vector(o->out[2], DTYPE_FP32, s->shape[1]),
                   "dw[h], db[h] fp32");
    infer_shape_like(o->out[0], s);
    operands_place(o, "rrrrrr>rrr 00s000>0pp pssssp>ppp");
}

COST(layernorm_grad, cost_each(o, 14, 6))
NO_GRADIENT(layernorm_grad)
