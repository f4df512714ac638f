/* Ops of layers and their gradients. */
#include "kernels/fuse.h"
#include "kernels/infer.h"

#define CHECK OPERANDS_CHECK

/* Element-wise forward ops, linear element-wise ops, and the cotangents of the former beside their inputs. */
#define PLACE_EACH        "r>r 0>0 1>1 2>2 s>s"
#define PLACE_EACH_LINEAR "r>r 0>0 1>1 2>2 s>s p>p"
#define PLACE_EACH_GRAD   "rr>r 00>0 11>1 22>2 ps>p"

/* The row [t, (heads + 2 kv_heads) head_size] that q, k and v share. */
static void check_heads(const op *o, const tensor *qkv)
{
    const op_attributes *at = &o->at;
    CHECK(at->heads > 0 && at->kv_heads > 0 && at->heads % at->kv_heads == 0, "heads must be a multiple of kv_heads");
    CHECK(at->head_size > 0 && infer_is_activation(qkv) &&
              qkv->shape[1] == (int64_t)(at->heads + 2 * at->kv_heads) * at->head_size,
          "a row must hold (heads + 2 kv_heads) head_size elements");
}

/* ---- matrix products ----------------------------------------------------------------------------------------- */

void infer_linear(op *o)
{
    operands_present(o);
    const tensor *x = o->in[0], *w = o->in[1], *bias = o->in[2];
    CHECK(infer_is_activation(x) && w->dims == 2 && w->type == x->type && w->shape[1] == x->shape[1],
          "x[t, k], w[n, k] of one type");
    CHECK(!bias || infer_is_vector(bias, (dtype)x->type, w->shape[0]), "bias[n] of the same type");
    infer_shape(o->out[0], (dtype)x->type, 2, x->shape[0], w->shape[0], 0);
    /* A partial sum takes a bias that is itself placed partial: one rank has it, the others none. */
    operands_place(o, "rrr>r s00>1 11p>p 0ss>0 sss>s");
}

void infer_linear_grad_input(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *w = o->in[1], *addend = o->in[2];
    CHECK(infer_is_activation(dy) && w->dims == 2 && w->type == dy->type && w->shape[0] == dy->shape[1],
          "dy[t, n], w[n, k] of one type");
    CHECK(!addend || infer_is_matrix(addend, (dtype)dy->type, dy->shape[0], w->shape[1]),
          "addend[t, k] of the same type");
    infer_shape(o->out[0], (dtype)dy->type, 2, dy->shape[0], w->shape[1], 0);
    operands_place(o, "rrr>r 10p>p r11>1 0s0>0 psp>p");
}

void infer_linear_grad_weight(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *x = o->in[1];
    CHECK(infer_is_activation(dy) && infer_is_activation(x) && dy->type == x->type && dy->shape[0] == x->shape[0],
          "dy[t, n], x[t, k] of one type");
    CHECK(infer_is_matrix(o->out[0], DTYPE_FP32, dy->shape[1], x->shape[1]), "dw[n, k] fp32");
    operands_place(o, "rr>r 1s>0 r1>1 00>p ps>p");
}

/* As the two ops that it is made of. */
static void infer_fused(op *o)
{
    operands_present(o);
    op first = fuse_first(o), second = fuse_second(o);
    op_row_of(&first)->infer(&first);
    op_row_of(&second)->infer(&second);
}

void infer_linear_gelu(op *o)
{
    infer_fused(o);
}

void infer_linear_grad_gelu(op *o)
{
    infer_fused(o);
}

void infer_bias_grad(op *o)
{
    operands_present(o);
    CHECK(infer_is_activation(o->in[0]), "dy[t, n]");
    CHECK(infer_is_vector(o->out[0], DTYPE_FP32, o->in[0]->shape[1]), "db[n] fp32");
    operands_place(o, "r>r 1>0 0>p p>p");
}

/* ---- embeddings ---------------------------------------------------------------------------------------------- */

void infer_embed(op *o)
{
    operands_present(o);
    const tensor *tokens = o->in[0], *table = o->in[1];
    CHECK(infer_is_vector(tokens, DTYPE_INT32, tokens->shape[0]), "tokens int32[t]");
    CHECK(infer_is_activation(table), "table[v, h]");
    infer_shape(o->out[0], (dtype)table->type, 2, tokens->shape[0], table->shape[1], 0);
    operands_place(o, "rr>r r0>p 0s>0 rs>s");
}

