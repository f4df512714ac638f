/* The gradient of every op, as ops. A rule is called once per forward op, in reverse order, with the cotangents of the
 * op's outputs; it asks for forward tensors with recorder_use() and hands on cotangents with recorder_flow(). Where an
 * implementation can add to what already flows (`addend`), the rule takes it instead of recording an add. */
#include "kernels/record.h"

#include "memory/log.h"

#define RULE(name) void gradient_##name(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])

#define OP(name, ...) RULE(name);
#include "kernels/ops.def"
#undef OP

/* The gradient op of a parameter: accumulates into output `out` of `kind`; other outputs are in `given`. */
static void weight_gradient(recorder *r, op_kind kind, const char *name, tensor *const *in, int inputs, const tensor *w)
{
    op_attributes at = {0};
    tensor *given[OP_MAX_OUT] = {recorder_gradient(r, w, &at.accumulate)};
    recorder_record(r, kind, name, in, inputs, 0, given, &at);
    recorder_gradient_done(r, w, true);
}

RULE(linear)
{
    tensor *dy = cotangent[0], *x = o->in[0], *w = o->in[1], *bias = o->in[2];
    if (recorder_wants(r, x)) {
        tensor *in[] = {dy, recorder_use(r, w), recorder_flow_take(r, x)};
        recorder_flow_set(r, x, recorder_record(r, OP_linear_grad_input, "dx", in, 3, 1, NULL, NULL)->out[0]);
    }
    weight_gradient(r, OP_linear_grad_weight, "dw", (tensor *[]){dy, recorder_use(r, x)}, 2, w);
    if (bias)
        weight_gradient(r, OP_bias_grad, "db", &dy, 1, bias);
}

RULE(embed)
{
    op_attributes at = {.first = o->at.first};
    tensor *given[OP_MAX_OUT] = {recorder_gradient(r, o->in[1], &at.accumulate)};
    recorder_record(r, OP_embed_grad, "dtable", (tensor *[]){cotangent[0], o->in[0]}, 2, 0, given, &at);
    recorder_gradient_done(r, o->in[1], true);
}

RULE(add_positions)
{
    weight_gradient(r, OP_add_positions_grad, "dtable", (tensor *[]){cotangent[0], o->in[1]}, 2, o->in[2]);
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
        op_attributes at = {.epsilon = o->at.epsilon};
        uint8_t also = 0;
        tensor *given[OP_MAX_OUT] = {NULL, recorder_gradient(r, w, &at.accumulate),
                                     b ? recorder_gradient(r, b, &also) : NULL};
        MUST(!b || also == at.accumulate, "%s: weight and bias gradients out of step", o->label);
        tensor *weight = recorder_use(r, w);
        if (b) {
            tensor *in[] = {dy, sum, weight, rstd, recorder_use(r, o->out[2]), addend};
            dx = recorder_record(r, OP_layernorm_grad, "dx", in, 6, 1, given, &at)->out[0];
            recorder_gradient_done(r, b, false);
        } else {
            tensor *in[] = {dy, sum, weight, rstd, addend};
            dx = recorder_record(r, OP_rmsnorm_grad, "dx", in, 5, 1, given, &at)->out[0];
        }
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
    op_attributes at = o->at;
    uint8_t also;
    tensor *given[OP_MAX_OUT] = {NULL, recorder_gradient(r, o->in[1], &at.accumulate),
                                 recorder_gradient(r, o->in[2], &also)};
    MUST(also == at.accumulate, "%s: gradients of the two weights out of step", o->label);
    tensor *in[] = {cotangent[0], recorder_use(r, o->in[0]), recorder_use(r, o->in[1]), recorder_use(r, o->in[2]),
                    recorder_use(r, o->out[1])};
    tensor *dqkv = recorder_record(r, OP_head_norm_grad, "dx", in, 5, 1, given, &at)->out[0];
    recorder_gradient_done(r, o->in[1], false);
    recorder_gradient_done(r, o->in[2], false);
    recorder_flow(r, o->in[0], dqkv);
}

RULE(rope)
{
    op_attributes at = o->at;
    at.inverse = !at.inverse;
    tensor *in[] = {cotangent[0], o->in[1], o->in[2]};
    recorder_flow(r, o->in[0], recorder_record(r, OP_rope, "dx", in, 3, 1, NULL, &at)->out[0]);
}

RULE(attention)
{
    tensor *in[] = {cotangent[0], recorder_use(r, o->in[0]), recorder_use(r, o->out[0]), recorder_use(r, o->out[1]),
                    o->in[1]};
    recorder_flow(r, o->in[0], recorder_record(r, OP_attention_grad, "dx", in, 5, 1, NULL, &o->at)->out[0]);
}

static void elementwise(recorder *r, const op *o, op_kind kind, tensor *dy)
{
    tensor *in[] = {dy, recorder_use(r, o->in[0])};
    recorder_flow(r, o->in[0], recorder_record(r, kind, "dx", in, 2, 1, NULL, &o->at)->out[0]);
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
    tensor *dx = recorder_record(r, OP_copy, "dx", &cotangent[0], 1, 1, NULL, NULL)->out[0];
    recorder_flow(r, o->in[0], dx);
}

/* ---- communication: the cotangent changes its placement back ------------------------------------------------- */

RULE(all_gather)
{
    if (o->at.axis != AXIS_TENSOR)
        return; /* a sharded weight's gather: its gradient goes by recorder_gradient() */
    recorder_flow(r, o->in[0], record_reduce_scatter(r, "dx", cotangent[0]));
}

RULE(reduce_scatter)
{
    tensor *dx = record_all_gather(r, "dx", cotangent[0]);
    dx->place = place_cotangent(o->in[0]->place);
    recorder_flow(r, o->in[0], dx);
}

RULE(all_reduce)
{
    recorder_flow(r, o->in[0], cotangent[0]);
}

RULE(share)
{
    recorder_flow(r, o->in[0], record_all_reduce(r, "dx", cotangent[0]));
}

/* ---- ops that layers do not differentiate through, and those made of others after differentiation ------------------------------------------------------------ */

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
NO_RULE(send)
NO_RULE(receive)
NO_RULE(wait)
