/* A tile register is 16 rows of 64 bytes: 16 by 16 of C in fp32, of A 16 rows of 32 neighbours along k, of B 16 pairs
 * of neighbours along k for 16 columns. Both operands are packed as they are loaded, tile after tile; a strip of B of
 * two tiles stays in the first-level cache along all rows of A, A in the second. Blocks of C are divided among the
 * threads. The processor decides how a step along k is added up, so bits differ from tile_gemm.c's; but no bit depends
 * on the number of threads, and no bit of a row of C on the number of rows. */
#include "kernels/cpu/products.h"

#if defined __x86_64__ && defined __linux__
#include <cpuid.h>
#include <immintrin.h>
#include <omp.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef __clang__
#pragma clang attribute push(                                                                                          \
    __attribute__((target("amx-tile,amx-bf16,xsave,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,f16c,avx2"))),    \
    apply_to = function)
#else
#pragma GCC target("amx-tile,amx-bf16,xsave,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,f16c,avx2")
#endif
#define SIMD_AVX512
#define SIMD_BF16
#include "kernels/cpu/simd.h"

/* Linux gives the state of tiles to a process that asks for it (arch/x86/include/uapi/asm/prctl.h). */
static bool permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d;
    const unsigned bf16 = 1u << 22, tile = 1u << 24, both = bf16 | tile, osxsave = 1u << 27;
    const unsigned long long state = 3ull << 17; /* their configuration and their data */
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & osxsave) || (_xgetbv(0) & state) != state)
        return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & both) != both)
        return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

