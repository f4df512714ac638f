/* Embeddings: rows of a table by token and by position. Costs count the rows of the table that the tokens name. */
#include "kernels/ops/family.h"

tensor *record_embed(recorder *r, const char *name, tensor *tokens, tensor *table, int64_t first_row)
{
    return record_first(r, name, &(op){.kind = OP_embed, .in = {tokens, table}, .at.vocabulary.first = first_row}, 1);
}

void infer_embed(op *o)
{
    const tensor *tokens = o->in[0], *table = o->in[1];
    OPERANDS_CHECK(infer_is_vector(tokens, DTYPE_INT32, tokens->shape[0]), "tokens int32[t]");
    OPERANDS_CHECK(infer_is_activation(table), "table[v, h]");
    infer_shape(o->out[0], (dtype)table->type, 2, tokens->shape[0], table->shape[1], 0);
    operands_place(o, "rr>r r0>p 0s>0 rs>s");
}

COST(embed, (op_cost){0, cost_bytes(o->in[0]) + 2 * cost_bytes(o->out[0])})

void gradient_embed(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    op like = {.kind = OP_embed_grad, .in = {cotangent[0], o->in[0]}, .at.vocabulary.first = o->at.vocabulary.first};
    gradient_of_weight(r, "dtable", like, o->in[1]);
}

static void check_table_grad(const op *o, const char *why)
{
    const tensor *dy = o->in[0], *dtable = o->out[0];
    OPERANDS_CHECK(infer_is_activation(dy) && infer_is_vector(o->in[1], DTYPE_INT32, dy->shape[0]),
                   "dy[t, h], indices int32[t]");
    OPERANDS_CHECK(infer_is_matrix(dtable, DTYPE_FP32, dtable->shape[0], dy->shape[1]), why);
}

void infer_embed_grad(op *o)
{
    check_table_grad(o, "dtable[v, h] fp32");
    operands_place(o, "r.>r r.>0 0.>p p.>p");
}

op_cost cost_embed_grad(const op *o)
{
    double rows = o->at.accumulate ? 2 * cost_elements(o->in[0]) * 4 : cost_bytes(o->out[0]);
    return (op_cost){cost_elements(o->in[0]), cost_bytes(o->in[0]) + cost_bytes(o->in[1]) + rows};
}

NO_GRADIENT(embed_grad)

tensor *record_add_positions(recorder *r, const char *name, tensor *x, tensor *positions, tensor *table)
{
    return record_first(r, name, &(op){.kind = OP_add_positions, .in = {x, positions, table}}, 1);
}

void infer_add_positions(op *o)
{
    const tensor *x = o->in[0], *positions = o->in[1], *table = o->in[2];
    OPERANDS_CHECK(infer_is_activation(x) && infer_is_vector(positions, DTYPE_INT32, x->shape[0]),
                   "x[t, h], positions int32[t]");
    OPERANDS_CHECK(infer_is_matrix(table, (dtype)x->type, table->shape[0], x->shape[1]),
                   "table[p, h] of the same type");
    infer_shape_like(o->out[0], x);
    operands_place(o, "r.r>r 0.s>0 s.s>s");
}

COST(add_positions, (op_cost){cost_elements(o->in[0]), cost_bytes(o->in[1]) + 3 * cost_bytes(o->out[0])})

void gradient_add_positions(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    op like = {.kind = OP_add_positions_grad, .in = {cotangent[0], o->in[1]}};
    gradient_of_weight(r, "dtable", like, o->in[2]);
    recorder_flow(r, o->in[0], cotangent[0]);
}

void infer_add_positions_grad(op *o)
{
    check_table_grad(o, "dtable[p, h] fp32");
    operands_place(o, "r.>r 0.>p p.>p");
}

GRADIENTLESS(add_positions_grad, cost_embed_grad(o))
