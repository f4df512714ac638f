/* The optimizer's ops: the norm of all gradients as an exact sum, clipping, and AdamW in one pass over memory. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/exact_sum.h"

enum { UPDATE_PIECE = 8192 };

void cpu_sum_squares(const op *o, const run_context *r)
{
    const tensor *gradient = o->in[0];
    int64_t *bins = tensor_at(o->out[0], r->arena), columns = row_length(gradient);
    const isa *set = isa_of(r);
    if (!o->at.accumulate)
        memset(bins, 0, SUM_BINS * sizeof *bins);
#pragma omp parallel num_threads(parallel_threads(r, tensor_elements(gradient)))
    {
        int64_t own[SUM_BINS] = {0};
#pragma omp for schedule(static)
        for (int64_t row = 0; row < gradient->shape[0]; row++)
            exact_sum_add(own, set->sum_squares((const float *)(const void *)row_at(gradient, r, row), columns));
#pragma omp critical(phalanx_sum_squares) /* exact: the order does not matter */
        exact_sum_merge(bins, own);
    }
}

void cpu_clip(const op *o, const run_context *r)
{
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    float *control = tensor_at(o->out[0], r->arena);
    double scale = (double)s->loss_scale, norm = sqrt(exact_sum_value(tensor_at(o->in[0], r->arena))) / scale;
    bool finite = isfinite((float)norm);
    bool clips = finite && s->clip > 0 && norm > (double)s->clip;
    control[CONTROL_NORM] = (float)norm;
    control[CONTROL_FACTOR] = finite ? (float)((clips ? (double)s->clip / norm : 1) / scale) : 0;
    control[CONTROL_SKIP] = finite ? 0 : 1;
}

void cpu_adamw(const op *o, const run_context *r)
{
    const tensor *gradient = o->in[0], *weight = o->out[0], *master = o->out[1], *m = o->out[2], *v = o->out[3];
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    const float *control = tensor_at(o->in[2], r->arena);
    if (control[CONTROL_SKIP] != 0)
        return;
    const adamw_factors f = {
        .gradient = control[CONTROL_FACTOR],
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .rate = s->lr / s->momentum_correction,
        .root = 1 / s->variance_correction,
        .epsilon = s->epsilon,
        .keep = (float)(1 - (o->at.decay ? (double)s->lr * (double)s->weight_decay : 0)),
    };
    const row_loops *loops = isa_of(r)->rows[weight ? weight->type : DTYPE_FP32];
    const tensor *all[5] = {weight, master, m, v, gradient};
    bool flat = true;
    for (int i = 0; i < 5; i++)
        flat = flat && (!all[i] || tensor_contiguous(all[i]));
    int64_t elements = tensor_elements(gradient), length = flat ? elements : row_length(gradient);
    int64_t rows = flat ? 1 : gradient->shape[0], pieces = (length + UPDATE_PIECE - 1) / UPDATE_PIECE;
#pragma omp parallel for num_threads(parallel_threads(r, elements)) schedule(static)
    for (int64_t i = 0; i < rows * pieces; i++) {
        int64_t first = i % pieces * UPDATE_PIECE, n = length - first < UPDATE_PIECE ? length - first : UPDATE_PIECE;
        void *p[5] = {0};
        for (int j = 0; j < 5; j++)
            if (all[j])
                p[j] = row_at(all[j], r, i / pieces) + first * dtype_bytes((dtype)all[j]->type);
        loops->adamw(p[0], p[1], p[2], p[3], p[4], n, &f);
    }
}