bool amx_gemm_usable(void)
{
    static atomic_int known; /* 0: not asked yet, 1: no, 2: yes */
    if (!known)
        known = permitted() ? 2 : 1;
    return known == 2;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Sizes of a tile; two tiles are a strip's columns, and as many rows are computed at a time. */
enum { ROWS = 16, DEPTH = 32, TILE = ROWS * DEPTH, STRIP = 2 * ROWS, SQUARE = STRIP * STRIP };
/* Sizes of a block of C and of a step along k. C is kept where there are several steps, else a block may be wider. */
enum { HIGH = 512, KEPT_WIDE = 256, WIDE = 1024, DEEP = 1024 };

/* A thread's: A [HIGH / 16][DEEP / 32] tiles, a strip of B [DEEP / 32][2] tiles, C [KEPT_WIDE / 32][HIGH / 32] squares
 * of 32 by 32, one more square. */
typedef struct memory {
    uint16_t *a, *b;
    float *c, *square;
} memory;

enum {
    A_BYTES = HIGH * DEEP * 2,
    B_BYTES = STRIP * DEEP * 2,
    C_BYTES = HIGH * KEPT_WIDE * 4,
    ALIGNED = 64,
    BLOCK_BYTES = A_BYTES + B_BYTES + C_BYTES + SQUARE * 4 + ALIGNED,
};

int64_t amx_gemm_scratch(int threads)
{
    return (int64_t)(threads > 1 ? threads : 1) * BLOCK_BYTES;
}

static memory memory_of(char *scratch, int thread)
{
    char *a = scratch + (int64_t)thread * BLOCK_BYTES;
    a += (ALIGNED - (uintptr_t)a % ALIGNED) % ALIGNED;
    char *b = a + A_BYTES, *c = b + B_BYTES;
    return (memory){(uint16_t *)(void *)a, (uint16_t *)(void *)b, (float *)(void *)c, (float *)(void *)(c + C_BYTES)};
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* The first n of 32 lanes, or the lower 16 of these. */
static __mmask32 some32(int64_t n)
{
    return n >= 32 ? ~0u : n <= 0 ? 0 : (1u << n) - 1;
}

/* 16 rows of 32 neighbours, `pitch` elements apart; zeros beyond `rows` and `depth`. */
static inline __attribute__((always_inline)) void load_rows(vf v[ROWS], const uint16_t *x, int64_t pitch, int64_t rows,
                                                            int64_t depth)
{
    __mmask32 mask = some32(depth);
    UNROLL for (int i = 0; i < ROWS; i++) v[i] =
        _mm512_castsi512_ps(i < rows ? _mm512_maskz_loadu_epi16(mask, x + i * pitch) : _mm512_setzero_si512());
}

/* 16 pairs of rows, a pair's elements side by side, of 16 columns; zeros beyond `depth` rows and `columns`. */
static inline __attribute__((always_inline)) void load_pairs(vf v[ROWS], const uint16_t *x, int64_t pitch,
                                                             int64_t depth, int64_t columns)
{
    __mmask16 mask = (__mmask16)some32(columns);
    UNROLL for (int i = 0; i < ROWS; i++)
    {
        __m256i one = _mm256_setzero_si256(), other = one;
        if (2 * i < depth)
            one = _mm256_maskz_loadu_epi16(mask, x + 2 * i * pitch);
        if (2 * i + 1 < depth)
            other = _mm256_maskz_loadu_epi16(mask, x + (2 * i + 1) * pitch);
        v[i] = _mm512_castsi512_ps(
            _mm512_or_si512(_mm512_cvtepu16_epi32(one), _mm512_slli_epi32(_mm512_cvtepu16_epi32(other), 16)));
    }
}

static inline __attribute__((always_inline)) void store_tile(uint16_t *tile, const vf v[ROWS])
{
    UNROLL for (int i = 0; i < ROWS; i++) _mm512_store_ps((void *)(tile + i * DEPTH), v[i]);
}

/* A tile of A, [rows, depth] from a on. */
static void pack_a(uint16_t *tile, const uint16_t *a, const gemm_shape *s, int64_t rows, int64_t depth)
{
    vf v[ROWS];
    if (s->a_column == 1) {
        load_rows(v, a, s->a_row, rows, depth);
    } else {
        load_pairs(v, a, s->a_column, depth, rows);
        vf_transpose(v);
    }
    store_tile(tile, v);
}

/* A tile of B, [depth, columns] from b on. */
static void pack_b(uint16_t *tile, const uint16_t *b, const gemm_shape *s, int64_t depth, int64_t columns)
{
    vf v[ROWS];
    if (s->b_column == 1) {
        load_pairs(v, b, s->b_row, depth, columns);
    } else {
        load_rows(v, b, s->b_column, columns, depth);
        vf_transpose(v);
    }
    store_tile(tile, v);
}

/* ---- a square of C ----------------------------------------------------------------------------------------------- */

/* Eight tiles, by palette 1. Static, since the compiler need not see that it is read. */
#define EACH_TILE(x)                                                                                                   \
    {                                                                                                                  \
        x, x, x, x, x, x, x, x                                                                                         \
    }
static const struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tiles = {.palette = 1, .bytes = EACH_TILE(DEPTH * sizeof(uint16_t)), .rows = EACH_TILE(ROWS)};
#undef EACH_TILE

/* to[32, 32] = A B, and what `from`, if it is there, holds: `down` by `across` tiles of it, of `steps` tiles along k.
 * Of the registers 0 to 3 are C, 4 and 5 A, 6 and 7 B. */
static inline __attribute__((always_inline)) void square_of(float *to, const float *from, const uint16_t *a,
                                                            const uint16_t *b, int64_t steps, const int down,
                                                            const int across)
{
    const int64_t row = STRIP * sizeof(float), packed = DEPTH * sizeof(uint16_t), next = DEEP / DEPTH * TILE;
    const int corner = ROWS * STRIP;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (from) {
        _tile_loadd(0, from, row);
        _tile_loadd(1, from + ROWS, row);
        _tile_loadd(2, from + corner, row);
        _tile_loadd(3, from + corner + ROWS, row);
    }
    for (int64_t k = 0; k < steps; k++, a += TILE, b += 2 * TILE) {
        _tile_loadd(6, b, packed);
        _tile_loadd(4, a, packed);
        if (across == 2)
            _tile_loadd(7, b + TILE, packed);
        _tile_dpbf16ps(0, 4, 6);
        if (across == 2)
            _tile_dpbf16ps(1, 4, 7);
        if (down == 2) {
            _tile_loadd(5, a + next, packed);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (down == 2 && across == 2)
            _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, to, row);
    _tile_stored(1, to + ROWS, row);
    _tile_stored(2, to + corner, row);
    _tile_stored(3, to + corner + ROWS, row);
}

static void compute(float *to, const float *from, const uint16_t *a, const uint16_t *b, int64_t steps, bool two_down,
                    bool two_across)
{
    if (two_down && two_across)
        square_of(to, from, a, b, steps, 2, 2);
    else if (two_down)
        square_of(to, from, a, b, steps, 2, 1);
    else if (two_across)
        square_of(to, from, a, b, steps, 1, 2);
    else
        square_of(to, from, a, b, steps, 1, 1);
}

/* Writes the square's [rows, columns] to C from `to` on; if `adds`, adds C's values in fp32. */
static void write_square(void *to, const float *square, const gemm_shape *s, bool adds, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++, square += STRIP)
        for (int64_t j = 0; j < columns; j += ROWS) {
            __mmask16 mask = (__mmask16)some32(columns - j);
            __m512 v = _mm512_load_ps(square + j);
            if (s->c_type == DTYPE_FP32) {
                float *c = (float *)to + i * s->c_row + j;
                _mm512_mask_storeu_ps(c, mask, adds ? _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, c)) : v);
            } else {
                uint16_t *c = (uint16_t *)to + i * s->c_row + j;
                if (adds) {
                    __m512i held = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, c));
                    v = _mm512_add_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(held, 16)));
                }
                _mm256_mask_storeu_epi16(c, mask, (__m256i)_mm512_cvtneps_pbh(v));
            }
        }
}

