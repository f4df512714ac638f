/* Cross-entropy over the shards of a vocabulary: statistics of each row, then loss and gradient from all shards'. A row
 * of logits stays in the cache between the passes over it. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"

static float logit_at(const op *o, const run_context *r, int64_t row, int64_t column)
{
    float value;
    const tensor *logits = o->in[0];
    isa_of(r)->rows[logits->type]->to_float(&value, row_at(logits, r, row) + column * dtype_bytes((dtype)logits->type),
                                            1);
    return value;
}

void cpu_cross_entropy_stats(const op *o, const run_context *r)
{
    const tensor *logits = o->in[0];
    const row_loops *loops = isa_of(r)->rows[logits->type];
    const int32_t *targets = tensor_at(o->in[1], r->arena);
    int64_t columns = o->at.vocabulary.ids;
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(logits))) schedule(static)
    for (int64_t t = 0; t < logits->shape[0]; t++) {
        float *stats = (float *)(void *)row_at(o->out[0], r, t);
        int64_t target = targets[t] - o->at.vocabulary.first;
        loops->logits_stats(stats, stats + 1, row_at(logits, r, t), columns);
        stats[2] = targets[t] >= 0 && target >= 0 && target < columns ? logit_at(o, r, t, target) : -INFINITY;
    }
}

typedef struct row_stats {
    float largest, sum, target;
} row_stats;

/* The shards' statistics of row t as one, in the order of the shards. */
static row_stats merge(const op *o, const run_context *r, int64_t t)
{
    const tensor *stats = o->in[2];
    int64_t rows = o->in[0]->shape[0], shards = stats->shape[0] / rows;
    row_stats all = {-INFINITY, 0, -INFINITY};
    for (int64_t i = 0; i < shards; i++) {
        const float *s = (const float *)(const void *)row_at(stats, r, i * rows + t);
        all.largest = s[0] > all.largest || isnan(s[0]) ? s[0] : all.largest;
        all.target = s[2] > all.target || isnan(s[2]) ? s[2] : all.target;
    }
    for (int64_t i = 0; i < shards; i++) {
        const float *s = (const float *)(const void *)row_at(stats, r, i * rows + t);
        if (s[1] != 0) /* a shard without real columns */
            all.sum += s[1] * expf(s[0] - all.largest);
    }
    return all;
}

static void row_gradient(const op *o, const run_context *r, int64_t t, float scale)
{
    const tensor *logits = o->in[0], *dlogits = o->out[1];
    const row_loops *loops = isa_of(r)->rows[logits->type];
    int64_t columns = o->at.vocabulary.ids, bytes = dtype_bytes((dtype)logits->type);
    int32_t target = ((const int32_t *)tensor_at(o->in[1], r->arena))[t];
    char *to = row_at(dlogits, r, t);
    if (target < 0) {
        memset(to, 0, (size_t)(logits->shape[1] * bytes));
        return;
    }
    row_stats s = merge(o, r, t);
    int64_t column = target - o->at.vocabulary.first;
    bool own = column >= 0 && column < columns;
    float logit = own ? logit_at(o, r, t, column) : 0;
    loops->logits_grad(to, row_at(logits, r, t), columns, s.largest, scale / s.sum);
    memset(to + columns * bytes, 0, (size_t)((logits->shape[1] - columns) * bytes));
    if (own) {
        float value = (expf(logit - s.largest) / s.sum - 1) * scale;
        loops->from_float(to + column * bytes, &value, 1);
    }
}

void cpu_cross_entropy(const op *o, const run_context *r)
{
    const tensor *logits = o->in[0];
    const int32_t *targets = tensor_at(o->in[1], r->arena);
    const step_scalars *scalars = tensor_at(o->in[3], r->arena);
    float *loss = tensor_at(o->out[0], r->arena);
    double sum = 0;
    for (int64_t t = 0; t < logits->shape[0]; t++)
        if (targets[t] >= 0) {
            row_stats s = merge(o, r, t);
            sum += (double)logf(s.sum) + ((double)s.largest - (double)s.target);
        }
    *loss = (float)(o->at.accumulate ? (double)*loss + sum : sum);
    if (!o->out[1])
        return;
    float scale = scalars->loss_scale / scalars->loss_tokens;
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(logits))) schedule(static)
    for (int64_t t = 0; t < logits->shape[0]; t++)
        row_gradient(o, r, t, scale);
}
