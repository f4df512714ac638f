/* Attention, its gradient, and attention of one new token over a cache. */
#include "kernels/attention.h"
#include "kernels/ops/family.h"
#include "kernels/token.h"

static void check_values(const op *o, const tensor *k, const tensor *v)
{
    OPERANDS_CHECK(infer_is_activation(v) && v->type == k->type && v->shape[0] == k->shape[0] && v->shape[1] > 0 &&
                       v->shape[1] % o->at.heads.kv == 0,
                   "v[t, kv_heads v_head_size] of k's type");
}

/* Checks the inputs `in`: q, k, v. */
static void check_attention(const op *o, tensor *const *in, const tensor *document_start, const tensor *token_positions)
{
    const tensor *q = in[0], *k = in[1];
    const op_attention *at = &o->at.attention;
    infer_check_heads(o, q, k);
    check_values(o, k, in[2]);
    OPERANDS_CHECK(at->sequence > 0 && k->shape[0] % at->sequence == 0,
                   "keys must be whole samples of attention.sequence");
    OPERANDS_CHECK(token_positions ? infer_is_vector(token_positions, DTYPE_INT32, q->shape[0]) && at->run > 0 &&
                                         q->shape[0] % at->run == 0 && at->sequence % at->run == 0
                                   : at->run == 0 && q->shape[0] == k->shape[0],
                   "as many queries as keys, or token_positions int32[t] in runs of attention.run");
    OPERANDS_CHECK(at->window >= 0 && at->cap >= 0, "neither the window nor the cap may be negative");
    OPERANDS_CHECK(!document_start || infer_is_vector(document_start, DTYPE_INT32, q->shape[0]),
                   "document_start int32[t]");
}

/* (query, key) pairs of all heads of all samples under the causal mask and the window: query i sees min(i + 1, window)
 * keys. Zig-zag shards give ranks that divide a sample's queries equal work. */
static double count_pairs(const op *o, const tensor *q)
{
    const op_attention *at = &o->at.attention;
    double sequence = (double)at->sequence, samples = (double)q->shape[0] / sequence;
    double window = token_window(at->window, at->sequence);
    window = window > 0 ? window : sequence;
    return samples * (window * (window + 1) / 2 + (sequence - window) * window) * (double)o->at.heads.q;
}

void attention_work(double size[3], const op *o)
{
    size[0] = (double)o->in[0]->shape[0];
    size[1] = (double)o->at.attention.sequence;
    size[2] = (double)o->at.heads.q * o->at.heads.size;
}

double attention_reach(const op *o)
{
    const tensor *q = o->in[op_has(o, OP_GRADIENT) ? 1 : 0];
    return 2 * count_pairs(o, q) / ((double)q->shape[0] * (double)o->at.heads.q) - 1;
}

bool attention_work_varies(const op *o)
{
    if (o->kind != OP_attention && o->kind != OP_attention_grad)
        return false;
    return o->in[o->kind == OP_attention ? 3 : 6] ||
           (o->at.attention.run && token_window(o->at.attention.window, o->at.attention.sequence) > 0);
}

tensor *record_attention(recorder *r, const char *name, const record_qkv *in, tensor *document_start,
                         tensor *token_positions, tensor *sinks, const op_attributes *at)
{
    const op o = {.kind = OP_attention, .in = {in->q, in->k, in->v, document_start, token_positions, sinks}, .at = *at};
    return record_first(r, name, &o, 3);
}

tensor *record_attention_noted(recorder *r, const char *name, const record_qkv *in, tensor *document_start,
                               tensor *token_positions, tensor *max_logits, const op_attributes *at)
{
    const op attention = {
        .kind = OP_attention, .in = {in->q, in->k, in->v, document_start, token_positions}, .at = *at};
    const op *made = recorder_record(r, name, &attention, 7, NULL);
    const op note = {.kind = OP_max_logit, .in = {made->out[2]}, .out = {max_logits}, .at.accumulate = OP_WRITES_FIRST};
    recorder_record(r, "attention/largest", &note, 0, NULL);
    return made->out[0];
}

static void check_sinks(const op *o, const tensor *sinks, int type)
{
    OPERANDS_CHECK(!sinks || infer_is_vector(sinks, (dtype)type, o->at.heads.q), "sinks[heads] of q's type");
}

void infer_attention(op *o)
{
    const tensor *q = o->in[0];
    check_attention(o, o->in, o->in[3], o->in[4]);
    check_sinks(o, o->in[5], q->type);
    infer_shape(o->out[0], (dtype)q->type, 2, q->shape[0], o->at.heads.q * attention_v_head_size(o, o->in[2]), 0);
    infer_shape(o->out[1], DTYPE_FP32, 2, q->shape[0] / attention_run(o) * o->at.heads.q, attention_run(o), 0);
    OPERANDS_CHECK(!o->out[2] || (o->at.attention.cap == 0 && !o->in[5]),
                   "the largest scores are of neither a cap nor sinks");
    infer_shape(o->out[2], DTYPE_FP32, 2, o->at.heads.q, q->shape[0], 0);
    operands_place(o, "rrr..r>rrr 111..0>100 sss..s>sss bbb..s>bb1 0ss.0s>001");
}