/* ---- a block of C ------------------------------------------------------------------------------------------------ */

/* Rows [i, i + rows) and columns [j, j + columns) of C. */
typedef struct block {
    int64_t i, j, rows, columns;
} block;

static char *output_at(const gemm_shape *s, const gemm_operands *p, int64_t i, int64_t j)
{
    return (char *)p->c + (i * s->c_row + j) * dtype_bytes((dtype)s->c_type);
}

/* Prefetches the square's destination in C while it is computed. */
static void fetch_square(const char *c, const gemm_shape *s, int64_t rows)
{
    int64_t bytes = dtype_bytes((dtype)s->c_type);
    for (int64_t i = 0; i < rows; i++) {
        const char *row = c + i * s->c_row * bytes;
        _mm_prefetch(row, _MM_HINT_T0);
        _mm_prefetch(row + (STRIP - 1) * bytes, _MM_HINT_T0);
    }
}

/* Columns [j, j + columns) of the block, at most a strip's, of the step along k that ends at `end`. */
static void multiply_strip(const gemm_shape *s, const gemm_operands *p, const memory *m, const block *c, int64_t j,
                           int64_t k, int64_t depth)
{
    int64_t columns = gemm_least(c->columns - j, STRIP), steps = (depth + DEPTH - 1) / DEPTH;
    const uint16_t *b = (const uint16_t *)p->b + k * s->b_row + (c->j + j) * s->b_column;
    for (int64_t step = 0; step < steps; step++)
        for (int64_t side = 0; side * ROWS < columns; side++)
            pack_b(m->b + (2 * step + side) * TILE, b + step * DEPTH * s->b_row + side * ROWS * s->b_column, s,
                   depth - step * DEPTH, columns - side * ROWS);
    bool last = k + depth >= s->k;
    float *kept = m->c + j / STRIP * (HIGH / STRIP) * SQUARE;
    int64_t next = s->k > DEEP ? SQUARE : 0;
    for (int64_t i = 0; i < c->rows; i += STRIP, kept += next) {
        float *to = last ? m->square : kept;
        if (last)
            fetch_square(output_at(s, p, c->i + i, c->j + j), s, gemm_least(c->rows - i, STRIP));
        compute(to, k > 0 ? kept : NULL, m->a + i / ROWS * (DEEP / DEPTH) * TILE, m->b, steps, c->rows - i > ROWS,
                columns > ROWS);
        if (last)
            write_square(output_at(s, p, c->i + i, c->j + j), to, s, p->adds, gemm_least(c->rows - i, STRIP), columns);
    }
}