static void check_table_grad(const op *o, const char *why)
{
    const tensor *dy = o->in[0], *dtable = o->out[0];
    CHECK(infer_is_activation(dy) && infer_is_vector(o->in[1], DTYPE_INT32, dy->shape[0]),
          "dy[t, h], indices int32[t]");
    CHECK(infer_is_matrix(dtable, DTYPE_FP32, dtable->shape[0], dy->shape[1]), why);
}

void infer_embed_grad(op *o)
{
    operands_present(o);
    check_table_grad(o, "dtable[v, h] fp32");
    operands_place(o, "r.>r r.>0 0.>p p.>p");
}

void infer_add_positions(op *o)
{
    operands_present(o);
    const tensor *x = o->in[0], *positions = o->in[1], *table = o->in[2];
    CHECK(infer_is_activation(x) && infer_is_vector(positions, DTYPE_INT32, x->shape[0]),
          "x[t, h], positions int32[t]");
    CHECK(infer_is_matrix(table, (dtype)x->type, table->shape[0], x->shape[1]), "table[p, h] of the same type");
    infer_shape_like(o->out[0], x);
    operands_place(o, "r.r>r 0.s>0 s.s>s");
}

void infer_add_positions_grad(op *o)
{
    operands_present(o);
    check_table_grad(o, "dtable[p, h] fp32");
    operands_place(o, "r.>r 0.>p p.>p");
}

/* ---- norms --------------------------------------------------------------------------------------------------- */

static void check_norm(const op *o, const tensor *x, const tensor *w, const tensor *residual)
{
    CHECK(infer_is_activation(x) && infer_is_vector(w, (dtype)x->type, x->shape[1]), "x[t, h], w[h] of one type");
    CHECK(!residual || infer_same(residual, x), "the residual must be like x");
    CHECK(o->at.epsilon >= 0, "epsilon must not be negative");
}

void infer_rmsnorm(op *o)
{
    operands_present(o);
    const tensor *x = o->in[0];
    check_norm(o, x, o->in[1], o->in[2]);
    CHECK(!o->in[2] == !o->out[2], "the sum s is an output exactly when there is a residual");
    infer_shape_like(o->out[0], x);
    infer_shape(o->out[1], DTYPE_FP32, 1, x->shape[0], 0, 0);
    if (o->out[2])
        infer_shape_like(o->out[2], x);
    operands_place(o, "rrr>rrr 0s0>000 sss>sss");
}

void infer_rmsnorm_grad(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *s = o->in[1], *w = o->in[2], *addend = o->in[4];
    check_norm(o, s, w, addend);
    CHECK(infer_same(dy, s) && infer_is_vector(o->in[3], DTYPE_FP32, s->shape[0]), "dy like s, rstd fp32[t]");
    CHECK(infer_is_vector(o->out[1], DTYPE_FP32, s->shape[1]), "dw[h] fp32");
    infer_shape_like(o->out[0], s);
    operands_place(o, "rrrrr>rr 00s00>0p psssp>pp");
}

void infer_layernorm(op *o)
{
    operands_present(o);
    const tensor *x = o->in[0];
    check_norm(o, x, o->in[1], o->in[3]);
    CHECK(infer_same(o->in[2], o->in[1]), "b must be like w");
    CHECK(!o->in[3] == !o->out[3], "the sum s is an output exactly when there is a residual");
    infer_shape_like(o->out[0], x);
    infer_shape(o->out[1], DTYPE_FP32, 1, x->shape[0], 0, 0);
    infer_shape(o->out[2], DTYPE_FP32, 1, x->shape[0], 0, 0);
    if (o->out[3])
        infer_shape_like(o->out[3], x);
    operands_place(o, "rrrr>rrrr 0ss0>0000 ssss>ssss");
}

void infer_layernorm_grad(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *s = o->in[1], *w = o->in[2], *addend = o->in[5];
    check_norm(o, s, w, addend);
    CHECK(infer_same(dy, s) && infer_is_vector(o->in[3], DTYPE_FP32, s->shape[0]), "dy like s, rstd fp32[t]");
    CHECK(infer_is_vector(o->in[4], DTYPE_FP32, s->shape[0]), "mean fp32[t]");
    CHECK(infer_is_vector(o->out[1], DTYPE_FP32, s->shape[1]) && infer_is_vector(o->out[2], DTYPE_FP32, s->shape[1]),
          "dw[h], db[h] fp32");
    infer_shape_like(o->out[0], s);
    operands_place(o, "rrrrrr>rrr 00s000>0pp pssssp>ppp");
}

