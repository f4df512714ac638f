/* The load of experts, the losses of their routers and the gradient of these. A row of logits becomes fp32 numbers in
 * working memory of its thread; sums over rows are made of blocks of rows, so that their order depends on no number of
 * threads. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/token.h"

enum { BLOCK = 64 };

static const float TINY = 1e-20f; /* the least sum of sigmoids */

/* The group of token t. */
static int64_t group_of(const op *o, const int32_t *token_positions, int64_t t)
{
    int32_t sequence = o->at.balance.sequence;
    return sequence == 0 ? 0 : token_sample(token_positions ? token_positions[t] : t, sequence);
}

/* The counts are integers where the result will lie; one thread makes them, in less time than a product of one row. */
void cpu_expert_load(const op *o, const run_context *r)
{
    const tensor *experts = o->in[0], *load = o->out[0];
    const int32_t *token_positions = o->in[1] ? tensor_at(o->in[1], r->arena) : NULL;
    for (int64_t g = 0; g < load->shape[0]; g++)
        memset(row_at(load, r, g), 0, (size_t)load->shape[1] * sizeof(float));
    for (int64_t t = 0; t < experts->shape[0]; t++) {
        const int32_t *chosen = (const int32_t *)(const void *)row_at(experts, r, t);
        int32_t *counts = (int32_t *)(void *)row_at(load, r, group_of(o, token_positions, t));
        for (int64_t j = 0; j < experts->shape[1]; j++)
            counts[chosen[j]]++;
    }
    for (int64_t g = 0; g < load->shape[0]; g++) {
        char *row = row_at(load, r, g);
        for (int64_t e = 0; e < load->shape[1]; e++) {
            int32_t count;
            memcpy(&count, row + e * 4, sizeof count);
            float value = (float)count * o->at.balance.scale;
            memcpy(row + e * 4, &value, sizeof value);
        }
    }
}

void cpu_expert_count(const op *o, const run_context *r)
{
    const tensor *experts = o->in[0];
    int32_t *counts = tensor_at(o->out[0], r->arena);
    if (!o->at.accumulate)
        memset(counts, 0, (size_t)o->out[0]->shape[0] * sizeof *counts);
    for (int64_t t = 0; t < experts->shape[0]; t++) {
        const int32_t *chosen = (const int32_t *)(const void *)row_at(experts, r, t);
        for (int64_t j = 0; j < experts->shape[1]; j++)
            counts[chosen[j]]++;
    }
}

void cpu_expert_share(const op *o, const run_context *r)
{
    const int32_t *counts = tensor_at(o->in[0], r->arena);
    float *load = tensor_at(o->out[0], r->arena);
    int64_t experts = o->in[0]->shape[0], sum = 0;
    for (int64_t e = 0; e < experts; e++)
        sum += counts[e];
    for (int64_t e = 0; e < experts; e++)
        load[e] = (float)((double)(experts * counts[e]) / (double)sum);
}

void cpu_expert_bias(const op *o, const run_context *r)
{
    const int32_t *counts = tensor_at(o->in[0], r->arena);
    const float *control = tensor_at(o->in[1], r->arena);
    float *bias = tensor_at(o->out[0], r->arena);
    int64_t experts = o->in[0]->shape[0], sum = 0;
    if (control[CONTROL_SKIP] != 0)
        return;
    for (int64_t e = 0; e < experts; e++)
        sum += counts[e];
    for (int64_t e = 0; e < experts; e++) {
        int64_t lacks = sum - experts * counts[e];
        bias[e] += lacks > 0 ? o->at.balance.scale : lacks < 0 ? -o->at.balance.scale : 0;
    }
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* Quantities that the losses need of a row of logits. */
typedef struct row_of_logits {
    float *p;      /* [experts]: probabilities */
    float *slope;  /* [experts]: d p[e] / d logits[e] = slope[e] (1 - p[e]), d p[i] / d logits[e] = -slope[e] p[i] */
    float *soft;   /* [experts]: softmax */
    double lse;    /* log sum exp */
    int64_t count; /* experts */
} row_of_logits;

enum { ROWS_OF_LOGITS = 3 };

static row_of_logits row_in(float *memory, int64_t count)
{
    return (row_of_logits){.p = memory, .slope = memory + count, .soft = memory + 2 * count, .count = count};
}

/* Sigmoids divided by their sum; `x`: logits as fp32. With e = exp(-|x|), the sigmoid is 1 / (1 + e) or e / (1 + e). */
static void divide_sigmoids(const row_loops *loops, row_of_logits *row, const float *x)
{
    float *e = row->slope, *s = row->p, sum = TINY;
    for (int64_t i = 0; i < row->count; i++)
        e[i] = -fabsf(x[i]);
    loops->logits_grad(e, e, row->count, 0, 1);
    for (int64_t i = 0; i < row->count; i++) {
        float one = 1 / (1 + e[i]);
        s[i] = x[i] >= 0 ? one : e[i] * one;
        e[i] = e[i] * one * one;
        sum += s[i];
    }
    float part = 1 / sum;
    for (int64_t i = 0; i < row->count; i++) {
        s[i] *= part;
        row->slope[i] *= part;
    }
}

static void read_row(row_of_logits *row, const op *o, const run_context *r, int64_t t)
{
    const tensor *logits = o->in[0];
    const row_loops *loops = isa_of(r)->rows[DTYPE_FP32];
    float largest, sum, *x = row->soft;
    isa_of(r)->rows[logits->type]->to_float(x, row_at(logits, r, t), row->count);
    if (o->at.balance.sigmoid)
        divide_sigmoids(loops, row, x);
    loops->logits_stats(&largest, &sum, x, row->count);
    loops->logits_grad(x, x, row->count, largest, 1 / sum);
    row->lse = (double)largest + log((double)sum);
    if (!o->at.balance.sigmoid)
        row->p = row->slope = row->soft;
}

static double dot(const float *p, const float *load, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)p[i] * (double)load[i];
    return sum;
}

