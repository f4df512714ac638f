/* These ops change each head of q and k before attention. */
#include "kernels/attention.h"
#include "kernels/ops/family.h"

static double both(const op *o)
{
    return cost_elements(o->in[0]) + cost_elements(o->in[1]);
}

record_qkv record_split_heads(recorder *r, tensor *qkv, const op_attributes *at)
{
    int64_t q = (int64_t)at->heads.q * at->heads.size, k = (int64_t)at->heads.kv * at->heads.size;
    return (record_qkv){.q = recorder_columns(r, qkv, 0, q),
                        .k = recorder_columns(r, qkv, q, k),
                        .v = recorder_columns(r, qkv, q + k, qkv->shape[1] - q - k)};
}

void record_head_norm(recorder *r, const char *name, record_qkv *x, tensor *wq, tensor *wk, const op_attributes *at)
{
    const op *made =
        recorder_record(r, name, &(op){.kind = OP_head_norm, .in = {x->q, x->k, wq, wk}, .at = *at}, 7, NULL);
    x->q = made->out[0];
    x->k = made->out[1];
}

/* Queries and keys of the same tokens. */
static void check_tokens(const op *o, const tensor *q, const tensor *k)
{
    infer_check_heads(o, q, k);
    OPERANDS_CHECK(k->shape[0] == q->shape[0], "as many keys as queries");
}

static void check_head_weights(const op *o, const tensor *wq, const tensor *wk, dtype type)
{
    OPERANDS_CHECK(infer_is_vector(wq, type, o->at.heads.size) && infer_is_vector(wk, type, o->at.heads.size),
                   "wq[head_size], wk[head_size] of the same type");
}

void infer_head_norm(op *o)
{
    const tensor *q = o->in[0], *k = o->in[1];
    check_tokens(o, q, k);
    check_head_weights(o, o->in[2], o->in[3], (dtype)q->type);
    infer_shape_like(o->out[0], q);
    infer_shape_like(o->out[1], k);
    infer_shape(o->out[2], DTYPE_FP32, 2, q->shape[0], o->at.heads.q + o->at.heads.kv, 0);
    operands_place(o, "rrrr>rrr 11ss>111 00ss>000 ssss>sss");
}

COST(head_norm, cost_of(o, 4 * both(o), 0))

void gradient_head_norm(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    op like = {.kind = OP_head_norm_grad, .in = {cotangent[0], cotangent[1]}, .at = o->at};
    uint8_t also;
    MUST(cotangent[0] && cotangent[1], "%s: q and k must both be used", o->label);
    like.out[2] = recorder_gradient(r, o->in[2], &like.at.accumulate);
    like.out[3] = recorder_gradient(r, o->in[3], &also);
    MUST(also == like.at.accumulate, "%s: gradients of the two weights out of step", o->label);
    for (int i = 0; i < 4; i++)
        like.in[2 + i] = recorder_use(r, o->in[i]);
    like.in[6] = recorder_use(r, o->out[2]);
    gradient_of_each(r, &like, o->in, 2);
    recorder_gradient_done(r, o->in[2], false);
    recorder_gradient_done(r, o->in[3], false);
}

void infer_head_norm_grad(op *o)
{
    const tensor *q = o->in[2], *k = o->in[3];
    check_tokens(o, q, k);
    OPERANDS_CHECK(infer_same(o->in[0], q) && infer_same(o->in[1], k), "dyq like q, dyk like k");
    check_head_weights(o, o->in[4], o->in[5], (dtype)q->type);
    OPERANDS_CHECK(infer_is_matrix(o->in[6], DTYPE_FP32, q->shape[0], o->at.heads.q + o->at.heads.kv),
                   "rstd[t, heads + kv_heads] fp32");
    for (int i = 2; i < 4; i++)
        OPERANDS_CHECK(infer_is_vector(o->out[i], DTYPE_FP32, o->at.heads.size), "dwq[head_size], dwk[head_size] fp32");
    infer_shape_like(o->out[0], q);
    infer_shape_like(o->out[1], k);
    operands_place(o, "rrrrrrr>rrrr 1111ss1>11pp 0000ss0>00pp ppsssss>pppp");
}

GRADIENTLESS(head_norm_grad, cost_of(o, 10 * both(o), 12))

/* ---- q and k by all their width ------------------------------------------------------------------------------- */

