/* These ops change each head of q and k before attention. */
#include "kernels/ops/family.h"

tensor *record_head_norm(recorder *r, const char *name, tensor *qkv, tensor *wq, tensor *wk, const op_attributes *at)
{
    return record_first(r, name, &(op){.kind = OP_head_norm, .in = {qkv, wq, wk}, .at = *at}, 3);
}

void infer_head_norm(op *o)
{
    operands_present(o);
    const tensor *qkv = o->in[0];
    infer_check_heads(o, qkv);
    for (int i = 1; i < 3; i++)
        OPERANDS_CHECK(infer_is_vector(o->in[i], (dtype)qkv->type, o->at.head_size),
                       "wq[head_size], wk[head_size] of the same type");
    infer_shape_like(o->out[0], qkv);
    infer_shape(o->out[1], DTYPE_FP32, 2, qkv->shape[0], o->at.heads + o->at.kv_heads, 0);
    operands_place(o, "rrr>rr 1ss>11 0ss>00 sss>ss");
}

op_cost cost_head_norm(const op *o)
{
    return cost_each(o, 4, 0);
}

void gradient_head_norm(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
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
    tensor *dqkv = gradient_by(r, &like);
    recorder_gradient_done(r, o->in[1], false);
    recorder_gradient_done(r, o->in[2], false);
    recorder_flow(r, o->in[0], dqkv);
}

void infer_head_norm_grad(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *qkv = o->in[1];
    infer_check_heads(o, qkv);
    OPERANDS_CHECK(infer_same(dy, qkv), "dy like qkv");
    for (int i = 2; i < 4; i++)
        OPERANDS_CHECK(infer_is_vector(o->in[i], (dtype)qkv->type, o->at.head_size),
                       "wq[head_size], wk[head_size] of the same type");
    OPERANDS_CHECK(infer_is_matrix(o->in[4], DTYPE_FP32, qkv->shape[0], o->at.heads + o->at.kv_heads),
                   "rstd[t, heads + kv_heads] fp32");
    for (int i = 1; i < 3; i++)
        OPERANDS_CHECK(infer_is_vector(o->out[i], DTYPE_FP32, o->at.head_size), "dwq[head_size], dwk[head_size] fp32");
    infer_shape_like(o->out[0], qkv);
    operands_place(o, "rrrrr>rrr 11ss1>1pp 00ss0>0pp pssss>ppp");
}

op_cost cost_head_norm_grad(const op *o)
{
    return cost_each(o, 10, 6);
}

NO_GRADIENT(head_norm_grad)

tensor *record_rope(recorder *r, const char *name, tensor *qkv, tensor *positions, tensor *table,
                    const op_attributes *at)
{
    return record_first(r, name, &(op){.kind = OP_rope, .in = {qkv, positions, table}, .at = *at}, 1);
}

void infer_rope(op *o)
{
    operands_present(o);
    const tensor *qkv = o->in[0], *table = o->in[2];
    infer_check_heads(o, qkv);
    OPERANDS_CHECK(o->at.head_size % 2 == 0, "head_size must be even");
    OPERANDS_CHECK(infer_is_vector(o->in[1], DTYPE_INT32, qkv->shape[0]), "positions int32[t]");
    OPERANDS_CHECK(infer_is_matrix(table, DTYPE_FP32, table->shape[0], o->at.head_size),
                   "table[positions, head_size] fp32");
    infer_shape_like(o->out[0], qkv);
    operands_place(o, "r..>r 0..>0 1..>1 s..>s p..>p");
}

op_cost cost_rope(const op *o)
{
    /* a token reads one row of the table */
    return (op_cost){3 * cost_elements(o->in[0]), 2 * cost_bytes(o->in[0]) + cost_bytes(o->in[1]) +
                                                      (double)o->in[0]->shape[0] * (double)o->at.head_size * 4};
}

void gradient_rope(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    op like = {.kind = OP_rope, .in = {cotangent[0], o->in[1], o->in[2]}, .at = o->at};
    like.at.inverse = !o->at.inverse;
    recorder_flow(r, o->in[0], gradient_by(r, &like));
}
