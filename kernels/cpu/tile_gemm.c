/* A product without a library: for types that oneDNN does not multiply on this processor (fp16; bf16 where there is no
 * hardware for it), for experts, and as the second opinion on all others. Blocks of C are divided among the threads;
 * along k in steps of BLOCK_K both operands are packed for the tiles. No bit depends on the number of threads, and none
 * of a row of C on how many rows there are. */
#include <omp.h>
#include <string.h>

#include "kernels/cpu/products.h"
#include "kernels/cpu/isa.h"

/* A panel of B stays in the first-level cache (16 KiB in bf16) along all rows of A; A, B and the block of C in the
 * second. */
enum { BLOCK_M = 192, BLOCK_N = 384, BLOCK_K = 128, PANEL = 64 };

typedef struct block_memory {
    char *a, *b; /* [BLOCK_M] by [BLOCK_K]; [BLOCK_K] by [PANEL] */
    float *c;    /* [BLOCK_M][BLOCK_N] */
} block_memory;

enum {
    A_BYTES = BLOCK_M * BLOCK_K * 4,
    B_BYTES = BLOCK_K * PANEL * 4,
    C_BYTES = BLOCK_M * BLOCK_N * 4,
    BLOCK_BYTES = A_BYTES + B_BYTES + C_BYTES,
};

int64_t tile_gemm_scratch(int threads)
{
    return (int64_t)(threads > 1 ? threads : 1) * BLOCK_BYTES;
}

/* Rows [i, i + rows) and columns [j, j + columns) of C. */
typedef struct block {
    int64_t i, j, rows, columns;
} block;

/* Writes c[rows, columns] fp32 to C, which may be narrower; adds bias and C's own values in fp32. */
static void write_block(const gemm_shape *s, const gemm_operands *p, const isa *set, float *c, block b)
{
    const row_loops *out = set->rows[s->c_type], *plain = set->rows[DTYPE_FP32];
    int bytes = dtype_bytes((dtype)s->c_type);
    float bias[BLOCK_N];
    if (p->bias)
        set->rows[s->type]->to_float(bias, (const char *)p->bias + b.j * dtype_bytes((dtype)s->type), b.columns);
    for (int64_t row = 0; row < b.rows; row++) {
        char *to = (char *)p->c + ((b.i + row) * s->c_row + b.j) * bytes;
        float *from = c + row * BLOCK_N;
        if (p->bias)
            plain->add(from, from, bias, b.columns);
        if (p->adds)
            out->accumulate(from, to, b.columns);
        out->from_float(to, from, b.columns);
    }
}

static void multiply_block(const gemm_shape *s, const gemm_operands *p, const isa *set, const block_memory *m, block c)
{
    const tile_loops *t = set->tiles[s->type];
    int64_t bytes = dtype_bytes((dtype)s->type);
    if (s->k == 0)
        memset(m->c, 0, C_BYTES);
    for (int64_t k = 0; k < s->k; k += BLOCK_K) {
        int64_t depth = gemm_least(s->k - k, BLOCK_K), a_row = BLOCK_K, a_step = t->pair;
        const char *a = (const char *)p->a + (c.i * s->a_row + k * s->a_column) * bytes;
        if (s->a_column == 1) {
            t->rows(m->a, BLOCK_K, a, s->a_row, c.rows, depth);
        } else { /* neighbours along m are adjacent, as in lanes */
            a_row = t->pair;
            a_step = BLOCK_M * t->pair;
            t->lanes(m->a, BLOCK_M, a, s->a_column, depth, c.rows);
        }
        for (int64_t n = 0; n < c.columns; n += PANEL) {
            int64_t width = gemm_least(c.columns - n, PANEL);
            const char *b = (const char *)p->b + (k * s->b_row + (c.j + n) * s->b_column) * bytes;
            if (s->b_column == 1)
                t->lanes(m->b, PANEL, b, s->b_row, depth, width);
            else
                t->lanes_transposed(m->b, PANEL, b, s->b_column, width, depth);
            t->product(m->c + n, BLOCK_N, m->a, a_row, a_step, m->b, PANEL, c.rows, (width + 15) / 16 * 16, depth,
                       k > 0);
        }
    }
    write_block(s, p, set, m->c, c);
}

/* How C is divided into blocks: `down` of `high` rows by `across` of `wide` columns. */
typedef struct division {
    int64_t high, wide, down, across;
} division;

static division divide(const gemm_shape *s)
{
    if (s->m < 1)
        return (division){0};
    int64_t high = gemm_part(s->m, BLOCK_M, 6), wide = gemm_part(s->n, BLOCK_N, 64);
    return (division){high, wide, (s->m + high - 1) / high, (s->n + wide - 1) / wide};
}

/* Blocks [first, first + count) of the products, numbered from the first product's on. */
static void multiply_some(const gemm_group *g, const isa *set, const block_memory *m, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < g->count && count > 0; i++) {
        gemm_shape s;
        gemm_operands operands;
        g->product(&s, &operands, g->of, i);
        division d = divide(&s);
        int64_t blocks = d.down * d.across;
        for (; first < blocks && count > 0; first++, count--) {
            int64_t row = first % d.down * d.high, column = first / d.down * d.wide;
            multiply_block(&s, &operands, set, m,
                           (block){row, column, gemm_least(s.m - row, d.high), gemm_least(s.n - column, d.wide)});
        }
        first -= blocks;
    }
}

void tile_gemm_run_group(const gemm_group *g, void *scratch, int threads, const isa *set)
{
    int64_t blocks = 0;
    for (int64_t i = 0; i < g->count; i++) {
        gemm_shape s;
        gemm_operands operands;
        g->product(&s, &operands, g->of, i);
        division d = divide(&s);
        blocks += d.down * d.across;
    }
#pragma omp parallel num_threads(threads)
    {
        char *own = (char *)scratch + (int64_t)omp_get_thread_num() * BLOCK_BYTES;
        block_memory m = {own, own + A_BYTES, (float *)(void *)(own + A_BYTES + B_BYTES)};
        int64_t mine = omp_get_thread_num(), all = omp_get_num_threads();
        int64_t first = blocks * mine / all, end = blocks * (mine + 1) / all;
        multiply_some(g, set, &m, first, end - first);
    }
}

typedef struct one_product {
    const gemm_shape *shape;
    const gemm_operands *operands;
} one_product;

static void the_one(gemm_shape *s, gemm_operands *operands, const void *of, int64_t i)
{
    (void)i;
    *s = *((const one_product *)of)->shape;
    *operands = *((const one_product *)of)->operands;
}

void tile_gemm_run(const gemm_shape *s, const gemm_operands *operands, const isa *set)
{
    const one_product one = {s, operands};
    tile_gemm_run_group(&(gemm_group){.count = 1, .product = the_one, .of = &one}, operands->scratch, s->threads, set);
}
