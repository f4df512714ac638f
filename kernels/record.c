#include "kernels/record.h"

static tensor *first(recorder *r, const char *name, const op *like, unsigned outputs)
{
    return recorder_record(r, name, like, outputs, NULL)->out[0];
}

tensor *record_linear(recorder *r, const char *name, tensor *x, tensor *w, tensor *bias)
{
    return first(r, name, &(op){.kind = OP_linear, .in = {x, w, bias}}, 1);
}

tensor *record_embed(recorder *r, const char *name, tensor *tokens, tensor *table, int64_t first_row)
{
    return first(r, name, &(op){.kind = OP_embed, .in = {tokens, table}, .at.first = first_row}, 1);
}

tensor *record_add_positions(recorder *r, const char *name, tensor *x, tensor *positions, tensor *table)
{
    return first(r, name, &(op){.kind = OP_add_positions, .in = {x, positions, table}}, 1);
}

tensor *record_norm(recorder *r, const char *name, tensor **sum, tensor *x, tensor *residual, tensor *w, tensor *b,
                    float epsilon)
{
    op like = {.kind = OP_rmsnorm, .in = {x, w, residual}, .at.epsilon = epsilon};
    if (b)
        like = (op){.kind = OP_layernorm, .in = {x, w, b, residual}, .at.epsilon = epsilon};
    int s = b ? 3 : 2;
    op *o = recorder_record(r, name, &like, (b ? 7u : 3u) | (residual ? 1u << s : 0), NULL);
    if (sum)
        *sum = residual ? o->out[s] : x;
    return o->out[0];
}

tensor *record_head_norm(recorder *r, const char *name, tensor *qkv, tensor *wq, tensor *wk, const op_attributes *at)
{
    return first(r, name, &(op){.kind = OP_head_norm, .in = {qkv, wq, wk}, .at = *at}, 3);
}

tensor *record_rope(recorder *r, const char *name, tensor *qkv, tensor *positions, tensor *table,
                    const op_attributes *at)
{
    return first(r, name, &(op){.kind = OP_rope, .in = {qkv, positions, table}, .at = *at}, 1);
}

tensor *record_attention(recorder *r, const char *name, tensor *qkv, tensor *document_start, const op_attributes *at)
{
    return first(r, name, &(op){.kind = OP_attention, .in = {qkv, document_start}, .at = *at}, 3);
}

tensor *record_gelu(recorder *r, const char *name, tensor *x)
{
    return first(r, name, &(op){.kind = OP_gelu, .in = {x}}, 1);
}

tensor *record_swiglu(recorder *r, const char *name, tensor *x)
{
    return first(r, name, &(op){.kind = OP_swiglu, .in = {x}}, 1);
}

tensor *record_add(recorder *r, const char *name, tensor *a, tensor *b)
{
    return first(r, name, &(op){.kind = OP_add, .in = {a, b}}, 1);
}

tensor *record_dropout(recorder *r, const char *name, tensor *x, tensor *scalars, const op_attributes *at)
{
    return first(r, name, &(op){.kind = OP_dropout, .in = {x, scalars}, .at = *at}, 1);
}

/* ---- communication along the tensor axis --------------------------------------------------------------------- */

/* `rows` of the whole: tokens are divided by shard_rows(), they need not be a multiple of the ranks. */
static tensor *collective(recorder *r, op_kind kind, const char *name, tensor *x, int64_t rows, bool replicate)
{
    op like = {.kind = (uint8_t)kind,
               .in = {x},
               .at = {.axis = AXIS_TENSOR,
                      .group_size = r->grid.tensor,
                      .group_rank = r->grid.tensor_rank,
                      .owner = -1,
                      .rows = rows,
                      .replicate = replicate}};
    return r->grid.tensor == 1 ? x : first(r, name, &like, 1);
}

tensor *record_all_gather(recorder *r, const char *name, tensor *x)
{
    return collective(r, OP_all_gather, name, x, r->tokens, false);
}

tensor *record_all_gather_replicate(recorder *r, const char *name, tensor *x, int64_t rows)
{
    return collective(r, OP_all_gather, name, x, rows, true);
}

tensor *record_reduce_scatter(recorder *r, const char *name, tensor *x)
{
    return collective(r, OP_reduce_scatter, name, x, r->tokens, false);
}

tensor *record_all_reduce(recorder *r, const char *name, tensor *x)
{
    return collective(r, OP_all_reduce, name, x, 0, false);
}

tensor *record_share(recorder *r, const char *name, tensor *x)
{
    return collective(r, OP_share, name, x, 0, false);
}
