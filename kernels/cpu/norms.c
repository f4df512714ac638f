/* RMSNorm, LayerNorm and the norm of heads, forward and backward. Gradients of weights are summed in two stages: each
 * thread sums its consecutive rows (64 at a time, then the blocks) in its own part of the scratch tensor, and the parts
 * are added in order. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"

enum { NORM_BLOCK = 64 };

void cpu_rmsnorm(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *residual = o->in[2], *y = o->out[0], *s = o->out[2];
    const row_loops *loops = isa_of(r)->rows[x->type];
    const void *w = tensor_at(o->in[1], r->arena);
    float *rstd = tensor_at(o->out[1], r->arena);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(x))) schedule(static)
    for (int64_t t = 0; t < x->shape[0]; t++)
        rstd[t] = loops->rmsnorm(row_at(y, r, t), s ? row_at(s, r, t) : NULL, row_at(x, r, t), w,
                                 residual ? row_at(residual, r, t) : NULL, x->shape[1], o->at.epsilon);
}

void cpu_layernorm(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *residual = o->in[3], *y = o->out[0], *s = o->out[3];
    const row_loops *loops = isa_of(r)->rows[x->type];
    const void *w = tensor_at(o->in[1], r->arena), *b = tensor_at(o->in[2], r->arena);
    float *rstd = tensor_at(o->out[1], r->arena), *mean = tensor_at(o->out[2], r->arena);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(x))) schedule(static)
    for (int64_t t = 0; t < x->shape[0]; t++)
        rstd[t] = loops->layernorm(row_at(y, r, t), s ? row_at(s, r, t) : NULL, mean + t, row_at(x, r, t), w, b,
                                   residual ? row_at(residual, r, t) : NULL, x->shape[1], o->at.epsilon);
}

/* ---- the two stages -------------------------------------------------------------------------------------------- */

/* One row's gradient, added to sums[width]. */
typedef void norm_row(const op *o, const run_context *r, const row_loops *loops, float *sums, int64_t row);

/* Rows in equal parts, a part a thread; each part has [total, block] of `width` floats in scratch; out: the sum. */
static float *sum_rows(const op *o, const run_context *r, const row_loops *loops, int64_t rows, int64_t width,
                       norm_row *f)
{
    float *scratch = tensor_at(o->scratch, r->arena);
    int parts = parallel_threads(r, rows * o->in[0]->shape[1]);
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int part = 0; part < parts; part++) {
        float *total = scratch + 2 * part * width, *block = total + width;
        int64_t first, count;
        shard_rows(&first, &count, rows, parts, part);
        memset(total, 0, (size_t)(2 * width) * sizeof *total);
        for (int64_t i = 0; i < count; i++) {
            f(o, r, loops, block, first + i);
            if ((i + 1) % NORM_BLOCK == 0 || i + 1 == count) {
                isa_of(r)->rows[DTYPE_FP32]->add(total, total, block, width);
                memset(block, 0, (size_t)width * sizeof *block);
            }
        }
    }
    for (int part = 1; part < parts; part++)
        isa_of(r)->rows[DTYPE_FP32]->add(scratch, scratch, scratch + 2 * part * width, width);
    return scratch;
}

static void put_sum(const op *o, const run_context *r, const tensor *out, const float *sum)
{
    float *to = tensor_at(out, r->arena);
    if (o->at.accumulate)
        isa_of(r)->rows[DTYPE_FP32]->add(to, to, sum, out->shape[0]);
    else
        memcpy(to, sum, (size_t)out->shape[0] * sizeof *to);
}

/* [total, block] of each thread; LayerNorm has dw and db, the norm of heads dwq and dwk. */
int64_t norm_scratch_bytes(const op *o, int threads)
{
    int64_t width = o->out[1]->shape[0] * (o->kind == OP_rmsnorm_grad ? 1 : 2);
    return (threads > 1 ? threads : 1) * 2 * width * (int64_t)sizeof(float);
}

