/* Norms over the rows of activations. */
#include "kernels/ops/family.h"

#include <string.h>

static void check_norm(const op *o, const tensor *x, const tensor *w, const tensor *residual)
{
    OPERANDS_CHECK(infer_is_activation(x) && infer_is_vector(w, (dtype)x->type, x->shape[1]),
                   "x[t, h], w[h] of one type");
    OPERANDS_CHECK(!residual || infer_same(residual, x), "the residual must be like x");
    OPERANDS_CHECK(o->at.norm.epsilon >= 0, "epsilon must not be negative");
}

tensor *record_norm(recorder *r, const char *name, tensor **sum, tensor *x, tensor *residual, record_norm_of n)
{
    op like = {.kind = OP_rmsnorm, .in = {x, n.w, residual}, .at.norm = {.epsilon = n.epsilon, .offset = n.offset}};
    if (n.b)
        like = (op){.kind = OP_layernorm, .in = {x, n.w, n.b, residual}, .at.norm.epsilon = n.epsilon};
    int s = n.b ? 3 : 2;
    op *o = recorder_record(r, name, &like, (n.b ? 7u : 3u) | (residual ? 1u << s : 0), NULL);
    if (sum)
        *sum = residual ? o->out[s] : x;
    return o->out[0];
}

/* Outputs y, rstd, [mean], s of x, w, [b], residual. */
static void infer_norm(op *o, bool biased, const char *rules)
{
    const tensor *x = o->in[0], *residual = o->in[2 + biased];
    tensor *sum = o->out[2 + biased];
    check_norm(o, x, o->in[1], residual);
    OPERANDS_CHECK(!biased || infer_same(o->in[2], o->in[1]), "b must be like w");
    OPERANDS_CHECK(!residual == !sum, "the sum s is an output exactly when there is a residual");
    infer_shape_like(o->out[0], x);
    for (int i = 1; i < 2 + biased; i++)
        infer_shape(o->out[i], DTYPE_FP32, 1, x->shape[0], 0, 0);
    if (sum)
        infer_shape_like(sum, x);
    operands_place(o, rules);
}

INFER(rmsnorm, infer_norm(o, false, "rrr>rrr 0s0>000 sss>sss"))
COST(rmsnorm, cost_each(o, o->in[2] ? 5 : 4, 0))

/* The gradient of both norms: outputs y, rstd, [mean], s; parameters w, [b]. */
static void gradient_norm(recorder *r, const op *o, tensor *const *cotangent, tensor *b, tensor *residual, int s)
{
    tensor *x = o->in[0], *w = o->in[1];
    tensor *dy = cotangent[0], *addend = o->out[s] ? cotangent[s] : recorder_flow_take(r, x);
    tensor *dx = addend;
    if (dy) {
        tensor *sum = recorder_use(r, o->out[s] ? o->out[s] : x), *rstd = recorder_use(r, o->out[1]);
        op like = {.kind = OP_rmsnorm_grad, .at.norm = {.epsilon = o->at.norm.epsilon, .offset = o->at.norm.offset}};
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

GRADIENT_BY(rmsnorm, gradient_norm(r, o, cotangent, NULL, o->in[2], 2))

/* Outputs dx, dw, [db] of dy, s, w, rstd, [mean], addend. */
static void infer_norm_grad(op *o, bool biased, const char *rules)
{
    const tensor *dy = o->in[0], *s = o->in[1];
    check_norm(o, s, o->in[2], o->in[4 + biased]);
    OPERANDS_CHECK(infer_same(dy, s) && infer_is_vector(o->in[3], DTYPE_FP32, s->shape[0]), "dy like s, rstd fp32[t]");
    OPERANDS_CHECK(!biased || infer_is_vector(o->in[4], DTYPE_FP32, s->shape[0]), "mean fp32[t]");
    for (int i = 1; i < 2 + biased; i++)
        OPERANDS_CHECK(infer_is_vector(o->out[i], DTYPE_FP32, s->shape[1]),
                       biased ? "dw[h], db[h] fp32" : "dw[h] fp32");
    infer_shape_like(o->out[0], s);
    operands_place(o, rules);
}

INFER(rmsnorm_grad, infer_norm_grad(o, false, "rrrrr>rr 00s00>0p psssp>pp"))
GRADIENTLESS(rmsnorm_grad, cost_each(o, 10, 2))

INFER(layernorm, infer_norm(o, true, "rrrr>rrrr 0ss0>0000 ssss>ssss"))
COST(layernorm, cost_each(o, o->in[3] ? 8 : 7, 0))
GRADIENT_BY(layernorm, gradient_norm(r, o, cotangent, o->in[2], o->in[3], 3))

INFER(layernorm_grad, infer_norm_grad(o, true, "rrrrrr>rrr 00s000>0pp pssssp>ppp"))
GRADIENTLESS(layernorm_grad, cost_each(o, 14, 6))
