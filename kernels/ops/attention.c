/* Attention, its gradient, and attention of one new token over a cache. */
#include "kernels/ops/family.h"

static void check_attention(const op *o, const tensor *qkv, const tensor *document_start)
{
    infer_check_heads(o, qkv);
    OPERANDS_CHECK(o->at.sequence > 0 && qkv->shape[0] % o->at.sequence == 0,
                   "tokens must be whole samples of attributes.sequence");
    OPERANDS_CHECK(o->at.window >= 0, "the window must not be negative");
    OPERANDS_CHECK(!document_start || infer_is_vector(document_start, DTYPE_INT32, qkv->shape[0]),
                   "document_start int32[t]");
}

/* (query, key) pairs of all samples under the causal mask and the window: query i sees min(i + 1, window) keys. */
static double count_pairs(const op *o, const tensor *qkv)
{
    double sequence = (double)o->at.sequence, samples = (double)qkv->shape[0] / sequence;
    double window = o->at.window > 0 && o->at.window < o->at.sequence ? (double)o->at.window : sequence;
    return samples * (window * (window + 1) / 2 + (sequence - window) * window);
}

tensor *record_attention(recorder *r, const char *name, tensor *qkv, tensor *document_start, const op_attributes *at)
{
    return record_first(r, name, &(op){.kind = OP_attention, .in = {qkv, document_start}, .at = *at}, 3);
}

void infer_attention(op *o)
{
    operands_present(o);
    const tensor *qkv = o->in[0];
    check_attention(o, qkv, o->in[1]);
    infer_shape(o->out[0], (dtype)qkv->type, 2, qkv->shape[0], (int64_t)o->at.heads * o->at.head_size, 0);
    infer_shape(o->out[1], DTYPE_FP32, 2, o->at.heads, qkv->shape[0], 0);
    operands_place(o, "r.>rr 1.>10 s.>ss b.>b1");
}

/* Scores and values: two products of 2 head_size operations a pair and head. */
op_cost cost_attention(const op *o)
{
    return cost_of(o, 4 * count_pairs(o, o->in[0]) * (double)o->at.heads * (double)o->at.head_size, 0);
}

void gradient_attention(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    op like = {.kind = OP_attention_grad, .in = {cotangent[0]}, .at = o->at};
    like.in[1] = recorder_use(r, o->in[0]);
    like.in[2] = recorder_use(r, o->out[0]);
    like.in[3] = recorder_use(r, o->out[1]);
    like.in[4] = o->in[1];
    recorder_flow(r, o->in[0], gradient_by(r, &like));
}

void infer_attention_grad(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *qkv = o->in[1];
    check_attention(o, qkv, o->in[4]);
    OPERANDS_CHECK(infer_is_matrix(dy, (dtype)qkv->type, qkv->shape[0], (int64_t)o->at.heads * o->at.head_size) &&
                       infer_same(o->in[2], dy),
                   "dy and y [t, heads head_size]");
    OPERANDS_CHECK(infer_is_matrix(o->in[3], DTYPE_FP32, o->at.heads, qkv->shape[0]), "lse[heads, t] fp32");
    infer_shape_like(o->out[0], qkv);
    operands_place(o, "rrrr.>r 1110.>1 psss.>p bbb1.>b");
}

/* Five products where forward has two: the scores again, dp, dv, dq, dk. */
op_cost cost_attention_grad(const op *o)
{
    return cost_of(o, 10 * count_pairs(o, o->in[1]) * (double)o->at.heads * (double)o->at.head_size, 0);
}

NO_GRADIENT(attention_grad)

void infer_attention_decode(op *o)
{
    operands_present(o);
    const tensor *qkv = o->in[0], *k = o->in[2];
    infer_check_heads(o, qkv);
    OPERANDS_CHECK(infer_is_vector(o->in[1], DTYPE_INT32, qkv->shape[0]), "positions int32[b]");
    OPERANDS_CHECK(k->dims == 3 && k->type == qkv->type && k->shape[0] == qkv->shape[0] &&
                       k->shape[2] == (int64_t)o->at.kv_heads * o->at.head_size && infer_same(k, o->in[3]),
                   "caches [b, positions, kv_heads head_size]");
    infer_shape(o->out[0], (dtype)qkv->type, 2, qkv->shape[0], (int64_t)o->at.heads * o->at.head_size, 0);
    operands_place(o, "r.rr>r 1.22>1 s.ss>s");
}

/* The cache is counted at its full length. */
op_cost cost_attention_decode(const op *o)
{
    double keys = (double)o->in[2]->shape[0] * (double)o->in[2]->shape[1];
    return cost_of(o, 4 * keys * (double)o->at.heads * (double)o->at.head_size, 0);
}

NO_GRADIENT(attention_decode)