/* Counts the scores and values: products of 2 head_size and of 2 v_head_size operations a pair. */
op_cost cost_attention(const op *o)
{
    double sizes = (double)(o->at.heads.size + attention_v_head_size(o, o->in[2]));
    return cost_of(o, 2 * count_pairs(o, o->in[0]) * sizes, 0);
}

void gradient_attention(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    op like = {.kind = OP_attention_grad, .in = {cotangent[0]}, .at = o->at};
    for (int i = 0; i < 3; i++)
        like.in[1 + i] = recorder_use(r, o->in[i]);
    like.in[4] = recorder_use(r, o->out[0]);
    like.in[5] = recorder_use(r, o->out[1]);
    like.in[6] = o->in[3];
    like.in[7] = o->in[4];
    gradient_of_each(r, &like, o->in, 3);
    if (!o->in[5])
        return;
    op sinks = {.kind = OP_attention_sinks_grad,
                .in = {cotangent[0], recorder_use(r, o->out[0]), recorder_use(r, o->out[1]), recorder_use(r, o->in[5])},
                .at.heads = o->at.heads};
    gradient_of_weight(r, "dsinks", sinks, o->in[5]);
}

void infer_attention_grad(op *o)
{
    const tensor *dy = o->in[0], *q = o->in[1], *k = o->in[2], *v = o->in[3];
    check_attention(o, &o->in[1], o->in[6], o->in[7]);
    OPERANDS_CHECK(infer_is_matrix(dy, (dtype)q->type, q->shape[0], o->at.heads.q * attention_v_head_size(o, v)) &&
                       infer_same(o->in[4], dy),
                   "dy and y [t, heads v_head_size]");
    OPERANDS_CHECK(
        infer_is_matrix(o->in[5], DTYPE_FP32, q->shape[0] / attention_run(o) * o->at.heads.q, attention_run(o)),
        "lse[t / run heads, run] fp32");
    infer_shape_like(o->out[0], q);
    infer_shape_like(o->out[1], k);
    infer_shape_like(o->out[2], v);
    operands_place(o, "rrrrrr..>rrr 111110..>111 psssss..>ppp bbbbbb..>bbb 00ss00.0>0pp");
}

/* Counts five products where forward has two: the scores again, dq and dk of head_size, dp and dv of v_head_size. */
op_cost cost_attention_grad(const op *o)
{
    double sizes = (double)(3 * o->at.heads.size + 2 * attention_v_head_size(o, o->in[3]));
    return cost_of(o, 2 * count_pairs(o, o->in[1]) * sizes, 0);
}

NO_GRADIENT(attention_grad)

void infer_attention_sinks_grad(op *o)
{
    const tensor *dy = o->in[0], *lse = o->in[2];
    OPERANDS_CHECK(infer_is_activation(dy) && infer_same(o->in[1], dy) && o->at.heads.q > 0 &&
                       dy->shape[1] % o->at.heads.q == 0,
                   "dy and y [t, heads v_head_size]");
    OPERANDS_CHECK(lse->type == DTYPE_FP32 && lse->dims == 2 && lse->shape[0] % o->at.heads.q == 0 &&
                       lse->shape[0] / o->at.heads.q * lse->shape[1] == dy->shape[0],
                   "lse[t / run heads, run] fp32");
    check_sinks(o, o->in[3], dy->type);
    OPERANDS_CHECK(infer_is_vector(o->out[0], DTYPE_FP32, o->at.heads.q), "dsinks[heads] fp32");
    operands_place(o, "rrrr>r 1100>0 psss>p bbbs>p 000s>p");
}

GRADIENTLESS(attention_sinks_grad, cost_each(o, 2, 1))

static bool is_cache(const tensor *cache, const tensor *x)
{
    return cache->dims == 3 && cache->type == x->type && cache->shape[0] == x->shape[0] &&
           cache->shape[2] == x->shape[1];
}

void infer_attention_decode(op *o)
{
    const tensor *q = o->in[0], *k = o->in[1], *v = o->in[2];
    infer_check_heads(o, q, k);
    check_values(o, k, v);
    OPERANDS_CHECK(k->shape[0] == q->shape[0] && infer_is_vector(o->in[3], DTYPE_INT32, q->shape[0]),
                   "a key each, positions int32[b]");
    OPERANDS_CHECK(is_cache(o->in[4], k) && is_cache(o->in[5], v) && o->in[4]->shape[1] == o->in[5]->shape[1],
                   "caches [b, positions, kv_heads head_size] and [b, positions, kv_heads v_head_size]");
    check_sinks(o, o->in[6], q->type);
    infer_shape(o->out[0], (dtype)q->type, 2, q->shape[0], o->at.heads.q * attention_v_head_size(o, v), 0);
    operands_place(o, "rrr.rrr>r 111.220>1 sss.sss>s");
}

/* The cache is counted at its full length. */
op_cost cost_attention_decode(const op *o)
{
    double keys = (double)o->in[4]->shape[0] * (double)o->in[4]->shape[1];
    double sizes = (double)(o->at.heads.size + attention_v_head_size(o, o->in[2]));
    return cost_of(o, 2 * keys * (double)o->at.heads.q * sizes, 0);
}

NO_GRADIENT(attention_decode)
