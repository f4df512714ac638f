#include "kernels/record.h"

#include "memory/log.h"

static tensor *record1(recorder *r, op_kind kind, const char *name, tensor *const *in, int inputs, unsigned outputs,
                       const op_attributes *at)
{
    return recorder_record(r, kind, name, in, inputs, outputs, NULL, at)->out[0];
}

tensor *record_linear(recorder *r, const char *name, tensor *x, tensor *w, tensor *bias)
{
    tensor *in[] = {x, w, bias};
    return record1(r, OP_linear, name, in, 3, 1, NULL);
}

tensor *record_embed(recorder *r, const char *name, tensor *tokens, tensor *table, int64_t first)
{
    tensor *in[] = {tokens, table};
    return record1(r, OP_embed, name, in, 2, 1, &(op_attributes){.first = first});
}

tensor *record_add_positions(recorder *r, const char *name, tensor *x, tensor *positions, tensor *table)
{
    tensor *in[] = {x, positions, table};
    return record1(r, OP_add_positions, name, in, 3, 1, NULL);
}

tensor *record_norm(recorder *r, const char *name, tensor **sum, tensor *x, tensor *residual, tensor *w, tensor *b,
                    float epsilon)
{
    op_attributes at = {.epsilon = epsilon};
    op *o;
    int s = b ? 3 : 2;
    unsigned outputs = (b ? 7u : 3u) | (residual ? 1u << s : 0);
    if (b)
        o = recorder_record(r, OP_layernorm, name, (tensor *[]){x, w, b, residual}, 4, outputs, NULL, &at);
    else
        o = recorder_record(r, OP_rmsnorm, name, (tensor *[]){x, w, residual}, 3, outputs, NULL, &at);
    if (sum)
        *sum = residual ? o->out[s] : x;
    return o->out[0];
}

tensor *record_head_norm(recorder *r, const char *name, tensor *qkv, tensor *wq, tensor *wk, const op_attributes *at)
{
    tensor *in[] = {qkv, wq, wk};
    return record1(r, OP_head_norm, name, in, 3, 3, at);
}

tensor *record_rope(recorder *r, const char *name, tensor *qkv, tensor *positions, tensor *table,
                    const op_attributes *at)
{
    tensor *in[] = {qkv, positions, table};
    return record1(r, OP_rope, name, in, 3, 1, at);
}

tensor *record_attention(recorder *r, const char *name, tensor *qkv, tensor *document_start, const op_attributes *at)
{
    tensor *in[] = {qkv, document_start};
    return record1(r, OP_attention, name, in, 2, 3, at);
}

tensor *record_gelu(recorder *r, const char *name, tensor *x)
{
    return record1(r, OP_gelu, name, &x, 1, 1, NULL);
}

tensor *record_swiglu(recorder *r, const char *name, tensor *x)
{
    return record1(r, OP_swiglu, name, &x, 1, 1, NULL);
}

tensor *record_add(recorder *r, const char *name, tensor *a, tensor *b)
{
    tensor *in[] = {a, b};
    return record1(r, OP_add, name, in, 2, 1, NULL);
}

tensor *record_dropout(recorder *r, const char *name, tensor *x, tensor *scalars, const op_attributes *at)
{
    tensor *in[] = {x, scalars};
    return record1(r, OP_dropout, name, in, 2, 1, at);
}

/* ---- communication along the tensor axis --------------------------------------------------------------------- */

static op_attributes tensor_axis(const recorder *r)
{
    return (op_attributes){
        .axis = AXIS_TENSOR, .group_size = r->grid.tensor, .group_rank = r->grid.tensor_rank, .owner = -1};
}

static tensor *collective(recorder *r, op_kind kind, const char *name, tensor *x)
{
    if (r->grid.tensor == 1)
        return x;
    op_attributes at = tensor_axis(r);
    /* Tokens are divided by shard_rows(): they need not be a multiple of the ranks. */
    at.rows = kind == OP_all_reduce ? 0 : r->tokens;
    return record1(r, kind, name, &x, 1, 1, &at);
}

tensor *record_all_gather(recorder *r, const char *name, tensor *x)
{
    return collective(r, OP_all_gather, name, x);
}

tensor *record_reduce_scatter(recorder *r, const char *name, tensor *x)
{
    return collective(r, OP_reduce_scatter, name, x);
}

tensor *record_all_reduce(recorder *r, const char *name, tensor *x)
{
    return collective(r, OP_all_reduce, name, x);
}

tensor *record_share(recorder *r, const char *name, tensor *x)
{
    if (r->grid.tensor == 1)
        return x;
    op_attributes at = tensor_axis(r);
    op *o = recorder_record(r, OP_share, name, &x, 1, 1, NULL, &at);
    o->out[0]->base = tensor_root(x);
    o->out[0]->offset = x->offset;
    return o->out[0];
}
