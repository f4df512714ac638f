/* Routing. */
#include "tests/oracle/reference.h"

#include <math.h>
#include <string.h>

/* ---- choice ---------------------------------------------------------------------------------------------------- */

/* The place of candidate i in the order of values, larger ones first and of equal ones the lower index. */
static int64_t rank_of(const double *value, int64_t n, int64_t i)
{
    int64_t before = 0;
    for (int64_t j = 0; j < n; j++)
        before += value[j] > value[i] || (value[j] == value[i] && j < i);
    return before;
}

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static void scores(double *score, const double *logits, const op_routing *as)
{
    double top = -INFINITY, sum = 0;
    for (int64_t e = 0; e < as->experts; e++)
        top = fmax(top, logits[e]);
    for (int64_t e = 0; e < as->experts; e++)
        sum += exp(logits[e] - top);
    for (int64_t e = 0; e < as->experts; e++)
        score[e] = as->sigmoid ? sigmoid(logits[e]) : exp(logits[e] - top) / sum;
}

/* -inf for the candidates of groups that are not kept. */
static void keep_groups(double *candidate, const op_routing *as)
{
    int64_t size = as->experts / as->groups;
    double of_group[ROUTING_EXPERTS] = {0};
    for (int64_t e = 0; e < as->experts; e++)
        if (rank_of(candidate + e / size * size, size, e % size) < as->group_best)
            of_group[e / size] += candidate[e];
    for (int64_t e = 0; e < as->experts; e++)
        if (rank_of(of_group, as->groups, e / size) >= as->groups_kept)
            candidate[e] = -INFINITY;
}

static double sum_of_chosen(const double *score, const int32_t *experts, const op_routing *as)
{
    double sum = as->sigmoid ? 1e-20 : 0;
    for (int64_t j = 0; j < as->active; j++)
        sum += score[experts[j]];
    return as->renormalise ? sum : 1;
}

void reference_route(const op *o, const run_context *r)
{
    const op_routing *as = &o->at.routing;
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++) {
        double score[ROUTING_EXPERTS], candidate[ROUTING_EXPERTS];
        int32_t *experts = (int32_t *)tensor_at(o->out[1], r->arena) + t * as->active;
        scores(score, reference_row(o->in[0], r, t), as);
        for (int64_t e = 0; e < as->experts; e++)
            candidate[e] = score[e] + (o->in[1] ? *reference_row(o->in[1], r, e) : 0);
        if (as->groups)
            keep_groups(candidate, as);
        for (int64_t e = 0; e < as->experts; e++) {
            int64_t place = rank_of(candidate, as->experts, e);
            if (place < as->active)
                experts[place] = (int32_t)e;
        }
        double sum = sum_of_chosen(score, experts, as);
        for (int64_t j = 0; j < as->active; j++)
            reference_row(o->out[0], r, t)[j] = score[experts[j]] / sum * as->scale;
    }
}

/* Each weight's derivative after each logit, one by one. */
void reference_route_grad(const op *o, const run_context *r)
{
    const op_routing *as = &o->at.routing;
    for (int64_t t = 0; t < o->in[1]->shape[0]; t++) {
        double score[ROUTING_EXPERTS], dlogits[ROUTING_EXPERTS];
        const int32_t *experts = (const int32_t *)tensor_at(o->in[2], r->arena) + t * as->active;
        scores(score, reference_row(o->in[1], r, t), as);
        double sum = sum_of_chosen(score, experts, as);
        for (int64_t e = 0; e < as->experts; e++) {
            double slope[ROUTING_ACTIVE], slopes = 0; /* of the chosen scores, and of their sum */
            for (int64_t j = 0; j < as->active; j++) {
                double s = score[experts[j]], same = experts[j] == e;
                slopes += slope[j] = as->sigmoid ? same * s * (1 - s) : s * (same - score[e]);
            }
            dlogits[e] = o->in[4] ? reference_row(o->in[4], r, t)[e] : 0;
            for (int64_t j = 0; j < as->active; j++) {
                double of_sum = as->renormalise ? score[experts[j]] * slopes / (sum * sum) : 0;
                dlogits[e] += reference_row(o->in[0], r, t)[j] * as->scale * (slope[j] / sum - of_sum);
            }
        }
        memcpy(reference_row(o->out[0], r, t), dlogits, (size_t)as->experts * sizeof *dlogits);
    }
}

/* ---- places ---------------------------------------------------------------------------------------------------- */

/* The order is walked expert by expert. */
void reference_assign(const op *o, const run_context *r)
{
    const int32_t *experts = tensor_at(o->in[0], r->arena);
    int32_t *row_ids = tensor_at(o->out[0], r->arena), *offsets = tensor_at(o->out[1], r->arena);
    int64_t n = tensor_elements(o->in[0]), row = -o->at.routing.skip, rows = o->at.routing.rows;
    for (int64_t i = 0; i < n; i++)
        row_ids[i] = -1;
    for (int64_t e = 0; e < o->at.routing.local; e++) {
        offsets[e] = (int32_t)(row < 0 ? 0 : row > rows ? rows : row);
        for (int64_t i = 0; i < n; i++)
            if (experts[i] == o->at.routing.first + e) {
                row_ids[i] = row >= 0 && row < rows ? (int32_t)row : -1;
                row++;
            }
    }
    offsets[o->at.routing.local] = (int32_t)(row < 0 ? 0 : row > rows ? rows : row);
}