static void check_widths(const op *o, const tensor *q, const tensor *k)
{
    OPERANDS_CHECK(infer_is_activation(q) && k->dims == 2 && k->type == q->type && k->shape[0] == q->shape[0],
                   "q[t, n], k[t, m] of one type");
    OPERANDS_CHECK(o->at.norm.width[0] >= q->shape[1] && o->at.norm.width[1] >= k->shape[1],
                   "widths of at least a rank's elements");
}

static void check_width_weights(const op *o, const tensor *q, const tensor *k, const tensor *wq, const tensor *wk)
{
    OPERANDS_CHECK(infer_is_vector(wq, (dtype)q->type, q->shape[1]) && infer_is_vector(wk, (dtype)q->type, k->shape[1]),
                   "wq like a row of q, wk like one of k");
}

static void check_sums(const op *o, const tensor *sums, const tensor *q)
{
    OPERANDS_CHECK(infer_is_matrix(sums, DTYPE_FP32, q->shape[0], 2),
                   "a sum of q's and one of k's for each token, fp32");
}

void record_width_norm(recorder *r, const char *name, record_qkv *x, tensor *wq, tensor *wk, const op_attributes *at)
{
    tensor *own = record_first(r, name, &(op){.kind = OP_width_squares, .in = {x->q, x->k}, .at = *at}, 1);
    /* sums of all ranks, which each uses for its own elements */
    tensor *sums = record_copy_to_shards(r, name, AXIS_TENSOR, record_all_reduce(r, name, AXIS_TENSOR, own));
    op like = {.kind = OP_width_norm, .in = {x->q, x->k, wq, wk, sums}, .at = *at};
    const op *made = recorder_record(r, name, &like, 3, NULL);
    x->q = made->out[0];
    x->k = made->out[1];
}

void infer_width_squares(op *o)
{
    check_widths(o, o->in[0], o->in[1]);
    infer_shape(o->out[0], DTYPE_FP32, 2, o->in[0]->shape[0], 2, 0);
    operands_place(o, "rr>r 11>p 00>0 ss>s");
}

COST(width_squares, cost_of(o, 2 * both(o), 0))

/* The gradient of width_norm covers both ops: the sums have no other reader. */
NO_GRADIENT(width_squares)

void infer_width_norm(op *o)
{
    const tensor *q = o->in[0], *k = o->in[1];
    check_widths(o, q, k);
    check_width_weights(o, q, k, o->in[2], o->in[3]);
    check_sums(o, o->in[4], q);
    OPERANDS_CHECK(o->at.norm.epsilon >= 0, "epsilon must not be negative");
    infer_shape_like(o->out[0], q);
    infer_shape_like(o->out[1], k);
    operands_place(o, "rrrrr>rr 1100s>11 00ss0>00 sssss>ss");
}

COST(width_norm, cost_of(o, 2 * both(o), 0))

void gradient_width_norm(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    MUST(cotangent[0] && cotangent[1], "%s: q and k must both be used", o->label);
    op dots = {.kind = OP_width_dots, .in = {cotangent[0], cotangent[1]}, .at = o->at};
    uint8_t also;
    dots.out[1] = recorder_gradient(r, o->in[2], &dots.at.accumulate);
    dots.out[2] = recorder_gradient(r, o->in[3], &also);
    MUST(also == dots.at.accumulate, "%s: gradients of the two weights out of step", o->label);
    for (int i = 0; i < 5; i++)
        dots.in[2 + i] = recorder_use(r, o->in[i]);
    op like = dots;
    like.kind = OP_width_norm_grad;
    like.at.accumulate = 0;
    like.out[1] = like.out[2] = NULL;
    like.in[7] = record_all_reduce(r, "dots", AXIS_TENSOR, record_first(r, "dots", &dots, 1));
    gradient_of_each(r, &like, o->in, 2);
    recorder_gradient_done(r, o->in[2], false);
    recorder_gradient_done(r, o->in[3], false);
}

/* Checks the operands that both ops of the gradient read. */
static void check_width_gradient(const op *o)
{
    const tensor *q = o->in[2], *k = o->in[3];
    check_widths(o, q, k);
    OPERANDS_CHECK(infer_same(o->in[0], q) && infer_same(o->in[1], k), "dyq like q, dyk like k");
    check_width_weights(o, q, k, o->in[4], o->in[5]);
    check_sums(o, o->in[6], q);
}

