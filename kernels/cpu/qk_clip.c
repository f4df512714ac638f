/* QK-clip: the max logits of attention's heads, and the factors of weights' rows that follow from them. */
#include "kernels/heads.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

void cpu_max_logit(const op *o, const run_context *r)
{
    const tensor *x = o->in[0];
    float *y = tensor_at(o->out[0], r->arena);
    const int64_t rows = o->out[0]->shape[0], columns = x->dims == 2 ? x->shape[1] : x->shape[0];
#pragma omp parallel for num_threads(parallel_threads(r, rows *columns)) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const float *row = (const float *)tensor_at(x, r->arena) + (x->dims == 2 ? i * x->pitch : 0);
        float most = o->at.accumulate ? y[i] : -INFINITY;
        for (int64_t j = 0; j < columns; j++)
            most = row[j] > most ? row[j] : most;
        y[i] = most;
    }
}

void cpu_qk_factors(const op *o, const run_context *r)
{
    const op_qk_clip *as = &o->at.qk;
    float *factors = tensor_at(o->out[0], r->arena);
#pragma omp parallel for num_threads(parallel_threads(r, operand_elements(o, 0, 1))) schedule(static)
    for (int64_t i = 0; i < o->out[0]->shape[0]; i++) {
        bool whole;
        const int32_t head = heads_of_clipped_row(&whole, i, as->heads, as->blocks, as->size, as->whole);
        float most = 0; /* the head's max logit over the ranks that divide tokens */
        for (int64_t row = o->at.qk.layer; head >= 0 && row < o->in[0]->shape[0]; row += o->at.qk.layers)
            most = fmaxf(most, ((const float *)(const void *)row_at(o->in[0], r, row))[head]);
        const float gamma = most > as->threshold && most < INFINITY ? as->threshold / most : 1;
        factors[i] = whole ? gamma : sqrtf(gamma);
    }
}
