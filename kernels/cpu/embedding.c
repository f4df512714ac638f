/* Tables looked up by token or position, and their gradients: threads divide the columns, so that every row is summed
 * in ascending order of tokens without a race. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"

void cpu_embed(const op *o, const run_context *r)
{
    const tensor *table = o->in[1], *y = o->out[0];
    const int32_t *tokens = tensor_at(o->in[0], r->arena);
    size_t bytes = (size_t)(table->shape[1] * dtype_bytes((dtype)table->type));
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(y))) schedule(static)
    for (int64_t t = 0; t < y->shape[0]; t++) {
        int64_t row = tokens[t] - o->at.vocabulary.first;
        if (row >= 0 && row < table->shape[0])
            memcpy(row_at(y, r, t), row_at(table, r, row), bytes);
        else
            memset(row_at(y, r, t), 0, bytes);
    }
}

void cpu_add_positions(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *table = o->in[2], *y = o->out[0];
    const int32_t *positions = tensor_at(o->in[1], r->arena);
    const row_loops *loops = isa_of(r)->rows[x->type];
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(y))) schedule(static)
    for (int64_t t = 0; t < y->shape[0]; t++)
        loops->add(row_at(y, r, t), row_at(x, r, t), row_at(table, r, positions[t]), x->shape[1]);
}

/* dtable[index - first] += dy, for columns [column, column + count) */
static void table_columns(const op *o, const run_context *r, const int32_t *indices, int64_t column, int64_t count)
{
    const tensor *dy = o->in[0], *dtable = o->out[0];
    const row_loops *loops = isa_of(r)->rows[dy->type];
    int64_t bytes = dtype_bytes((dtype)dy->type);
    if (!o->at.accumulate)
        for (int64_t row = 0; row < dtable->shape[0]; row++)
            memset(row_at(dtable, r, row) + column * 4, 0, (size_t)count * 4);
    for (int64_t t = 0; t < dy->shape[0]; t++) {
        int64_t row = indices[t] - o->at.vocabulary.first;
        if (row >= 0 && row < dtable->shape[0])
            loops->accumulate((float *)(void *)row_at(dtable, r, row) + column, row_at(dy, r, t) + column * bytes,
                              count);
    }
}

static void table_grad(const op *o, const run_context *r)
{
    const int32_t *indices = tensor_at(o->in[1], r->arena);
    int64_t columns = o->in[0]->shape[1], lines = (columns + 31) / 32; /* 32 columns are two cache lines */
    int parts = parallel_threads(r, tensor_elements(o->in[0]) + (o->at.accumulate ? 0 : tensor_elements(o->out[0])));
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int part = 0; part < parts; part++) {
        int64_t first, count;
        shard_rows(&first, &count, lines, parts, part);
        int64_t end = (first + count) * 32 < columns ? (first + count) * 32 : columns;
        if (end > first * 32)
            table_columns(o, r, indices, first * 32, end - first * 32);
    }
}

CPU_OP(embed_grad, table_grad(o, r))
CPU_OP(add_positions_grad, table_grad(o, r))

/* Divides columns, too: in bands of 128, which stay whole whichever thread computes them. */
void cpu_bias_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0];
    const row_loops *loops = isa_of(r)->rows[dy->type];
    float *db = tensor_at(o->out[0], r->arena);
    int64_t columns = dy->shape[1], bands = (columns + 127) / 128;
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(dy))) schedule(static)
    for (int64_t band = 0; band < bands; band++) {
        int64_t first = band * 128, count = columns - first < 128 ? columns - first : 128;
        loops->column_sums(db + first, row_at(dy, r, 0) + first * dtype_bytes((dtype)dy->type), dy->pitch, dy->shape[0],
                           count, o->at.accumulate);
    }
}