void infer_width_dots(op *o)
{
    check_width_gradient(o);
    for (int i = 1; i < 3; i++)
        OPERANDS_CHECK(infer_is_vector(o->out[i], DTYPE_FP32, o->in[3 + i]->shape[0]),
                       "dwq like wq, dwk like wk, fp32");
    infer_shape(o->out[0], DTYPE_FP32, 2, o->in[2]->shape[0], 2, 0);
    operands_place(o, "rrrrrrr>rrr 111100s>p00 0000ss0>0pp ppsssss>ppp");
}

GRADIENTLESS(width_dots, cost_of(o, 5 * both(o), 6))

void infer_width_norm_grad(op *o)
{
    check_width_gradient(o);
    check_sums(o, o->in[7], o->in[2]);
    infer_shape_like(o->out[0], o->in[2]);
    infer_shape_like(o->out[1], o->in[3]);
    operands_place(o, "rrrrrrrr>rr 111100sr>11 0000ss00>00 ppsssssp>pp");
}

GRADIENTLESS(width_norm_grad, cost_of(o, 5 * both(o), 0))

/* ---- positions -------------------------------------------------------------------------------------------------- */

static op rope_of(tensor *q, tensor *k, tensor *positions, tensor *table, const op_attributes *at)
{
    return (op){.kind = OP_rope, .in = {q, k, positions, table}, .at = *at};
}

void record_rope(recorder *r, const char *name, record_qkv *x, tensor *positions, tensor *table,
                 const op_attributes *at)
{
    op like = rope_of(x->q, x->k, positions, table, at);
    const op *made = recorder_record(r, name, &like, 3, NULL);
    x->q = made->out[0];
    x->k = made->out[1];
}

static void check_rope_heads(const op *o, const tensor *q, const tensor *k)
{
    if (o->at.heads.kv) {
        check_tokens(o, q, k);
        return;
    }
    OPERANDS_CHECK(o->at.heads.q > 0 && infer_is_activation(q) &&
                       q->shape[1] == (int64_t)o->at.heads.q * o->at.heads.size,
                   "q[t, heads head_size]");
    OPERANDS_CHECK(infer_is_matrix(k, (dtype)q->type, q->shape[0], k->shape[1]) && k->shape[1] < o->at.heads.size,
                   "without kv_heads k[t, fewer than head_size] of q's type is the one head of all");
}

void infer_rope(op *o)
{
    const tensor *q = o->in[0], *k = o->in[1], *table = o->in[3];
    check_rope_heads(o, q, k);
    OPERANDS_CHECK(infer_is_vector(o->in[2], DTYPE_INT32, q->shape[0]), "positions int32[t]");
    OPERANDS_CHECK(table->shape[1] % 2 == 0 && table->shape[1] <= o->at.heads.size - latent_unrotated(o),
                   "the table's width must be even, and at most head_size, or k's columns where kv_heads is 0");
    OPERANDS_CHECK(infer_is_matrix(table, DTYPE_FP32, table->shape[0], table->shape[1]),
                   "table[positions, rotated] fp32");
    infer_shape_like(o->out[0], q);
    infer_shape_like(o->out[1], k);
    operands_place(o, o->at.heads.kv ? "rr..>rr 00..>00 11..>11 ss..>ss pp..>pp"
                                     : "rr..>rr 00..>00 1s..>1s 1p..>1p 1r..>1r ss..>ss pp..>pp");
}

op_cost cost_rope(const op *o)
{
    /* a token reads one row of the table */
    double bytes = 2 * (cost_bytes(o->in[0]) + cost_bytes(o->in[1])) + cost_bytes(o->in[2]) +
                   (double)o->in[0]->shape[0] * (double)o->in[3]->shape[1] * 4;
    double heads = (double)(o->at.heads.q + latent_key_heads(o));
    return (op_cost){3 * heads * (double)o->in[0]->shape[0] * (double)o->in[3]->shape[1], bytes};
}

void gradient_rope(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    MUST(cotangent[0] && cotangent[1], "%s: q and k must both be used", o->label);
    op like = rope_of(cotangent[0], cotangent[1], o->in[2], o->in[3], &o->at);
    like.at.rotation.inverse = !o->at.rotation.inverse;
    gradient_of_each(r, &like, o->in, 2);
}
