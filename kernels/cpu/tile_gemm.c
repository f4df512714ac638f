/* A product without a library: for types that oneDNN does not multiply on this processor (fp16; bf16 where there is no
 * hardware for it), and as the second opinion on those that it does. Blocks of C [BLOCK_M, BLOCK_N] are divided among the
 * threads; along k in steps of BLOCK_K both operands are packed for the tiles, C's block collects in fp32. */
#include <omp.h>
#include <string.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa.h"

enum { BLOCK_M = 96, BLOCK_N = 256, BLOCK_K = 256 };

typedef struct block_memory {
    float *c;    /* [BLOCK_M][BLOCK_N] */
    char *a, *b; /* rows [BLOCK_M][BLOCK_K], lanes [BLOCK_K][BLOCK_N] */
} block_memory;

enum { BLOCK_BYTES = (BLOCK_M * BLOCK_N + BLOCK_M * BLOCK_K + BLOCK_K * BLOCK_N) * 4 };

int64_t tile_gemm_scratch(int threads)
{
    return (int64_t)(threads > 1 ? threads : 1) * BLOCK_BYTES;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* c[rows, columns] fp32 to C, which may be narrower: bias and what C holds are added in fp32 */
static void put_block(const gemm_shape *s, const gemm_operands *p, bool add, const isa *set, float *c, int64_t i,
                      int64_t j, int64_t rows, int64_t columns)
{
    const row_loops *out = set->rows[s->c_type], *plain = set->rows[DTYPE_FP32];
    int bytes = dtype_bytes((dtype)s->c_type);
    float bias[BLOCK_N];
    if (p->bias)
        set->rows[s->type]->to_float(bias, (const char *)p->bias + j * dtype_bytes((dtype)s->type), columns);
    for (int64_t row = 0; row < rows; row++) {
        char *to = (char *)p->c + ((i + row) * s->c_row + j) * bytes;
        float *from = c + row * BLOCK_N;
        if (p->bias)
            plain->add(from, from, bias, columns);
        if (add)
            out->accumulate(from, to, columns);
        out->from_float(to, from, columns);
    }
}

static void one_block(const gemm_shape *s, const gemm_operands *p, bool add, const isa *set, const block_memory *m,
                      int64_t i, int64_t j)
{
    const tile_loops *t = set->tiles[s->type];
    int64_t rows = least(s->m - i, BLOCK_M), columns = least(s->n - j, BLOCK_N), bytes = dtype_bytes((dtype)s->type);
    for (int64_t k = 0; k < s->k; k += BLOCK_K) {
        int64_t depth = least(s->k - k, BLOCK_K);
        const char *a = (const char *)p->a + (i * s->a_row + k * s->a_column) * bytes;
        const char *b = (const char *)p->b + (k * s->b_row + j * s->b_column) * bytes;
        if (s->a_column == 1)
            t->rows(m->a, BLOCK_K, a, s->a_row, rows, depth);
        else
            t->rows_transposed(m->a, BLOCK_K, a, s->a_column, depth, rows);
        if (s->b_column == 1)
            t->lanes(m->b, BLOCK_N, b, s->b_row, depth, columns);
        else
            t->lanes_transposed(m->b, BLOCK_N, b, s->b_column, columns, depth);
        t->product(m->c, BLOCK_N, m->a, BLOCK_K, m->b, BLOCK_N, rows, (columns + 15) / 16 * 16, depth, k > 0);
    }
    put_block(s, p, add, set, m->c, i, j, rows, columns);
}

void tile_gemm_run(const gemm_shape *s, const gemm_operands *operands, bool add, const isa *set)
{
    int64_t down = (s->m + BLOCK_M - 1) / BLOCK_M, across = (s->n + BLOCK_N - 1) / BLOCK_N;
#pragma omp parallel num_threads(s->threads)
    {
        char *own = (char *)operands->scratch + (int64_t)omp_get_thread_num() * BLOCK_BYTES;
        block_memory m = {(float *)(void *)own, own + BLOCK_M * BLOCK_N * 4,
                          own + (BLOCK_M * BLOCK_N + BLOCK_M * BLOCK_K) * 4};
#pragma omp for schedule(static)
        for (int64_t block = 0; block < down * across; block++)
            one_block(s, operands, add, set, &m, block % down * BLOCK_M, block / down * BLOCK_N);
    }
}