void infer_head_norm(op *o)
{
    operands_present(o);
    const tensor *qkv = o->in[0];
    check_heads(o, qkv);
    for (int i = 1; i < 3; i++)
        CHECK(infer_is_vector(o->in[i], (dtype)qkv->type, o->at.head_size),
              "wq[head_size], wk[head_size] of the same type");
    infer_shape_like(o->out[0], qkv);
    infer_shape(o->out[1], DTYPE_FP32, 2, qkv->shape[0], o->at.heads + o->at.kv_heads, 0);
    operands_place(o, "rrr>rr 1ss>11 0ss>00 sss>ss");
}

void infer_head_norm_grad(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *qkv = o->in[1];
    check_heads(o, qkv);
    CHECK(infer_same(dy, qkv), "dy like qkv");
    for (int i = 2; i < 4; i++)
        CHECK(infer_is_vector(o->in[i], (dtype)qkv->type, o->at.head_size),
              "wq[head_size], wk[head_size] of the same type");
    CHECK(infer_is_matrix(o->in[4], DTYPE_FP32, qkv->shape[0], o->at.heads + o->at.kv_heads),
          "rstd[t, heads + kv_heads] fp32");
    for (int i = 1; i < 3; i++)
        CHECK(infer_is_vector(o->out[i], DTYPE_FP32, o->at.head_size), "dwq[head_size], dwk[head_size] fp32");
    infer_shape_like(o->out[0], qkv);
    operands_place(o, "rrrrr>rrr 11ss1>1pp 00ss0>0pp pssss>ppp");
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

void infer_rope(op *o)
{
    operands_present(o);
    const tensor *qkv = o->in[0], *table = o->in[2];
    check_heads(o, qkv);
    CHECK(o->at.head_size % 2 == 0, "head_size must be even");
    CHECK(infer_is_vector(o->in[1], DTYPE_INT32, qkv->shape[0]), "positions int32[t]");
    CHECK(infer_is_matrix(table, DTYPE_FP32, table->shape[0], o->at.head_size), "table[positions, head_size] fp32");
    infer_shape_like(o->out[0], qkv);
    operands_place(o, "r..>r 0..>0 1..>1 s..>s p..>p");
}

static void check_attention(const op *o, const tensor *qkv, const tensor *document_start)
{
    check_heads(o, qkv);
    CHECK(o->at.sequence > 0 && qkv->shape[0] % o->at.sequence == 0,
          "tokens must be whole samples of attributes.sequence");
    CHECK(o->at.window >= 0, "the window must not be negative");
    CHECK(!document_start || infer_is_vector(document_start, DTYPE_INT32, qkv->shape[0]), "document_start int32[t]");
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

void infer_attention_grad(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *qkv = o->in[1];
    check_attention(o, qkv, o->in[4]);
    CHECK(infer_is_matrix(dy, (dtype)qkv->type, qkv->shape[0], (int64_t)o->at.heads * o->at.head_size) &&
              infer_same(o->in[2], dy),
          "dy and y [t, heads head_size]");
    CHECK(infer_is_matrix(o->in[3], DTYPE_FP32, o->at.heads, qkv->shape[0]), "lse[heads, t] fp32");
    infer_shape_like(o->out[0], qkv);
    operands_place(o, "rrrr.>r 1110.>1 psss.>p bbb1.>b");
}

void infer_attention_decode(op *o)
{
    operands_present(o);
    const tensor *qkv = o->in[0], *k = o->in[2];
    check_heads(o, qkv);
    CHECK(infer_is_vector(o->in[1], DTYPE_INT32, qkv->shape[0]), "positions int32[b]");
    CHECK(k->dims == 3 && k->type == qkv->type && k->shape[0] == qkv->shape[0] &&
              k->shape[2] == (int64_t)o->at.kv_heads * o->at.head_size && infer_same(k, o->in[3]),
          "caches [b, positions, kv_heads head_size]");
    infer_shape(o->out[0], (dtype)qkv->type, 2, qkv->shape[0], (int64_t)o->at.heads * o->at.head_size, 0);
    operands_place(o, "r.rr>r 1.22>1 s.ss>s");
}

/* ---- element-wise -------------------------------------------------------------------------------------------- */

void infer_gelu(op *o)
{
    operands_present(o);
    CHECK(infer_is_compute(o->in[0]), "x must be of a compute type");
    infer_shape_like(o->out[0], o->in[0]);
    operands_place(o, PLACE_EACH);
}

void infer_gelu_grad(op *o)
{
    operands_present(o);
    CHECK(infer_is_compute(o->in[1]) && infer_same(o->in[0], o->in[1]), "dy like x");
    infer_shape_like(o->out[0], o->in[1]);
    operands_place(o, PLACE_EACH_GRAD);
}

void infer_swiglu(op *o)
{
    operands_present(o);
    const tensor *x = o->in[0];
    CHECK(infer_is_activation(x) && x->shape[1] % 2 == 0, "x[t, 2f]");
    infer_shape(o->out[0], (dtype)x->type, 2, x->shape[0], x->shape[1] / 2, 0);
    operands_place(o, PLACE_EACH);
}

void infer_swiglu_grad(op *o)
{
    operands_present(o);
    const tensor *dy = o->in[0], *x = o->in[1];
    CHECK(infer_is_activation(x) && x->shape[1] % 2 == 0 &&
              infer_is_matrix(dy, (dtype)x->type, x->shape[0], x->shape[1] / 2),
          "dy[t, f], x[t, 2f]");
    infer_shape_like(o->out[0], x);
    operands_place(o, PLACE_EACH_GRAD);
}

void infer_add(op *o)
{
    operands_present(o);
    CHECK(infer_is_compute(o->in[0]) && infer_same(o->in[0], o->in[1]), "a and b of one shape and type");
    infer_shape_like(o->out[0], o->in[0]);
    operands_place(o, "rr>r 00>0 11>1 22>2 ss>s pp>p");
}

void infer_accumulate(op *o)
{
    operands_present(o);
    CHECK(o->in[0]->type == DTYPE_FP32 && infer_same(o->in[0], o->out[0]), "part and total fp32 of one shape");
    operands_place(o, PLACE_EACH_LINEAR);
}

void infer_dropout(op *o)
{
    operands_present(o);
    CHECK(infer_is_activation(o->in[0]) && infer_is_scalars(o->in[1]), "x[t, h] and the step's scalars");
    CHECK(o->at.sequence > 0, "attributes.sequence must say how many tokens a sample has");
    CHECK(o->at.probability >= 0 && o->at.probability < 1, "the probability must be in [0, 1)");
    infer_shape_like(o->out[0], o->in[0]);
    operands_place(o, "r.>r 0.>0 s.>s p.>p"); /* shard(1): the element's number would need the rank's first column */
}

void infer_cast(op *o)
{
    operands_present(o);
    CHECK(infer_is_compute(o->in[0]) && infer_is_compute(o->out[0]) && o->out[0]->type != o->in[0]->type &&
              infer_same_shape(o->out[0], o->in[0]),
          "to and from two different compute types, of one shape");
    operands_place(o, PLACE_EACH_LINEAR);
}

void infer_copy(op *o)
{
    operands_present(o);
    infer_shape_like(o->out[0], o->in[0]);
    operands_place(o, PLACE_EACH_LINEAR);
}

void infer_zero(op *o)
{
    operands_present(o);
    CHECK(o->out[0]->dims > 0, "what is to be zeroed must be described");
}

/* ---- loss ---------------------------------------------------------------------------------------------------- */

static void check_logits(const op *o)
{
    const tensor *logits = o->in[0];
    CHECK(infer_is_activation(logits) && infer_is_vector(o->in[1], DTYPE_INT32, logits->shape[0]),
          "logits[t, v], targets int32[t]");
    CHECK(o->at.count >= 0 && o->at.count <= logits->shape[1], "attributes.count exceeds the columns");
}

void infer_cross_entropy_stats(op *o)
{
    operands_present(o);
    check_logits(o);
    infer_shape(o->out[0], DTYPE_FP32, 2, o->in[0]->shape[0], 3, 0);
    operands_place(o, "r.>r 1.>0 b.>b");
}

void infer_cross_entropy(op *o)
{
    operands_present(o);
    check_logits(o);
    const tensor *logits = o->in[0], *stats = o->in[2];
    CHECK(stats->dims == 2 && stats->type == DTYPE_FP32 && stats->shape[1] == 3 && stats->shape[0] > 0 &&
              stats->shape[0] % logits->shape[0] == 0,
          "stats[n t, 3] fp32");
    CHECK(infer_is_scalars(o->in[3]) && infer_is_vector(o->out[0], DTYPE_FP32, 1), "the step's scalars, loss fp32[1]");
    if (o->out[1])
        infer_shape_like(o->out[1], logits);
    /* Tensor ranks have the same loss: whose share of the sum over ranks it is, is the reader's to say. */
    operands_place(o, "r.r.>.r 1.r.>.1 1.s.>.1 b.b.>pb");
}
