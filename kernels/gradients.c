/* The gradient of every op, as ops. A rule is called once per forward op, in reverse order, with the cotangents of the
 * op's outputs; it asks for forward tensors with recorder_use() and hands on cotangents with recorder_flow(). Where an
 * implementation can add to what already flows (`addend`), the rule takes it instead of recording an add. */
#include "kernels/record.h"

#include <string.h>

#include "memory/log.h"

#define RULE(name) void gradient_##name(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])

#define OP(name, ...) RULE(name);
#include "kernels/ops.def"
#undef OP

/* The gradient op of a parameter, whose gradient is its one output. */
static void weight_gradient(recorder *r, const char *name, op like, const tensor *w)
{
    like.out[0] = recorder_gradient(r, w, &like.at.accumulate);
    recorder_record(r, name, &like, 0, NULL);
    recorder_gradient_done(r, w, true);
}

/* The cotangent that an op makes. */
static tensor *cotangent_by(recorder *r, const op *like)
{
    return recorder_record(r, "dx", like, 1, NULL)->out[0];
}

RULE(linear)
{
    tensor *dy = cotangent[0], *x = o->in[0], *w = o->in[1], *bias = o->in[2];
    if (recorder_wants(r, x)) {
        op like = {.kind = OP_linear_grad_input, .in = {dy, recorder_use(r, w), recorder_flow_take(r, x)}};
        recorder_flow_set(r, x, cotangent_by(r, &like));
    }
    weight_gradient(r, "dw", (op){.kind = OP_linear_grad_weight, .in = {dy, recorder_use(r, x)}}, w);
    if (bias)
        weight_gradient(r, "db", (op){.kind = OP_bias_grad, .in = {dy}}, bias);
}

RULE(embed)
{
    op like = {.kind = OP_embed_grad, .in = {cotangent[0], o->in[0]}, .at.first = o->at.first};
    weight_gradient(r, "dtable", like, o->in[1]);
}

RULE(add_positions)
{
    op like = {.kind = OP_add_positions_grad, .in = {cotangent[0], o->in[1]}};
    weight_gradient(r, "dtable", like, o->in[2]);
    recorder_flow(r, o->in[0], cotangent[0]);
}

