/* What an op costs: floating-point operations and bytes of memory traffic. Products count 2 a multiply-add; causal
 * attention counts the (query, key) pairs that its mask leaves, exactly, document boundaries aside. Other ops count a few operations an
 * element, exp and the like as one. Bytes: every operand once, and once more where an output is added to. */
#include "kernels/compress.h"
#include "kernels/fuse.h"

#define OP(name, ...) op_cost cost_##name(const op *o);
#include "kernels/ops.def"
#undef OP

static double elements(const tensor *t)
{
    return t ? (double)tensor_elements(t) : 0;
}

static double bytes_of(const tensor *t)
{
    return elements(t) * (t ? dtype_bytes((dtype)t->type) : 0);
}

/* Every operand once; `again`: a mask of the outputs that are read too. */
static double traffic(const op *o, unsigned again)
{
    double bytes = 0;
    for (int i = 0; i < OP_MAX_IN; i++)
        bytes += bytes_of(o->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        bytes += bytes_of(o->out[i]) * (again >> i & 1 ? 2 : 1);
    return bytes;
}

static op_cost cost(const op *o, double flops, unsigned accumulated)
{
    return (op_cost){flops, traffic(o, o->at.accumulate ? accumulated : 0)};
}

/* A few operations for each element of the first input. */
static op_cost each(const op *o, double operations, unsigned accumulated)
{
    return cost(o, operations * elements(o->in[0]), accumulated);
}

static op_cost moved(const op *o)
{
    return cost(o, 0, 0);
}

/* ---- products ---- */

op_cost cost_linear(const op *o)
{
    double product = 2 * elements(o->in[0]) * (double)o->in[1]->shape[0];
    return cost(o, product + (o->in[2] ? elements(o->out[0]) : 0), 0);
}

op_cost cost_linear_grad_input(const op *o)
{
    double product = 2 * elements(o->in[0]) * (double)o->in[1]->shape[1];
    return cost(o, product + (o->in[2] ? elements(o->out[0]) : 0), 0);
}

op_cost cost_linear_grad_weight(const op *o)
{
    return cost(o, 2 * elements(o->in[0]) * (double)o->in[1]->shape[1], 1);
}

static op_cost fused(const op *o)
{
    op first = fuse_first(o), second = fuse_second(o);
    double flops = op_row_of(&first)->cost(&first).flops + op_row_of(&second)->cost(&second).flops;
    return cost(o, flops, 0);
}

op_cost cost_linear_gelu(const op *o)
{
    return fused(o);
}

op_cost cost_linear_grad_gelu(const op *o)
{
    return fused(o);
}

op_cost cost_bias_grad(const op *o)
{
    return each(o, 1, 1);
}

/* ---- embeddings: of the table, only the rows that the tokens name ---- */

op_cost cost_embed(const op *o)
{
    return (op_cost){0, bytes_of(o->in[0]) + 2 * bytes_of(o->out[0])};
}

op_cost cost_embed_grad(const op *o)
{
    double rows = o->at.accumulate ? 2 * elements(o->in[0]) * 4 : bytes_of(o->out[0]);
    return (op_cost){elements(o->in[0]), bytes_of(o->in[0]) + bytes_of(o->in[1]) + rows};
}

op_cost cost_add_positions(const op *o)
{
    return (op_cost){elements(o->in[0]), bytes_of(o->in[1]) + 3 * bytes_of(o->out[0])};
}

op_cost cost_add_positions_grad(const op *o)
{
    return cost_embed_grad(o);
}

/* ---- norms ---- */

op_cost cost_rmsnorm(const op *o)
{
    return each(o, o->in[2] ? 5 : 4, 0);
}

op_cost cost_rmsnorm_grad(const op *o)
{
    return each(o, 10, 2);
}

op_cost cost_layernorm(const op *o)
{
    return each(o, o->in[3] ? 8 : 7, 0);
}

op_cost cost_layernorm_grad(const op *o)
{
    return each(o, 14, 6);
}

op_cost cost_head_norm(const op *o)
{
    return each(o, 4, 0);
}

op_cost cost_head_norm_grad(const op *o)
{
    return each(o, 10, 6);
}

/* ---- attention ---- */

op_cost cost_rope(const op *o)
{
    /* of the table, one row a token */
    return (op_cost){3 * elements(o->in[0]), 2 * bytes_of(o->in[0]) + bytes_of(o->in[1]) +
                                                 (double)o->in[0]->shape[0] * (double)o->at.head_size * 4};
}

/* (query, key) pairs of all samples under the causal mask and the window: query i sees min(i + 1, window) keys. */
static double attention_pairs(const op *o, const tensor *qkv)
{
    double sequence = (double)o->at.sequence, samples = (double)qkv->shape[0] / sequence;
    double window = o->at.window > 0 && o->at.window < o->at.sequence ? (double)o->at.window : sequence;
    return samples * (window * (window + 1) / 2 + (sequence - window) * window);
}

/* Scores and values: two products of 2 head_size operations a pair and head. */
op_cost cost_attention(const op *o)
{
    return cost(o, 4 * attention_pairs(o, o->in[0]) * (double)o->at.heads * (double)o->at.head_size, 0);
}

/* Five products where forward has two: the scores again, dp, dv, dq, dk. */
op_cost cost_attention_grad(const op *o)
{
    return cost(o, 10 * attention_pairs(o, o->in[1]) * (double)o->at.heads * (double)o->at.head_size, 0);
}

/* The cache is counted at its full length. */
op_cost cost_attention_decode(const op *o)
{
    double keys = (double)o->in[2]->shape[0] * (double)o->in[2]->shape[1];
    return cost(o, 4 * keys * (double)o->at.heads * (double)o->at.head_size, 0);
}

/* ---- element-wise ---- */

op_cost cost_gelu(const op *o)
{
    return each(o, 8, 0);
}

op_cost cost_gelu_grad(const op *o)
{
    return each(o, 14, 0);
}

op_cost cost_swiglu(const op *o)
{
    return cost(o, 4 * elements(o->out[0]), 0);
}

op_cost cost_swiglu_grad(const op *o)
{
    return each(o, 9, 0);
}

op_cost cost_add(const op *o)
{
    return each(o, 1, 0);
}

op_cost cost_accumulate(const op *o)
{
    return (op_cost){elements(o->in[0]), traffic(o, 1)};
}

op_cost cost_dropout(const op *o)
{
    return each(o, 12, 0);
}

op_cost cost_cast(const op *o)
{
    return moved(o);
}

op_cost cost_copy(const op *o)
{
    return moved(o);
}

op_cost cost_zero(const op *o)
{
    return moved(o);
}

/* ---- loss ---- */

op_cost cost_cross_entropy_stats(const op *o)
{
    return each(o, 3, 0);
}

op_cost cost_cross_entropy(const op *o)
{
    double bytes = traffic(o, 1) - (o->out[1] ? 0 : bytes_of(o->in[0])); /* the loss alone reads no logits */
    return (op_cost){o->out[1] ? 4 * elements(o->in[0]) : 2 * elements(o->in[1]), bytes};
}

/* ---- optimizer ---- */

op_cost cost_sum_squares(const op *o)
{
    return each(o, 2, 1);
}

op_cost cost_clip(const op *o)
{
    return each(o, 2, 0);
}

op_cost cost_adamw(const op *o)
{
    return (op_cost){16 * elements(o->in[0]), traffic(o, 14)};
}

op_cost cost_lion(const op *o)
{
    return (op_cost){12 * elements(o->in[0]), traffic(o, 6)};
}

op_cost cost_sgd(const op *o)
{
    return (op_cost){8 * elements(o->in[0]), traffic(o, 6)};
}

op_cost cost_muon_momentum(const op *o)
{
    return (op_cost){7 * elements(o->in[0]), traffic(o, 2)};
}

op_cost cost_muon_scale(const op *o)
{
    return each(o, 1, 0);
}

op_cost cost_muon_polynomial(const op *o)
{
    return each(o, 4, 0);
}

op_cost cost_muon(const op *o)
{
    return (op_cost){3 * elements(o->in[0]), traffic(o, 2)};
}

/* ---- compressed gradients: operations an element; top-k looks for a threshold bit by bit, DCT is 64 multiply-adds each way ---- */

static double compress_operations(const op *o)
{
    static const double operations[COMPRESS_KINDS] = {
        [COMPRESS_BF16] = 3, [COMPRESS_INT8] = 6, [COMPRESS_INT4] = 6, [COMPRESS_TOPK] = 66, [COMPRESS_DCT] = 256};
    return operations[o->at.compress];
}

op_cost cost_compress(const op *o)
{
    return each(o, compress_operations(o) + 2, 0);
}

op_cost cost_decompress(const op *o)
{
    double back = o->at.compress == COMPRESS_DCT ? 128 * (double)o->at.density : 2;
    return cost(o, back * elements(o->out[0]) * (double)o->at.count, 0);
}

op_cost cost_keep(const op *o)
{
    return moved(o);
}

/* ---- communication: the bytes at this rank's memory; what is sent is the communicator's business ---- */

op_cost cost_all_gather(const op *o)
{
    return moved(o);
}

op_cost cost_reduce_scatter(const op *o)
{
    return each(o, 1, 0);
}

op_cost cost_all_reduce(const op *o)
{
    return each(o, 1, 0);
}

op_cost cost_all_to_all(const op *o)
{
    return moved(o);
}

op_cost cost_share(const op *o)
{
    (void)o;
    return (op_cost){0, 0};
}

op_cost cost_send(const op *o)
{
    return moved(o);
}

op_cost cost_receive(const op *o)
{
    return moved(o);
}

/* Of the arena: what crosses the bus is the same number. */
op_cost cost_fetch(const op *o)
{
    return (op_cost){0, bytes_of(o->out[0])};
}

op_cost cost_stow(const op *o)
{
    return (op_cost){0, bytes_of(o->in[0])};
}

op_cost cost_wait(const op *o)
{
    (void)o;
    return (op_cost){0, 0};
}