static void multiply_block(const gemm_shape *s, const gemm_operands *p, const memory *m, const block *c)
{
    int64_t k = 0;
    do {
        int64_t depth = gemm_least(s->k - k, DEEP);
        const uint16_t *a = (const uint16_t *)p->a + c->i * s->a_row + k * s->a_column;
        for (int64_t i = 0; i < c->rows; i += ROWS)
            for (int64_t step = 0; step < depth; step += DEPTH)
                pack_a(m->a + (i / ROWS * (DEEP / DEPTH) + step / DEPTH) * TILE, a + i * s->a_row + step * s->a_column,
                       s, c->rows - i, depth - step);
        for (int64_t j = 0; j < c->columns; j += STRIP)
            multiply_strip(s, p, m, c, j, k, depth);
        k += DEEP;
    } while (k < s->k);
}

/* ---- many products ----------------------------------------------------------------------------------------------- */

/* The work of a thread: the blocks that begin within its share of all elements of C times the depth. */
typedef struct block_range {
    double first, end;
    int64_t wide;
} block_range;

static double work_of(const gemm_shape *s)
{
    return (double)s->m * (double)s->n * (double)(s->k + 1);
}

static void multiply_range(const gemm_group *g, const memory *m, const block_range *mine)
{
    double done = 0;
    for (int64_t e = 0; e < g->count; e++) {
        gemm_shape s;
        gemm_operands p;
        g->product(&s, &p, g->of, e);
        double before = done, work = work_of(&s);
        done += work;
        if (work <= 0 || done <= mine->first || before >= mine->end)
            continue;
        int64_t high = gemm_part(s.m, HIGH, STRIP),
                wide = gemm_part(s.n, s.k > DEEP ? gemm_least(mine->wide, KEPT_WIDE) : mine->wide, STRIP), elements = 0;
        for (int64_t j = 0; j < s.n; j += wide)
            for (int64_t i = 0; i < s.m; i += high) {
                block c = {i, j, gemm_least(s.m - i, high), gemm_least(s.n - j, wide)};
                double at = before + (double)elements * (double)(s.k + 1);
                if (at >= mine->first && at < mine->end)
                    multiply_block(&s, &p, m, &c);
                elements += c.rows * c.columns;
            }
    }
}

/* Blocks so narrow that each thread has several. */
static int64_t width_for(const gemm_group *g, int threads)
{
    enum { SEVERAL = 4 };
    int64_t wide = 2 * WIDE, blocks = 0;
    while (blocks < (int64_t)SEVERAL * threads && wide > 2 * STRIP) {
        wide /= 2;
        blocks = 0;
        for (int64_t e = 0; e < g->count; e++) {
            gemm_shape s;
            gemm_operands p;
            g->product(&s, &p, g->of, e);
            if (s.m > 0)
                blocks += ((s.m + HIGH - 1) / HIGH) * ((s.n + wide - 1) / wide);
        }
    }
    return wide;
}

void amx_gemm_run_group(const gemm_group *g, void *scratch, int threads)
{
    int64_t wide = width_for(g, threads);
    double work = 0;
    for (int64_t e = 0; e < g->count; e++) {
        gemm_shape s;
        gemm_operands p;
        g->product(&s, &p, g->of, e);
        work += work_of(&s);
    }
#pragma omp parallel num_threads(threads)
    {
        int own = omp_get_thread_num(), all = omp_get_num_threads();
        memory m = memory_of(scratch, own);
        block_range mine = {work * own / all, work * (own + 1) / all, wide};
        _tile_loadconfig(&tiles);
        multiply_range(g, &m, &mine);
        _tile_release();
    }
}

#ifdef __clang__
#pragma clang attribute pop
#endif
#else

bool amx_gemm_usable(void)
{
    return false;
}

int64_t amx_gemm_scratch(int threads)
{
    (void)threads;
    return 0;
}

void amx_gemm_run_group(const gemm_group *g, void *scratch, int threads)
{
    (void)g, (void)scratch, (void)threads;
}
#endif