/* Both norms: outputs y, rstd, [mean], s; parameters w, [b]. */
static void norm(recorder *r, const op *o, tensor *const *cotangent, tensor *b, tensor *residual, int s)
{
    tensor *x = o->in[0], *w = o->in[1];
    tensor *dy = cotangent[0], *addend = o->out[s] ? cotangent[s] : recorder_flow_take(r, x);
    tensor *dx = addend;
    if (dy) {
        tensor *sum = recorder_use(r, o->out[s] ? o->out[s] : x), *rstd = recorder_use(r, o->out[1]);
        op like = {.kind = OP_rmsnorm_grad, .at.epsilon = o->at.epsilon};
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
        dx = cotangent_by(r, &like);
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

RULE(rmsnorm)
{
    norm(r, o, cotangent, NULL, o->in[2], 2);
}

RULE(layernorm)
{
    norm(r, o, cotangent, o->in[2], o->in[3], 3);
}

RULE(head_norm)
{
    op like = {.kind = OP_head_norm_grad, .at = o->at};
    uint8_t also;
    like.out[1] = recorder_gradient(r, o->in[1], &like.at.accumulate);
    like.out[2] = recorder_gradient(r, o->in[2], &also);
    MUST(also == like.at.accumulate, "%s: gradients of the two weights out of step", o->label);
    like.in[0] = cotangent[0];
    for (int i = 0; i < 3; i++)
        like.in[1 + i] = recorder_use(r, o->in[i]);
    like.in[4] = recorder_use(r, o->out[1]);
    tensor *dqkv = cotangent_by(r, &like);
    recorder_gradient_done(r, o->in[1], false);
    recorder_gradient_done(r, o->in[2], false);
    recorder_flow(r, o->in[0], dqkv);
}

RULE(rope)
{
    op like = {.kind = OP_rope, .in = {cotangent[0], o->in[1], o->in[2]}, .at = o->at};
    like.at.inverse = !o->at.inverse;
    recorder_flow(r, o->in[0], cotangent_by(r, &like));
}

RULE(attention)
{
    op like = {.kind = OP_attention_grad, .in = {cotangent[0]}, .at = o->at};
    like.in[1] = recorder_use(r, o->in[0]);
    like.in[2] = recorder_use(r, o->out[0]);
    like.in[3] = recorder_use(r, o->out[1]);
    like.in[4] = o->in[1];
    recorder_flow(r, o->in[0], cotangent_by(r, &like));
}

static void elementwise(recorder *r, const op *o, op_kind kind, tensor *dy)
{
    op like = {.kind = (uint8_t)kind, .in = {dy, recorder_use(r, o->in[0])}, .at = o->at};
    recorder_flow(r, o->in[0], cotangent_by(r, &like));
}

RULE(gelu)
{
    elementwise(r, o, OP_gelu_grad, cotangent[0]);
}

RULE(swiglu)
{
    elementwise(r, o, OP_swiglu_grad, cotangent[0]);
}

RULE(add)
{
    recorder_flow(r, o->in[0], cotangent[0]);
    recorder_flow(r, o->in[1], cotangent[0]);
}

RULE(dropout)
{
    recorder_flow(r, o->in[0], record_dropout(r, "dx", cotangent[0], o->in[1], &o->at));
}

RULE(copy)
{
    recorder_flow(r, o->in[0], cotangent_by(r, &(op){.kind = OP_copy, .in = {cotangent[0]}}));
}

/* ---- communication: the cotangent changes its placement back ------------------------------------------------- */

RULE(all_gather)
{
    if (o->at.axis != AXIS_TENSOR)
        return; /* a sharded weight's gather: its gradient is taken by recorder_gradient() */
    recorder_flow(r, o->in[0], record_reduce_scatter(r, "dx", cotangent[0]));
}

RULE(reduce_scatter)
{
    recorder_flow(r, o->in[0], record_all_gather_replicate(r, "dx", cotangent[0], r->tokens));
}

RULE(all_reduce)
{
    recorder_flow(r, o->in[0], cotangent[0]);
}

RULE(share)
{
    recorder_flow(r, o->in[0], record_all_reduce(r, "dx", cotangent[0]));
}

/* ---- ops without a gradient: layers do not record them, or fusion makes them afterwards ---- */

#define NO_RULE(name)                                                                                                  \
    RULE(name)                                                                                                         \
    {                                                                                                                  \
        (void)r;                                                                                                       \
        (void)cotangent;                                                                                               \
        MUST(0, "%s (%s) has no gradient: it is recorded by hand", o->label, #name);                                   \
    }

NO_RULE(linear_grad_input)
NO_RULE(linear_grad_weight)
NO_RULE(linear_gelu)
NO_RULE(linear_grad_gelu)
NO_RULE(bias_grad)
NO_RULE(embed_grad)
NO_RULE(add_positions_grad)
NO_RULE(rmsnorm_grad)
NO_RULE(layernorm_grad)
NO_RULE(head_norm_grad)
NO_RULE(attention_grad)
NO_RULE(attention_decode)
NO_RULE(gelu_grad)
NO_RULE(swiglu_grad)
NO_RULE(accumulate)
NO_RULE(cast)
NO_RULE(zero)
NO_RULE(cross_entropy_stats)
NO_RULE(cross_entropy)
NO_RULE(sum_squares)
NO_RULE(clip)
NO_RULE(adamw)
NO_RULE(lion)
NO_RULE(sgd)
NO_RULE(muon_momentum)
NO_RULE(muon_scale)
NO_RULE(muon_polynomial)
NO_RULE(muon)
NO_RULE(compress)
NO_RULE(decompress)
NO_RULE(keep)
NO_RULE(all_to_all)
NO_RULE(send)
NO_RULE(receive)
NO_RULE(fetch)
NO_RULE(stow)
NO_RULE(wait)