/* The load of the experts in the group of token t. */
static const float *load_of(const op *o, const run_context *r, const tensor *token_positions, int64_t t)
{
    int64_t group = group_of(o, token_positions ? tensor_at(token_positions, r->arena) : NULL, t);
    return (const float *)(const void *)row_at(o->in[1], r, group);
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */

static int64_t blocks_of(const op *o)
{
    return (o->in[0]->shape[0] + BLOCK - 1) / BLOCK;
}

int64_t balance_scratch_bytes(const op *o, int threads)
{
    int64_t rows = (int64_t)threads * ROWS_OF_LOGITS * o->in[0]->shape[1];
    return blocks_of(o) * 2 * (int64_t)sizeof(double) + rows * (int64_t)sizeof(float);
}

static void sum_block(double sums[2], const op *o, const run_context *r, float *memory, int64_t block)
{
    int64_t first = block * BLOCK, end = first + BLOCK < o->in[0]->shape[0] ? first + BLOCK : o->in[0]->shape[0];
    sums[0] = sums[1] = 0;
    for (int64_t t = first; t < end; t++) {
        row_of_logits row = row_in(memory, o->in[0]->shape[1]);
        read_row(&row, o, r, t);
        sums[0] += dot(row.p, load_of(o, r, o->in[2], t), row.count);
        sums[1] += row.lse * row.lse;
    }
}

void cpu_balance(const op *o, const run_context *r)
{
    int64_t blocks = blocks_of(o), width = ROWS_OF_LOGITS * o->in[0]->shape[1];
    double(*parts)[2] = tensor_at(o->scratch, r->arena), total[2] = {0};
    float *memory = (float *)(void *)(parts + blocks), *sums = tensor_at(o->out[0], r->arena);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(o->in[0]))) schedule(static)
    for (int64_t block = 0; block < blocks; block++)
        sum_block(parts[block], o, r, memory + omp_get_thread_num() * width, block);
    for (int64_t block = 0; block < blocks; block++)
        for (int i = 0; i < 2; i++)
            total[i] += parts[block][i];
    for (int i = 0; i < 2; i++)
        sums[i] = (float)(o->at.accumulate ? (double)sums[i] + total[i] : total[i]);
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */

CPU_SCRATCH(balance_grad, (int64_t)threads *(ROWS_OF_LOGITS + 1) * o->in[0]->shape[1] * (int64_t)sizeof(float))

static void row_gradient(const op *o, const run_context *r, float *memory, int64_t t)
{
    const tensor *logits = o->in[0], *addend = o->in[4];
    const op_balance *as = &o->at.balance;
    const step_scalars *scalars = tensor_at(o->in[2], r->arena);
    const row_loops *loops = isa_of(r)->rows[logits->type];
    row_of_logits row = row_in(memory, logits->shape[1]);
    float *d = memory + ROWS_OF_LOGITS * row.count, factor = scalars->loss_scale / scalars->batch_tokens;
    const float *load = load_of(o, r, o->in[3], t);
    read_row(&row, o, r, t);
    float mean = (float)dot(row.p, load, row.count), balances = factor * as->load;
    float z = factor * as->z * 2 * (float)row.lse;
    if (addend)
        loops->to_float(d, row_at(addend, r, t), row.count);
    else
        memset(d, 0, (size_t)row.count * sizeof *d);
    for (int64_t e = 0; e < row.count; e++)
        d[e] += balances * row.slope[e] * (load[e] - mean) + z * row.soft[e];
    loops->from_float(row_at(o->out[0], r, t), d, row.count);
}

void cpu_balance_grad(const op *o, const run_context *r)
{
    int64_t width = (ROWS_OF_LOGITS + 1) * o->in[0]->shape[1];
    float *memory = tensor_at(o->scratch, r->arena);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(o->in[0]))) schedule(static)
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        row_gradient(o, r, memory + omp_get_thread_num() * width, t);
}
