/* Multi-head latent attention as it is defined: keys and values of every head are made of the latents. */
#include <math.h>
#include <stdlib.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/oracle/reference.h"

void reference_join_keys(const op *o, const run_context *r)
{
    int64_t nope = o->in[0]->shape[1] / o->at.heads.q, rope = o->in[1]->shape[1];
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int64_t head = 0; head < o->at.heads.q; head++)
            for (int64_t i = 0; i < nope + rope; i++)
                reference_row(o->out[0], r, t)[head * (nope + rope) + i] =
                    i < nope ? reference_row(o->in[0], r, t)[head * nope + i] : reference_row(o->in[1], r, t)[i - nope];
}

void reference_split_keys(const op *o, const run_context *r)
{
    int64_t nope = o->out[0]->shape[1] / o->at.heads.q, rope = o->out[1]->shape[1];
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++) {
        const double *dk = reference_row(o->in[0], r, t);
        double *dkn = reference_row(o->out[0], r, t), *dkr = reference_row(o->out[1], r, t);
        for (int64_t i = 0; i < rope; i++)
            dkr[i] = 0;
        for (int64_t head = 0; head < o->at.heads.q; head++)
            for (int64_t i = 0; i < nope + rope; i++) {
                double d = dk[head * (nope + rope) + i];
                if (i < nope)
                    dkn[head * nope + i] = d;
                else
                    dkr[i - nope] += d;
            }
    }
}

/* The product of row `row` of w and the latent c. */
static double made(const op *o, const run_context *r, int64_t row, const double *c)
{
    double sum = 0;
    for (int64_t i = 0; i < o->in[1]->shape[1]; i++)
        sum += reference_row(o->in[3], r, row)[i] * c[i];
    return sum;
}

/* The score of a head of q and a row of the cache. */
static double score_of_latent(const op *o, const run_context *r, int64_t head, const double *q, const double *row)
{
    int64_t rank = o->in[1]->shape[1], rope = o->in[2]->shape[1], nope = o->in[0]->shape[1] / o->at.heads.q - rope;
    double sum = 0;
    for (int64_t i = 0; i < nope; i++)
        sum += q[i] * made(o, r, head * nope + i, row);
    for (int64_t i = 0; i < rope; i++)
        sum += q[nope + i] * row[rank + i];
    return sum * (double)o->at.attention.scale;
}

static void attend_to_latents(const op *o, const run_context *r, double *score, int64_t b, int64_t head, int64_t last)
{
    int64_t heads = o->at.heads.q, width = o->in[5]->shape[2], size = o->in[0]->shape[1] / heads;
    int64_t values = o->out[0]->shape[1] / heads, first = o->in[3]->shape[0] - heads * values + head * values;
    const double *rows = reference_row(o->in[5], r, b);
    double *y = reference_row(o->out[0], r, b) + head * values, total = 0, largest = -INFINITY;
    for (int64_t i = 0; i <= last; i++) {
        score[i] = score_of_latent(o, r, head, reference_row(o->in[0], r, b) + head * size, rows + i * width);
        largest = fmax(largest, score[i]);
    }
    for (int64_t i = 0; i <= last; i++)
        total += exp(score[i] - largest);
    for (int64_t j = 0; j < values; j++) {
        y[j] = 0;
        for (int64_t i = 0; i <= last; i++)
            y[j] += exp(score[i] - largest) / total * made(o, r, first + j, rows + i * width);
    }
}

void reference_latent_decode(const op *o, const run_context *r)
{
    const tensor *cache = o->in[5];
    const int32_t *positions = tensor_at(o->in[4], r->arena);
    int64_t rank = o->in[1]->shape[1];
    AUTO_FREE double *score = must_alloc((unsigned long)cache->shape[1] * sizeof *score);
    for (int64_t b = 0; b < cache->shape[0]; b++) {
        double *row = reference_row(cache, r, b) + positions[b] * cache->shape[2];
        for (int64_t i = 0; i < cache->shape[2]; i++)
            row[i] = i < rank ? reference_row(o->in[1], r, b)[i] : reference_row(o->in[2], r, b)[i - rank];
        for (int64_t head = 0; head < o->at.heads.q; head++)
            attend_to_latents(o, r, score, b, head, positions[b]);
    }
}