static void rmsnorm_row(const op *o, const run_context *r, const row_loops *loops, float *sums, int64_t row)
{
    const float *rstd = tensor_at(o->in[3], r->arena);
    loops->rmsnorm_grad(row_at(o->out[0], r, row), sums, row_at(o->in[0], r, row), row_at(o->in[1], r, row),
                        tensor_at(o->in[2], r->arena), o->in[4] ? row_at(o->in[4], r, row) : NULL, o->in[1]->shape[1],
                        rstd[row]);
}

void cpu_rmsnorm_grad(const op *o, const run_context *r)
{
    const tensor *s = o->in[1];
    put_sum(o, r, o->out[1], sum_rows(o, r, isa_of(r)->rows[s->type], s->shape[0], s->shape[1], rmsnorm_row));
}

static void layernorm_row(const op *o, const run_context *r, const row_loops *loops, float *sums, int64_t row)
{
    const float *rstd = tensor_at(o->in[3], r->arena), *mean = tensor_at(o->in[4], r->arena);
    int64_t n = o->in[1]->shape[1];
    loops->layernorm_grad(row_at(o->out[0], r, row), sums, sums + n, row_at(o->in[0], r, row), row_at(o->in[1], r, row),
                          tensor_at(o->in[2], r->arena), o->in[5] ? row_at(o->in[5], r, row) : NULL, n, mean[row],
                          rstd[row]);
}

void cpu_layernorm_grad(const op *o, const run_context *r)
{
    const tensor *s = o->in[1];
    const float *sums = sum_rows(o, r, isa_of(r)->rows[s->type], s->shape[0], 2 * s->shape[1], layernorm_row);
    put_sum(o, r, o->out[1], sums);
    put_sum(o, r, o->out[2], sums + s->shape[1]);
}

/* ---- heads of q and k in a fused row --------------------------------------------------------------------------- */

void cpu_head_norm(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *y = o->out[0];
    const row_loops *loops = isa_of(r)->rows[x->type];
    int64_t d = o->at.head_size, heads = o->at.heads, kv_heads = o->at.kv_heads,
            bytes = d * dtype_bytes((dtype)x->type);
    const void *w[2] = {tensor_at(o->in[1], r->arena), tensor_at(o->in[2], r->arena)};
    float *rstd = tensor_at(o->out[1], r->arena);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(x))) schedule(static)
    for (int64_t t = 0; t < x->shape[0]; t++) {
        char *to = row_at(y, r, t);
        const char *from = row_at(x, r, t);
        for (int64_t h = 0; h < heads + kv_heads; h++)
            rstd[t * (heads + kv_heads) + h] =
                loops->rmsnorm(to + h * bytes, NULL, from + h * bytes, w[h >= heads], NULL, d, o->at.epsilon);
        memcpy(to + (heads + kv_heads) * bytes, from + (heads + kv_heads) * bytes, (size_t)(kv_heads * bytes));
    }
}

static void head_norm_row(const op *o, const run_context *r, const row_loops *loops, float *sums, int64_t row)
{
    int64_t d = o->at.head_size, heads = o->at.heads, kv_heads = o->at.kv_heads;
    int64_t bytes = d * dtype_bytes((dtype)o->in[1]->type), rest = (heads + kv_heads) * bytes;
    const float *rstd = (const float *)tensor_at(o->in[4], r->arena) + row * (heads + kv_heads);
    char *dx = row_at(o->out[0], r, row);
    const char *dy = row_at(o->in[0], r, row), *x = row_at(o->in[1], r, row);
    for (int64_t h = 0; h < heads + kv_heads; h++)
        loops->rmsnorm_grad(dx + h * bytes, sums + (h >= heads) * d, dy + h * bytes, x + h * bytes,
                            tensor_at(o->in[2 + (h >= heads)], r->arena), NULL, d, rstd[h]);
    memmove(dx + rest, dy + rest, (size_t)(kv_heads * bytes)); /* in place it is itself */
}

void cpu_head_norm_grad(const op *o, const run_context *r)
{
    const tensor *x = o->in[1];
    const float *sums =
        sum_rows(o, r, isa_of(r)->rows[x->type], x->shape[0], 2 * (int64_t)o->at.head_size, head_norm_row);
    put_sum(o, r, o->out[1], sums);
    put_sum(o, r, o->out[2], sums + o->at.head_size);
}
