/* Routing: threads divide tokens, or rows; each token's and each row's result is one thread's own, so that none depends
 * on how many there are. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- choice ---------------------------------------------------------------------------------------------------- */

/* The best so far, in descending order; equal scores keep the order in which they came. */
typedef struct ranking {
    int count, most;
    float score[ROUTING_ACTIVE];
    int32_t id[ROUTING_ACTIVE];
} ranking;

static void offer(ranking *r, float score, int32_t id)
{
    if (r->count == r->most && !(score > r->score[r->most - 1]))
        return;
    int i = r->count < r->most ? r->count++ : r->most - 1;
    for (; i > 0 && score > r->score[i - 1]; i--) {
        r->score[i] = r->score[i - 1];
        r->id[i] = r->id[i - 1];
    }
    r->score[i] = score;
    r->id[i] = id;
}

/* Sums the `best` largest of n scores. */
static float group_score(const float *score, int32_t n, int32_t best)
{
    ranking r = {.most = best};
    float sum = 0;
    for (int32_t i = 0; i < n; i++)
        offer(&r, score[i], i);
    for (int32_t i = 0; i < best; i++)
        sum += r.score[i];
    return sum;
}

/* Rejects the scores of groups that are not kept. */
static void keep_groups(bool *kept, const float *score, const op_routing *as)
{
    int32_t size = as->experts / as->groups;
    float of_group[ROUTING_EXPERTS];
    for (int32_t g = 0; g < as->groups; g++)
        of_group[g] = group_score(score + g * size, size, as->group_best);
    for (int32_t g = 0; g < as->groups; g++) {
        int32_t better = 0;
        for (int32_t other = 0; other < as->groups; other++)
            better += of_group[other] > of_group[g] || (of_group[other] == of_group[g] && other < g);
        kept[g] = better < as->groups_kept;
    }
}

static void choose(ranking *best, const float *score, const float *bias, const op_routing *as)
{
    float biased[ROUTING_EXPERTS] = {0};
    bool kept[ROUTING_EXPERTS] = {true};
    int32_t size = as->groups ? as->experts / as->groups : as->experts;
    for (int32_t e = 0; e < as->experts; e++) {
        float v = bias ? score[e] + bias[e] : score[e];
        biased[e] = isnan(v) ? INFINITY : v;
    }
    if (as->groups)
        keep_groups(kept, biased, as);
    *best = (ranking){.most = as->active};
    for (int32_t first = 0; first < as->experts; first += size)
        for (int32_t e = first; kept[first / size] && e < first + size; e++)
            offer(best, biased[e], e);
}

static void route_token(float *weights, int32_t *experts, const float *score, const float *bias, const op_routing *as)
{
    ranking best;
    float sum = 0;
    choose(&best, score, bias, as);
    for (int32_t j = 0; j < as->active; j++) {
        experts[j] = best.id[j];
        weights[j] = score[best.id[j]];
        sum += weights[j];
    }
    float factor = as->renormalise ? as->scale / (as->sigmoid ? sum + 1e-20f : sum) : as->scale;
    for (int32_t j = 0; j < as->active; j++)
        weights[j] *= factor;
}

void cpu_route(const op *o, const run_context *r)
{
    const tensor *logits = o->in[0];
    const float *bias = tensor_at(o->in[1], r->arena);
    const op_routing *as = &o->at.routing;
    const row_loops *loops = isa_of(r)->rows[logits->type];
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(logits))) schedule(static)
    for (int64_t t = 0; t < logits->shape[0]; t++) {
        float score[ROUTING_EXPERTS];
        (as->sigmoid ? loops->sigmoids : loops->probabilities)(score, row_at(logits, r, t), as->experts);
        route_token((void *)row_at(o->out[0], r, t), (void *)row_at(o->out[1], r, t), score, bias, as);
    }
}

/* Computes dlogits. With g = dweights and w = weights = scale p, a softmax' dlogits are [chosen] w g - p (g . w): where
 * weights are divided by their sum, this is w (g - g . w / scale) of the chosen and 0 of the others. A sigmoid's are w
 * (g - [divided] g . w / scale) (1 - p) of the chosen. */
