/* The table of one instruction set, included by the isa_*.c files, which define simd.h's choice of vectors, ISA_TABLE,
 * its name, and ISA_TARGET, the instructions beyond the baseline (only on x86-64). */
#ifdef ISA_TARGET
#include <immintrin.h>
#define ISA_PRAGMA_(...) _Pragma(#__VA_ARGS__)
#define ISA_PRAGMA(...)  ISA_PRAGMA_(__VA_ARGS__)
#ifdef __clang__
ISA_PRAGMA(clang attribute push(__attribute__((target(ISA_TARGET))), apply_to = function))
#else
ISA_PRAGMA(GCC target(ISA_TARGET))
#endif
#endif
#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tile.h"
#include "kernels/host_device.h"

#define INVERSE_ROOT_2_PI 0.398942280401432678f
#define GELU_TWICE        (2 * GELU_ROOT)

/* Accumulators that fit the registers beside the vectors of b and a broadcast: 24 of 32, 12 of 16. */
enum { TILE_ROWS = 6, TILE_VECTORS = LANES == 16 ? 4 : 2 };

/* ---- products in fp32, and in pairs of bf16 where the instruction is there ------------------------------------- */

#define E               float
#define P               1
#define NAME(f)         f##_fp32
#define STEP(acc, a, b) vf_fma(vf_set(*(a)), vf_load(b), acc)
#include "kernels/cpu/product_body.h"
#undef E
#undef P
#undef NAME
#undef STEP

#ifdef SIMD_BF16
INLINE vf bf16_step(vf acc, const uint16_t *a, const uint16_t *b)
{
    int pair;
    memcpy(&pair, a, sizeof pair);
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)_mm512_loadu_si512(b));
}

/* Two rows of bf16 side by side, to be stored as rows or with v in the even, next in the odd elements. */
INLINE vi bf16_pair(vf v, vf next)
{
    return (vi)_mm512_cvtne2ps_pbh(next, v);
}
INLINE void bf16_rows(uint16_t *p, uint16_t *below, vi pair)
{
    _mm256_storeu_si256((void *)p, _mm512_castsi512_si256(pair));
    _mm256_storeu_si256((void *)below, _mm512_extracti64x4_epi64(pair, 1));
}
INLINE void bf16_lanes(uint16_t *p, vi pair)
{
    const vi order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                      20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(order, pair));
}

/* 32 of each of two rows of bf16, element by element in turn */
INLINE void bf16_interleave(uint16_t *p, const uint16_t *row, const uint16_t *next)
{
    const vi low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                    36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const vi high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    vi a = _mm512_loadu_si512(row), b = _mm512_loadu_si512(next);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi16(a, low, b));
    _mm512_storeu_si512(p + 32, _mm512_permutex2var_epi16(a, high, b));
}

#define E               uint16_t
#define P               2
#define NAME(f)         f##_bf16
#define STEP(acc, a, b) bf16_step(acc, a, b)
#include "kernels/cpu/product_body.h"
#undef E
#undef P
#undef NAME
#undef STEP
#endif

/* ---- fp32 ------------------------------------------------------------------------------------------------------ */

#define E                        float
#define P                        1
#define PUT(p, v, n)             store_fp32(p, v, n)
#define PAIR                     vf
#define MAKE_PAIR(v, next)       ((void)(next), v)
#define PUT_ROWS(p, below, pair) ((void)(below), vf_store(p, pair))
#define PUT_LANES(p, pair)       vf_store(p, pair)
#define PRODUCT                  product_fp32

#define SIGMOID(x)     vf_sigmoid(x)
#define T              float
#define NAME(f)        f##_fp32_rows
#define LOAD(p, n)     load_fp32(p, n)
#define STORE(p, v, n) store_fp32(p, v, n)
#include "kernels/cpu/rows_body.h"
#include "kernels/cpu/tile_body.h"
#undef T
#undef NAME
#undef LOAD
#undef STORE

#undef SIGMOID
#define SIGMOID(x) vf_sigmoid_short(x)

/* ---- fp16: computed in fp32 ------------------------------------------------------------------------------------ */

#define T              uint16_t
#define NAME(f)        f##_fp16_rows
#define LOAD(p, n)     load_fp16(p, n)
#define STORE(p, v, n) store_fp16(p, v, n)
#include "kernels/cpu/rows_body.h"
#include "kernels/cpu/tile_body.h"
#undef NAME
#undef LOAD
#undef STORE

/* ---- bf16: tiles in bf16 where the processor can --------------------------------------------------------------- */

