/* Products of experts, one for each; the offsets give their sizes when the op runs. */
#include "kernels/grouped.h"

#include <string.h>

#include "kernels/cpu/products.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"

/* Tells where AMX multiplies: its tiles take no bias. */
static bool by_amx(const op *o, const isa *set)
{
    return !grouped_of(o).bias && o->in[0]->type == DTYPE_BF16 && isa_has_bf16(set) && amx_gemm_usable();
}

CPU_SCRATCH(grouped, by_amx(o, isa_detect()) ? amx_gemm_scratch(threads) : tile_gemm_scratch(threads))

typedef struct grouped_run {
    grouped_product p;
    const int32_t *offsets;
    const run_context *r;
    bool adds; /* adds the product to the weight's gradient */
} grouped_run;

/* Describes the product of expert e's rows [first, first + count): operands row-major, `pitch` steps rows. A weight's
 * gradient without rows is zeros, or stays as it is. */
static void product_of_expert(gemm_shape *s, gemm_operands *operands, const void *of, int64_t e)
{
    const grouped_run *g = of;
    const grouped_product *p = &g->p;
    int64_t first = g->offsets[e], count = g->offsets[e + 1] - first;
    *s = (gemm_shape){.m = p->sums ? p->m : count,
                      .n = p->n,
                      .k = p->sums ? count : p->k,
                      .a_row = p->sums ? 1 : p->a->pitch,
                      .a_column = p->sums ? p->a->pitch : 1,
                      .b_row = p->b_transposed ? 1 : p->b->pitch,
                      .b_column = p->b_transposed ? p->b->pitch : 1,
                      .c_row = p->c->pitch,
                      .type = p->a->type,
                      .c_type = p->c->type,
                      .bias = p->bias != NULL,
                      .add = g->adds};
    if (g->adds && count == 0)
        s->m = 0;
    int64_t weight = e * (p->sums ? p->m : p->b_transposed ? p->n : p->k);
    const char *bias = p->bias ? tensor_at(p->bias, g->r->arena) : NULL;
    *operands = (gemm_operands){.c = row_at(p->c, g->r, p->sums ? weight : first),
                                .a = row_at(p->a, g->r, first),
                                .b = row_at(p->b, g->r, p->sums ? first : weight),
                                .bias = bias ? bias + e * p->n * dtype_bytes((dtype)p->a->type) : NULL,
                                .adds = g->adds};
}

static void multiply(const op *o, const run_context *r)
{
    grouped_run g = {.p = grouped_of(o), .r = r};
    g.offsets = tensor_at(g.p.offsets, r->arena);
    g.adds = g.p.sums && o->at.accumulate != OP_WRITES;
    const gemm_group all = {.count = g.p.experts, .product = product_of_expert, .of = &g};
    const isa *set = isa_of(r);
    int threads = r->threads > 1 ? r->threads : 1;
    if (by_amx(o, set))
        amx_gemm_run_group(&all, tensor_at(o->scratch, r->arena), threads);
    else
        tile_gemm_run_group(&all, tensor_at(o->scratch, r->arena), threads, set);
    if (g.p.sums)
        return;
    const tensor *c = g.p.c; /* rows that no expert has are cleared */
    int64_t first = g.offsets[g.p.experts];
    size_t bytes = (size_t)(c->shape[1] * dtype_bytes((dtype)c->type));
#pragma omp parallel for num_threads(parallel_threads(r, (c->shape[0] - first) * c->shape[1])) schedule(static)
    for (int64_t i = first; i < c->shape[0]; i++)
        memset(row_at(c, r, i), 0, bytes);
}

CPU_OP(grouped_linear, multiply(o, r))
CPU_OP(grouped_linear_grad_input, multiply(o, r))
CPU_OP(grouped_linear_grad_weight, multiply(o, r))

/* Columns are divided among threads, so that each sum is one thread's. */
void cpu_grouped_bias_grad(const op *o, const run_context *r)
{
    enum { COLUMNS = 64 };
    const tensor *dy = o->in[0];
    const int32_t *offsets = tensor_at(o->in[1], r->arena);
    const row_loops *loops = isa_of(r)->rows[dy->type];
    int64_t n = dy->shape[1], experts = o->in[1]->shape[0] - 1, parts = (n + COLUMNS - 1) / COLUMNS;
    int64_t bytes = dtype_bytes((dtype)dy->type);
    float *db = tensor_at(o->out[0], r->arena);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(dy))) schedule(static)
    for (int64_t i = 0; i < experts * parts; i++) {
        int64_t e = i / parts, j = i % parts * COLUMNS, count = offsets[e + 1] - offsets[e];
        int64_t columns = n - j < COLUMNS ? n - j : COLUMNS;
        loops->column_sums(db + e * n + j, row_at(dy, r, offsets[e]) + j * bytes, dy->pitch, count, columns,
                           o->at.accumulate);
    }
}