static void route_grad_token(float *dlogits, const float *logits, const float *dweights, const int32_t *experts,
                             const float *weights, const isa *set, const op_routing *as)
{
    const row_loops *loops = set->rows[DTYPE_FP32];
    float dot = 0;
    for (int32_t j = 0; j < as->active; j++)
        dot += dweights[j] * weights[j];
    if (as->sigmoid || as->renormalise) {
        memset(dlogits, 0, (size_t)as->experts * sizeof *dlogits);
    } else {
        loops->probabilities(dlogits, logits, as->experts);
        loops->scale(dlogits, dlogits, -dot, as->experts);
    }
    float mean = as->renormalise ? dot / as->scale : 0;
    for (int32_t j = 0; j < as->active; j++) {
        float slope = as->sigmoid ? 1 / (1 + expf(logits[experts[j]])) : 1;
        dlogits[experts[j]] += weights[j] * (dweights[j] - mean) * slope;
    }
}

void cpu_route_grad(const op *o, const run_context *r)
{
    const tensor *logits = o->in[1], *addend = o->in[4];
    const isa *set = isa_of(r);
    const row_loops *loops = set->rows[logits->type];
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(logits))) schedule(static)
    for (int64_t t = 0; t < logits->shape[0]; t++) {
        float from[ROUTING_EXPERTS], to[ROUTING_EXPERTS];
        loops->to_float(from, row_at(logits, r, t), logits->shape[1]);
        route_grad_token(to, from, (void *)row_at(o->in[0], r, t), (void *)row_at(o->in[2], r, t),
                         (void *)row_at(o->in[3], r, t), set, &o->at.routing);
        if (addend)
            loops->accumulate(to, row_at(addend, r, t), addend->shape[1]);
        loops->from_float(row_at(o->out[0], r, t), to, logits->shape[1]);
    }
}

/* ---- places ---------------------------------------------------------------------------------------------------- */

/* The number of kinds of assignments: experts of this rank, or slots. */
static int32_t kinds_of(const op *o)
{
    return o->at.routing.slots ? o->at.routing.slots : o->at.routing.local;
}

CPU_SCRATCH(assign, (threads < 1 ? 1 : threads) * kinds_of(o) * (int64_t)sizeof(int32_t))

/* Returns an assignment's kind: its slot or expert, -1: another rank's; *within: the expert's number in the slot. */
static int32_t kind_of(int64_t *within, const op *o, int32_t expert)
{
    const op_routing *as = &o->at.routing;
    if (as->slots)
        return shard_owner(within, as->experts, as->slots, expert);
    int32_t e = expert - (int32_t)o->at.routing.first;
    return e >= 0 && e < as->local ? e : -1;
}

/* Counts assignments [first, first + count) of each kind. */
static void count_part(int32_t *counts, const op *o, const int32_t *experts, int64_t first, int64_t count)
{
    int64_t within;
    memset(counts, 0, (size_t)kinds_of(o) * sizeof *counts);
    for (int64_t i = first; i < first + count; i++) {
        int32_t e = kind_of(&within, o, experts[i]);
        if (e >= 0)
            counts[e]++;
    }
}

/* Places assignments [first, first + count), of which `next` counts each kind. */
typedef void place_part(const op *o, const run_context *r, int32_t *next, int64_t first, int64_t count);

/* Counts all parts; `scan` turns counts into each part's first number of each kind; then places the assignments. */
static void place_all(const op *o, const run_context *r,
                      void (*scan)(const op *o, const run_context *r, int32_t *counts, int parts), place_part *place)
{
    int32_t *counts = tensor_at(o->scratch, r->arena);
    int64_t elements = tensor_elements(o->in[0]), kinds = kinds_of(o), first, count;
    int parts = parallel_threads(r, elements);
#pragma omp parallel for num_threads(parts) schedule(static, 1) private(first, count)
    for (int p = 0; p < parts; p++) {
        shard_rows(&first, &count, elements, parts, p);
        count_part(counts + p * kinds, o, tensor_at(o->in[0], r->arena), first, count);
    }
    scan(o, r, counts, parts);
#pragma omp parallel for num_threads(parts) schedule(static, 1) private(first, count)
    for (int p = 0; p < parts; p++) {
        shard_rows(&first, &count, elements, parts, p);
        place(o, r, counts + p * kinds, first, count);
    }
}