/* Slot by slot, token by token. */
void reference_slots(const op *o, const run_context *r)
{
    const op_routing *as = &o->at.routing;
    const int32_t *experts = tensor_at(o->in[0], r->arena);
    int32_t *row_ids = tensor_at(o->out[0], r->arena), *ids = tensor_at(o->out[1], r->arena);
    int32_t *offsets = tensor_at(o->out[2], r->arena);
    int64_t n = tensor_elements(o->in[0]), each = o->at.routing.rows / as->slots, first, count;
    for (int64_t i = 0; i < n; i++)
        row_ids[i] = -1;
    for (int64_t row = 0; row < o->at.routing.rows; row++)
        ids[row] = -1;
    offsets[0] = 0;
    for (int d = 0; d < as->slots; d++) {
        int64_t number = 0;
        offsets[d + 1] = (int32_t)(d * each);
        shard_rows(&first, &count, as->experts, as->slots, d);
        for (int64_t i = 0; i < n; i++) {
            if (experts[i] < first || experts[i] >= first + count)
                continue;
            if (number >= as->skip && number < as->skip + each) {
                row_ids[i] = offsets[d + 1]++;
                ids[row_ids[i]] = (int32_t)(experts[i] - first);
            }
            number++;
        }
    }
}

static int64_t chosen_of(const op *o, const run_context *r, int64_t first, int64_t local)
{
    const int32_t *experts = tensor_at(o->in[0], r->arena);
    int64_t rows = 0;
    for (int64_t i = 0; i < tensor_elements(o->in[0]); i++)
        for (int64_t e = first; e < first + local; e++)
            rows += experts[i] == e;
    return rows;
}

static void add_over(double *over, const op_capacity *as, int64_t rows)
{
    for (int i = 0; i < CAPACITY_BUCKETS - 1; i++)
        if (rows > as->room[i]) {
            over[i] += (double)(rows - as->room[i]);
            over[CAPACITY_BUCKETS - 1] = as->bucket == i ? INFINITY : over[CAPACITY_BUCKETS - 1];
        }
}

void reference_overflow(const op *o, const run_context *r)
{
    double *over = reference_row(o->out[0], r, 0);
    const op_capacity *as = &o->at.capacity;
    for (int i = 0; i < CAPACITY_BUCKETS; i++)
        over[i] = o->at.accumulate ? over[i] : 0;
    int64_t first = as->first, local = as->local;
    for (int d = 0; d < (as->slots ? as->slots : 1); d++) {
        if (as->slots)
            shard_rows(&first, &local, as->experts, as->slots, d);
        add_over(over, as, chosen_of(o, r, first, local));
    }
}

/* ---- there and back -------------------------------------------------------------------------------------------- */

static int32_t place_of(const tensor *row_ids, const run_context *r, int64_t t, int64_t j)
{
    return ((const int32_t *)tensor_at(row_ids, r->arena))[t * row_ids->shape[1] + j];
}

void reference_dispatch(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *row_ids = o->in[1], *rows = o->out[0];
    for (int64_t i = 0; i < rows->shape[0]; i++)
        memset(reference_row(rows, r, i), 0, (size_t)rows->shape[1] * sizeof(double));
    for (int64_t t = 0; t < x->shape[0]; t++)
        for (int64_t j = 0; j < row_ids->shape[1]; j++)
            for (int64_t h = 0; place_of(row_ids, r, t, j) >= 0 && h < x->shape[1]; h++)
                reference_row(rows, r, place_of(row_ids, r, t, j))[h] =
                    reference_row(x, r, t)[h] * (o->in[3] ? reference_row(o->in[3], r, t)[j] : 1);
}

void reference_combine(const op *o, const run_context *r)
{
    const tensor *rows = o->in[0], *row_ids = o->in[1], *y = o->out[0];
    for (int64_t t = 0; t < y->shape[0]; t++)
        for (int64_t h = 0; h < y->shape[1]; h++) {
            double sum = o->in[4] ? reference_row(o->in[4], r, t)[h] : 0;
            for (int64_t j = 0; j < row_ids->shape[1]; j++)
                if (place_of(row_ids, r, t, j) >= 0)
                    sum += reference_row(rows, r, place_of(row_ids, r, t, j))[h] *
                           (o->in[3] ? reference_row(o->in[3], r, t)[j] : 1);
            reference_row(y, r, t)[h] = sum;
        }
}

void reference_combine_dots(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *rows = o->in[1], *row_ids = o->in[2];
    for (int64_t t = 0; t < dy->shape[0]; t++)
        for (int64_t j = 0; j < row_ids->shape[1]; j++) {
            double sum = 0;
            for (int64_t h = 0; place_of(row_ids, r, t, j) >= 0 && h < dy->shape[1]; h++)
                sum += reference_row(dy, r, t)[h] * reference_row(rows, r, place_of(row_ids, r, t, j))[h];
            reference_row(o->out[0], r, t)[j] = sum;
        }
}
