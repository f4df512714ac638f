/* RMSNorm, LayerNorm and the norms of queries and keys, forward and backward. Gradients of weights are summed in two
 * stages: each thread sums its consecutive rows (64 at a time, then the blocks) in its own part of the scratch tensor,
 * and the parts are added in order. */
#include <math.h>
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
                                 residual ? row_at(residual, r, t) : NULL, x->shape[1], o->at.norm.epsilon,
                                 o->at.norm.offset);
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
                                   residual ? row_at(residual, r, t) : NULL, x->shape[1], o->at.norm.epsilon);
}

/* ---- the two stages -------------------------------------------------------------------------------------------- */

/* One row's gradient, added to sums[width]. */
typedef void norm_row(const op *o, const run_context *r, const row_loops *loops, float *sums, int64_t row);

typedef struct norm_work {
    int64_t rows, elements; /* elements decide whether threads divide the rows */
    int64_t width;          /* width of the sums */
    norm_row *add_row;
} norm_work;

/* Rows in equal parts, a part a thread; each part has [total, block] of `width` floats in scratch; out: the sum. */
static float *sum_rows(const op *o, const run_context *r, const row_loops *loops, const norm_work *work)
{
    float *scratch = tensor_at(o->scratch, r->arena);
    int64_t width = work->width;
    int parts = parallel_threads(r, work->elements);
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int part = 0; part < parts; part++) {
        float *total = scratch + 2 * part * width, *block = total + width;
        int64_t first, count;
        shard_rows(&first, &count, work->rows, parts, part);
        memset(total, 0, (size_t)(2 * width) * sizeof *total);
        for (int64_t i = 0; i < count; i++) {
            work->add_row(o, r, loops, block, first + i);
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

/* [total, block] of each thread, of the gradients of all weights: dw, and of LayerNorm db; dwq and dwk. */
int64_t norm_scratch_bytes(const op *o, int threads)
{
    int64_t width = 0;
    for (int i = 0; i < OP_MAX_OUT; i++)
        width += o->out[i] && o->out[i]->dims == 1 ? o->out[i]->shape[0] : 0;
    return (threads > 1 ? threads : 1) * 2 * width * (int64_t)sizeof(float);
}

static void rmsnorm_row(const op *o, const run_context *r, const row_loops *loops, float *sums, int64_t row)
{
    const float *rstd = tensor_at(o->in[3], r->arena);
    loops->rmsnorm_grad(row_at(o->out[0], r, row), sums, row_at(o->in[0], r, row), row_at(o->in[1], r, row),
                        tensor_at(o->in[2], r->arena), o->in[4] ? row_at(o->in[4], r, row) : NULL, o->in[1]->shape[1],
                        rstd[row], o->at.norm.offset);
}

void cpu_rmsnorm_grad(const op *o, const run_context *r)
{
    const tensor *s = o->in[1];
    norm_work work = {s->shape[0], tensor_elements(s), s->shape[1], rmsnorm_row};
    put_sum(o, r, o->out[1], sum_rows(o, r, isa_of(r)->rows[s->type], &work));
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
    norm_work work = {s->shape[0], tensor_elements(s), 2 * s->shape[1], layernorm_row};
    const float *sums = sum_rows(o, r, isa_of(r)->rows[s->type], &work);
    put_sum(o, r, o->out[1], sums);
    put_sum(o, r, o->out[2], sums + s->shape[1]);
}

/* ---- heads of q and of k --------------------------------------------------------------------------------------- */

void cpu_head_norm(const op *o, const run_context *r)
{
    const tensor *q = o->in[0];
    const row_loops *loops = isa_of(r)->rows[q->type];
    int64_t d = o->at.heads.size, heads = o->at.heads.q, all = heads + o->at.heads.kv,
            bytes = d * dtype_bytes((dtype)q->type);
    const void *w[2] = {tensor_at(o->in[2], r->arena), tensor_at(o->in[3], r->arena)};
    float *rstd = tensor_at(o->out[2], r->arena);
#pragma omp parallel for num_threads(parallel_threads(r, operand_elements(o, 0, 2))) schedule(static)
    for (int64_t t = 0; t < q->shape[0]; t++)
        for (int64_t h = 0; h < all; h++) {
            int which = h >= heads;
            int64_t at = (h - which * heads) * bytes;
            rstd[t * all + h] = loops->rmsnorm(row_at(o->out[which], r, t) + at, NULL, row_at(o->in[which], r, t) + at,
                                               w[which], NULL, d, o->at.norm.epsilon, o->at.norm.offset);
        }
}

static void head_norm_row(const op *o, const run_context *r, const row_loops *loops, float *sums, int64_t row)
{
    int64_t d = o->at.heads.size, heads = o->at.heads.q, all = heads + o->at.heads.kv;
    int64_t bytes = d * dtype_bytes((dtype)o->in[0]->type);
    const float *rstd = (const float *)tensor_at(o->in[6], r->arena) + row * all;
    for (int64_t h = 0; h < all; h++) {
        int which = h >= heads;
        int64_t at = (h - which * heads) * bytes;
        loops->rmsnorm_grad(row_at(o->out[which], r, row) + at, sums + which * d, row_at(o->in[which], r, row) + at,
                            row_at(o->in[2 + which], r, row) + at, tensor_at(o->in[4 + which], r->arena), NULL, d,
                            rstd[h], o->at.norm.offset);
    }
}

void cpu_head_norm_grad(const op *o, const run_context *r)
{
    const tensor *q = o->in[2];
    int64_t d = o->at.heads.size, width = (o->at.heads.q + 2 * (int64_t)o->at.heads.kv) * d;
    norm_work work = {.rows = q->shape[0], .elements = q->shape[0] * width, .width = 2 * d, .add_row = head_norm_row};
    const float *sums = sum_rows(o, r, isa_of(r)->rows[q->type], &work);
    put_sum(o, r, o->out[2], sums);
    put_sum(o, r, o->out[3], sums + d);
}

/* ---- q and k by all their width --------------------------------------------------------------------------------- */

/* The sum of row t of q (which: 0) or of k. */
static float *sum_at(const tensor *sums, const run_context *r, int64_t t, int which)
{
    return (float *)(void *)row_at(sums, r, t) + which;
}

void cpu_width_squares(const op *o, const run_context *r)
{
    const row_loops *loops = isa_of(r)->rows[o->in[0]->type];
#pragma omp parallel for num_threads(parallel_threads(r, operand_elements(o, 0, 2))) schedule(static)
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int which = 0; which < 2; which++)
            *sum_at(o->out[0], r, t, which) = loops->squares(row_at(o->in[which], r, t), o->in[which]->shape[1]);
}

static float width_of(const op *o, int which)
{
    return (float)o->at.norm.width[which];
}

static float width_rstd(const op *o, const run_context *r, const tensor *squares, int64_t t, int which)
{
    return 1.0f / sqrtf(*sum_at(squares, r, t, which) / width_of(o, which) + o->at.norm.epsilon);
}

void cpu_width_norm(const op *o, const run_context *r)
{
    const row_loops *loops = isa_of(r)->rows[o->in[0]->type];
#pragma omp parallel for num_threads(parallel_threads(r, operand_elements(o, 0, 2))) schedule(static)
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int which = 0; which < 2; which++)
            loops->normalise(row_at(o->out[which], r, t), row_at(o->in[which], r, t),
                             tensor_at(o->in[2 + which], r->arena), o->in[which]->shape[1],
                             width_rstd(o, r, o->in[4], t, which), o->at.norm.offset);
}

