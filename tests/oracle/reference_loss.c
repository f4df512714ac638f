/* Loss and optimizer in float64: see reference.h. */
#include "tests/oracle/reference.h"

#include <math.h>
#include <string.h>

#include "kernels/exact_sum.h"
#include "memory/log.h"

/* ---- loss ---------------------------------------------------------------------------------------------------- */

/* The column of this shard that token t's target is, or -1. */
static int64_t target_column(const op *o, const run_context *r, int64_t t)
{
    int64_t target = ((const int32_t *)tensor_at(o->in[1], r->arena))[t], column = target - o->at.vocabulary.first;
    return target >= 0 && column >= 0 && column < o->at.vocabulary.ids ? column : -1;
}

void reference_cross_entropy_stats(const op *o, const run_context *r)
{
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++) {
        const double *logit = reference_row(o->in[0], r, t);
        double largest = -INFINITY, sum = 0;
        for (int64_t v = 0; v < o->at.vocabulary.ids; v++)
            largest = fmax(largest, logit[v]);
        for (int64_t v = 0; v < o->at.vocabulary.ids; v++)
            sum += exp(logit[v] - largest);
        double *stats = reference_row(o->out[0], r, t);
        stats[0] = largest;
        stats[1] = sum;
        stats[2] = target_column(o, r, t) >= 0 ? logit[target_column(o, r, t)] : -INFINITY;
    }
}

/* log sum exp and target logit of token t from all shards' statistics */
static void whole_stats(double *lse, double *target, const op *o, const run_context *r, int64_t t)
{
    const tensor *stats = o->in[2];
    double largest = -INFINITY, sum = 0;
    *target = -INFINITY;
    for (int64_t i = t; i < stats->shape[0]; i += o->in[0]->shape[0]) {
        largest = fmax(largest, reference_row(stats, r, i)[0]);
        *target = fmax(*target, reference_row(stats, r, i)[2]);
    }
    for (int64_t i = t; i < stats->shape[0]; i += o->in[0]->shape[0])
        if (reference_row(stats, r, i)[1] > 0)
            sum += reference_row(stats, r, i)[1] * exp(reference_row(stats, r, i)[0] - largest);
    *lse = largest + log(sum);
}

void reference_cross_entropy(const op *o, const run_context *r)
{
    const tensor *logits = o->in[0], *dlogits = o->out[1];
    const int32_t *targets = tensor_at(o->in[1], r->arena);
    const step_scalars *s = tensor_at(o->in[3], r->arena);
    double *loss = reference_row(o->out[0], r, 0), sum = 0;
    for (int64_t t = 0; t < logits->shape[0]; t++) {
        double lse, target, scale = (double)s->loss_scale / (double)s->loss_tokens;
        whole_stats(&lse, &target, o, r, t);
        if (targets[t] >= 0)
            sum += lse - target;
        for (int64_t v = 0; dlogits && v < logits->shape[1]; v++) {
            bool counts = targets[t] >= 0 && v < o->at.vocabulary.ids;
            double p = exp(reference_row(logits, r, t)[v] - lse), onehot = v == target_column(o, r, t);
            reference_row(dlogits, r, t)[v] = counts ? (p - onehot) * scale : 0;
        }
    }
    *loss = (o->at.accumulate ? *loss : 0) + sum;
}

/* ---- optimizer ----------------------------------------------------------------------------------------------- */

/* bins += value >= 0, digit by digit from the highest: limb i counts units of 2^(32 i - SUM_LOWEST) */
static void bins_add(int64_t *bins, double value)
{
    if (!isfinite(value)) {
        bins[SUM_NOT_FINITE]++;
        return;
    }
    for (int i = SUM_LIMBS - 1; i >= 0; i--) {
        double unit = ldexp(1, 32 * i - SUM_LOWEST), digit = floor(value / unit);
        if (digit > 0) {
            bins[i] += (int64_t)digit;
            value -= digit * unit;
        }
    }
}

double reference_bins_value(const int64_t *bins)
{
    if (bins[SUM_NOT_FINITE])
        return NAN;
    long double sum = 0;
    for (int i = SUM_LIMBS - 1; i >= 0; i--)
        sum += ldexpl((long double)bins[i], 32 * i - SUM_LOWEST);
    return (double)sum;
}

void reference_sum_squares(const op *o, const run_context *r)
{
    const tensor *gradient = o->in[0];
    int64_t *bins = tensor_at(o->out[0], r->arena);
    if (!o->at.accumulate)
        memset(bins, 0, SUM_BINS * sizeof *bins);
    for (int64_t i = 0; i < gradient->shape[0]; i++) {
        double sum = 0;
        for (int64_t j = 0; j < reference_width(gradient); j++)
            sum += reference_row(gradient, r, i)[j] * reference_row(gradient, r, i)[j];
        bins_add(bins, sum);
    }
}

void reference_clip(const op *o, const run_context *r)
{
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    double *control = reference_row(o->out[0], r, 0);
    double norm = sqrt(reference_bins_value(tensor_at(o->in[0], r->arena))) / (double)s->loss_scale;
    bool clips = s->clip > 0 && norm > (double)s->clip, finite = isfinite(norm);
    control[CONTROL_NORM] = norm;
    control[CONTROL_FACTOR] = finite ? (clips ? (double)s->clip / norm : 1) / (double)s->loss_scale : 0;
    control[CONTROL_SKIP] = !finite;
}