#ifdef SIMD_BF16
#undef E
#undef P
#undef PUT
#undef PAIR
#undef MAKE_PAIR
#undef PUT_ROWS
#undef PUT_LANES
#undef PRODUCT
#define E                        uint16_t
#define P                        2
#define PUT(p, v, n)             store_bf16(p, v, n)
#define PAIR                     vi
#define MAKE_PAIR(v, next)       bf16_pair(v, next)
#define PUT_ROWS(p, below, pair) bf16_rows(p, below, pair)
#define PUT_LANES(p, pair)       bf16_lanes(p, pair)
#define PRODUCT                  product_bf16
#define SAME_PAIRS
#endif
#define NAME(f)        f##_bf16_rows
#define LOAD(p, n)     load_bf16(p, n)
#define STORE(p, v, n) store_bf16(p, v, n)
#include "kernels/cpu/rows_body.h"
#include "kernels/cpu/tile_body.h"

/* Sum of squares in fp64: element i is added to sum i mod 16, the 16 sums are added in halves. A square of an fp32
 * number is exact in fp64, so that the result is the same for every instruction set. */
static double sum_squares(const float *x, int64_t n)
{
    double sums[16] = {0};
    int64_t whole = n - n % 16;
    for (int64_t i = 0; i < whole; i += 16)
        UNROLL for (int j = 0; j < 16; j++) sums[j] += (double)x[i + j] * (double)x[i + j];
    for (int64_t i = whole; i < n; i++)
        sums[i - whole] += (double)x[i] * (double)x[i];
    for (int half = 8; half; half /= 2)
        for (int j = 0; j < half; j++)
            sums[j] += sums[j + half];
    return sums[0];
}

/* Philox blocks at a time: the words of a block each in its own plane, so that a round over all blocks is vector
 * code. */
enum { ROUND_BLOCKS = 128, ROUND_ELEMENTS = ROUND_BLOCKS * ROUNDING_ELEMENTS };

static void round_draws(uint32_t draw[4][ROUND_BLOCKS], const rounding *r, uint64_t first, int blocks)
{
    for (int i = 0; i < blocks; i++) {
        draw[0][i] = (uint32_t)(first + (uint64_t)i);
        draw[1][i] = (uint32_t)r->stream;
        draw[2][i] = (uint32_t)r->step;
        draw[3][i] = (r->site & 0xffffu) | ((uint32_t)(r->stream >> 32) << 16);
    }
    uint32_t key[2] = {(uint32_t)r->seed, (uint32_t)(r->seed >> 32)};
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
#pragma omp simd
        for (int i = 0; i < blocks; i++)
            philox_round(&draw[0][i], &draw[1][i], &draw[2][i], &draw[3][i], key[0], key[1]);
        philox_next_key(key);
    }
}

static void round_some(uint16_t *to, const float *x, int64_t n, const rounding *r, uint64_t first)
{
    uint32_t draw[4][ROUND_BLOCKS], bits, both[ROUND_ELEMENTS / 2];
    uint16_t half[ROUND_ELEMENTS];
    for (int64_t done = 0; done < n;) {
        uint64_t element = first + (uint64_t)done, block = element / ROUNDING_ELEMENTS;
        int64_t skip = (int64_t)(element % ROUNDING_ELEMENTS), take = ROUND_ELEMENTS - skip;
        take = take < n - done ? take : n - done;
        int blocks = (int)((skip + take + ROUNDING_ELEMENTS - 1) / ROUNDING_ELEMENTS);
        round_draws(draw, r, block, blocks);
        for (int i = 0; i < 4 * blocks; i++)
            both[i] = draw[i % 4][i / 4];
        for (int i = 0; i < ROUNDING_ELEMENTS * blocks; i++)
            half[i] = (uint16_t)(both[i / 2] >> (16 * (i % 2)));
        for (int64_t i = 0; i < take; i++) {
            memcpy(&bits, x + done + i, sizeof bits);
            to[done + i] = rounding_bf16(bits, half[skip + i]);
        }
        done += take;
    }
}

const isa ISA_TABLE = {
    .name = ISA_NAME,
    .lanes = LANES,
    .rows = {[DTYPE_FP32] = &loops_fp32_rows, [DTYPE_BF16] = &loops_bf16_rows, [DTYPE_FP16] = &loops_fp16_rows},
    .tiles = {[DTYPE_FP32] = &tiles_fp32_rows, [DTYPE_BF16] = &tiles_bf16_rows, [DTYPE_FP16] = &tiles_fp16_rows},
    .sum_squares = sum_squares,
    .round = round_some,
};

#if defined ISA_TARGET && defined __clang__
#pragma clang attribute pop
#endif