/* Turns the counts of all parts into the number, in the order, of each part's first assignment to each expert. */
static void scan_counts(const op *o, const run_context *r, int32_t *counts, int parts)
{
    int32_t *offsets = tensor_at(o->out[1], r->arena);
    const op_routing *as = &o->at.routing;
    int32_t before = 0;
    for (int32_t e = 0; e <= as->local; e++) {
        int64_t row = before - as->skip;
        offsets[e] = (int32_t)(row < 0 ? 0 : least(row, o->at.routing.rows));
        for (int p = 0; e < as->local && p < parts; p++) {
            int32_t n = counts[(int64_t)p * as->local + e];
            counts[(int64_t)p * as->local + e] = before;
            before += n;
        }
    }
}

static void place_rows(const op *o, const run_context *r, int32_t *next, int64_t first, int64_t count)
{
    const int32_t *experts = tensor_at(o->in[0], r->arena);
    int32_t *row_ids = tensor_at(o->out[0], r->arena);
    int64_t within;
    for (int64_t i = first; i < first + count; i++) {
        int32_t e = kind_of(&within, o, experts[i]);
        int64_t row = e >= 0 ? next[e]++ - o->at.routing.skip : -1;
        row_ids[i] = row >= 0 && row < o->at.routing.rows ? (int32_t)row : -1;
    }
}

CPU_OP(assign, place_all(o, r, scan_counts, place_rows))

/* Counts of all parts become the number, in its slot, of each part's first assignment to it; no row has an expert yet
 * from where its slot ends. */
static void scan_slots(const op *o, const run_context *r, int32_t *counts, int parts)
{
    int32_t *offsets = tensor_at(o->out[2], r->arena), *ids = tensor_at(o->out[1], r->arena);
    const op_routing *as = &o->at.routing;
    int64_t each = o->at.routing.rows / as->slots;
    offsets[0] = 0;
    for (int32_t d = 0; d < as->slots; d++) {
        int32_t before = 0;
        for (int p = 0; p < parts; p++) {
            int32_t n = counts[(int64_t)p * as->slots + d];
            counts[(int64_t)p * as->slots + d] = before;
            before += n;
        }
        int64_t used = before - as->skip, end = d * each + (used < 0 ? 0 : least(used, each));
        offsets[d + 1] = (int32_t)end;
        for (int64_t row = end; row < (d + 1) * each; row++)
            ids[row] = -1;
    }
}

static void place_in_slots(const op *o, const run_context *r, int32_t *next, int64_t first, int64_t count)
{
    const int32_t *experts = tensor_at(o->in[0], r->arena);
    int32_t *row_ids = tensor_at(o->out[0], r->arena), *ids = tensor_at(o->out[1], r->arena);
    int64_t each = o->at.routing.rows / o->at.routing.slots, within;
    for (int64_t i = first; i < first + count; i++) {
        int32_t d = kind_of(&within, o, experts[i]);
        int64_t row = next[d]++ - o->at.routing.skip;
        bool has = row >= 0 && row < each;
        row_ids[i] = has ? (int32_t)(d * each + row) : -1;
        if (has)
            ids[row_ids[i]] = (int32_t)within;
    }
}

CPU_OP(slots, place_all(o, r, scan_slots, place_in_slots))

/* Assignments to the experts [first, first + local). */
static int64_t count_rows(const op *o, const run_context *r, int64_t first, int64_t local)
{
    const int32_t *experts = tensor_at(o->in[0], r->arena);
    int64_t elements = tensor_elements(o->in[0]), rows = 0;
#pragma omp parallel for num_threads(parallel_threads(r, elements)) schedule(static) reduction(+ : rows)
    for (int64_t i = 0; i < elements; i++)
        rows += experts[i] >= first && experts[i] < first + local;
    return rows;
}