static void width_dots_row(const op *o, const run_context *r, const row_loops *loops, float *sums, int64_t row)
{
    for (int which = 0; which < 2; which++)
        *sum_at(o->out[0], r, row, which) =
            loops->norm_dot(sums + which * o->in[4]->shape[0], row_at(o->in[which], r, row),
                            row_at(o->in[2 + which], r, row), tensor_at(o->in[4 + which], r->arena),
                            o->in[which]->shape[1], width_rstd(o, r, o->in[6], row, which), o->at.norm.offset);
}

void cpu_width_dots(const op *o, const run_context *r)
{
    const tensor *q = o->in[2];
    int64_t width = q->shape[1] + o->in[3]->shape[1];
    norm_work work = {q->shape[0], q->shape[0] * width, width, width_dots_row};
    const float *sums = sum_rows(o, r, isa_of(r)->rows[q->type], &work);
    put_sum(o, r, o->out[1], sums);
    put_sum(o, r, o->out[2], sums + q->shape[1]);
}

void cpu_width_norm_grad(const op *o, const run_context *r)
{
    const row_loops *loops = isa_of(r)->rows[o->in[0]->type];
#pragma omp parallel for num_threads(parallel_threads(r, operand_elements(o, 0, 2))) schedule(static)
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int which = 0; which < 2; which++)
            loops->norm_slope(row_at(o->out[which], r, t), row_at(o->in[which], r, t), row_at(o->in[2 + which], r, t),
                              tensor_at(o->in[4 + which], r->arena), NULL, o->in[which]->shape[1],
                              width_rstd(o, r, o->in[6], t, which), o->at.norm.offset,
                              *sum_at(o->in[7], r, t, which) / width_of(o, which));
}
