/* Load of experts, losses of their routers and the gradient of these, in float64: see reference.h. */
#include "tests/oracle/reference.h"

#include <math.h>

static int64_t group_of(const op *o, const tensor *token_positions, const run_context *r, int64_t t)
{
    int64_t place = token_positions ? ((const int32_t *)tensor_at(token_positions, r->arena))[t] : t;
    return o->at.balance.sequence ? place / o->at.balance.sequence : 0;
}

void reference_expert_load(const op *o, const run_context *r)
{
    const tensor *experts = o->in[0], *load = o->out[0];
    const int32_t *chosen = tensor_at(experts, r->arena);
    for (int64_t g = 0; g < load->shape[0]; g++)
        for (int64_t e = 0; e < load->shape[1]; e++) {
            int64_t count = 0;
            for (int64_t i = 0; i < tensor_elements(experts); i++)
                count += chosen[i] == e && group_of(o, o->in[1], r, i / experts->shape[1]) == g;
            reference_row(load, r, g)[e] = (double)count * (double)o->at.balance.scale;
        }
}

void reference_expert_count(const op *o, const run_context *r)
{
    const int32_t *chosen = tensor_at(o->in[0], r->arena);
    int32_t *counts = tensor_at(o->out[0], r->arena);
    for (int32_t e = 0; e < o->out[0]->shape[0]; e++) {
        counts[e] = o->at.accumulate ? counts[e] : 0;
        for (int64_t i = 0; i < tensor_elements(o->in[0]); i++)
            counts[e] += chosen[i] == e;
    }
}

void reference_expert_share(const op *o, const run_context *r)
{
    const int32_t *counts = tensor_at(o->in[0], r->arena);
    double sum = 0;
    for (int64_t e = 0; e < o->in[0]->shape[0]; e++)
        sum += counts[e];
    for (int64_t e = 0; e < o->in[0]->shape[0]; e++)
        reference_row(o->out[0], r, 0)[e] = counts[e] / sum * (double)o->in[0]->shape[0];
}

void reference_expert_bias(const op *o, const run_context *r)
{
    const int32_t *counts = tensor_at(o->in[0], r->arena);
    double *bias = reference_row(o->out[0], r, 0), experts = (double)o->in[0]->shape[0], mean = 0;
    for (int64_t e = 0; e < o->in[0]->shape[0]; e++)
        mean += counts[e] / experts;
    for (int64_t e = 0; e < o->in[0]->shape[0]; e++) {
        double lacks = mean - counts[e];
        bool even = fabs(lacks) < 0.5 / experts; /* but for rounding, a multiple of 1 / experts */
        if (reference_row(o->in[1], r, 0)[CONTROL_SKIP] == 0 && !even)
            bias[e] += (double)o->at.balance.scale * (lacks > 0 ? 1 : -1);
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* A row of logits, and the sums over it. */
typedef struct row_of_logits {
    const double *x;
    int64_t count;
    double lse, sigmoids;
} row_of_logits;

static row_of_logits row_of(const op *o, const run_context *r, int64_t t)
{
    row_of_logits row = {.x = reference_row(o->in[0], r, t), .count = o->in[0]->shape[1], .sigmoids = 1e-20};
    double sum = 0;
    for (int64_t i = 0; i < row.count; i++) {
        sum += exp(row.x[i]);
        row.sigmoids += sigmoid(row.x[i]);
    }
    row.lse = log(sum);
    return row;
}

static double probability(const op *o, const row_of_logits *row, int64_t e)
{
    return o->at.balance.sigmoid ? sigmoid(row->x[e]) / row->sigmoids : exp(row->x[e] - row->lse);
}

void reference_balance(const op *o, const run_context *r)
{
    double *sums = reference_row(o->out[0], r, 0), load = 0, z = 0;
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++) {
        row_of_logits row = row_of(o, r, t);
        for (int64_t e = 0; e < row.count; e++)
            load += probability(o, &row, e) * reference_row(o->in[1], r, group_of(o, o->in[2], r, t))[e];
        z += row.lse * row.lse;
    }
    sums[0] = (o->at.accumulate ? sums[0] : 0) + load;
    sums[1] = (o->at.accumulate ? sums[1] : 0) + z;
}

/* d (load sum over i of p[i] a[i] + z lse^2) / d x[e]: d p[i] / d x[e] = p'[e] ((i == e) - p[i]). */
static double derivative(const op *o, const row_of_logits *row, const double *a, int64_t e)
{
    const op_balance *as = &o->at.balance;
    double softmax = exp(row->x[e] - row->lse), d = (double)as->z * 2 * row->lse * softmax;
    double own = as->sigmoid ? sigmoid(row->x[e]) * sigmoid(-row->x[e]) / row->sigmoids : softmax;
    for (int64_t i = 0; i < row->count; i++)
        d += (double)as->load * a[i] * own * ((i == e) - probability(o, row, i));
    return d;
}

void reference_balance_grad(const op *o, const run_context *r)
{
    const tensor *addend = o->in[4];
    const step_scalars *s = tensor_at(o->in[2], r->arena);
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++) {
        row_of_logits row = row_of(o, r, t);
        const double *a = reference_row(o->in[1], r, group_of(o, o->in[3], r, t));
        for (int64_t e = 0; e < row.count; e++) {
            double d = derivative(o, &row, a, e) * (double)s->loss_scale / (double)s->batch_tokens;
            reference_row(o->out[0], r, t)[e] = d + (addend ? reference_row(addend, r, t)[e] : 0);
        }
    }
}