static void add_over(float *over, const op_capacity *as, int64_t rows)
{
    for (int i = 0; i < CAPACITY_BUCKETS - 1; i++)
        over[i] += rows > as->room[i] ? (float)(rows - as->room[i]) : 0;
    if (as->bucket < CAPACITY_BUCKETS - 1 && rows > as->room[as->bucket])
        over[CAPACITY_BUCKETS - 1] = INFINITY;
}

void cpu_overflow(const op *o, const run_context *r)
{
    float *over = tensor_at(o->out[0], r->arena);
    const op_capacity *as = &o->at.capacity;
    int64_t first = as->first, local = as->local;
    if (!o->at.accumulate)
        memset(over, 0, CAPACITY_BUCKETS * sizeof *over);
    if (!as->slots)
        add_over(over, as, count_rows(o, r, first, local));
    for (int d = 0; d < as->slots; d++) {
        shard_rows(&first, &local, as->experts, as->slots, d);
        add_over(over, as, count_rows(o, r, first, local));
    }
}

/* ---- there and back -------------------------------------------------------------------------------------------- */

void cpu_dispatch(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *row_ids = o->in[1], *offsets = o->in[2], *rows = o->out[0];
    const row_loops *loops = isa_of(r)->rows[x->type];
    const int32_t *ends = tensor_at(offsets, r->arena);
    const int64_t slots = o->at.routing.slots, each = slots ? rows->shape[0] / slots : rows->shape[0];
    size_t bytes = (size_t)(x->shape[1] * dtype_bytes((dtype)x->type));
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(rows))) schedule(static)
    for (int64_t t = 0; t < x->shape[0]; t++) {
        const int32_t *to = (void *)row_at(row_ids, r, t);
        const float *weights = o->in[3] ? (void *)row_at(o->in[3], r, t) : NULL;
        for (int64_t j = 0; j < row_ids->shape[1]; j++) {
            if (to[j] < 0)
                continue;
            if (weights)
                loops->scale(row_at(rows, r, to[j]), row_at(x, r, t), weights[j], x->shape[1]);
            else
                memcpy(row_at(rows, r, to[j]), row_at(x, r, t), bytes);
        }
    }
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(rows))) schedule(static)
    for (int64_t row = 0; row < rows->shape[0]; row++)
        if (row >= ends[slots ? row / each + 1 : offsets->shape[0] - 1])
            memset(row_at(rows, r, row), 0, bytes);
}

void cpu_combine(const op *o, const run_context *r)
{
    const tensor *rows = o->in[0], *row_ids = o->in[1], *weights = o->in[3], *addend = o->in[4], *y = o->out[0];
    const row_loops *loops = isa_of(r)->rows[y->type];
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(y))) schedule(static)
    for (int64_t t = 0; t < y->shape[0]; t++) {
        const int32_t *from = (void *)row_at(row_ids, r, t);
        const float *given = weights ? (void *)row_at(weights, r, t) : NULL;
        const void *row[ROUTING_ACTIVE];
        float weight[ROUTING_ACTIVE];
        int count = 0;
        for (int64_t j = 0; j < row_ids->shape[1]; j++)
            if (from[j] >= 0) {
                row[count] = row_at(rows, r, from[j]);
                weight[count++] = given ? given[j] : 1;
            }
        const void *to = addend ? row_at(addend, r, t) : NULL;
        if (count > 0 || to != row_at(y, r, t)) /* else it is there already */
            loops->weighted_sum(row_at(y, r, t), to, row, weight, count, y->shape[1]);
    }
}

void cpu_combine_dots(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *rows = o->in[1], *row_ids = o->in[2];
    const tile_loops *loops = isa_of(r)->tiles[dy->type];
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(dy))) schedule(static)
    for (int64_t t = 0; t < dy->shape[0]; t++) {
        const int32_t *from = (void *)row_at(row_ids, r, t);
        float *dot = (void *)row_at(o->out[0], r, t);
        for (int64_t j = 0; j < row_ids->shape[1]; j++)
            dot[j] = from[j] < 0 ? 0 : loops->dot(row_at(dy, r, t), row_at(rows, r, from[j]), dy->shape[1]);
    }
}
