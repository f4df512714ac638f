/* Products of small tiles in the first-level caches, the heart of attention and of the product that needs no library.
 *
 *   C[m, n] fp32 (+)= A[m, k] B[k, n]
 *
 * in the compute type E of the instruction set: fp32, or bf16 where there are bf16 dot products, which take two
 * neighbours along k at once. With P = 1 or 2 of those:
 *
 *   "rows" A: row-major [m][lda], k padded with zeros to a multiple of P; read by broadcast, from element
 *   a + row a_row + step a_step: (a_row, a_step) = (lda, P), or (P, ldb P) for an A in the layout of lanes
 *   "lanes" B: [k / P][ldb][P], n padded with zeros to a multiple of the vector's lanes; read as vectors
 *   C: row-major [m][ldc] fp32, n padded likewise
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Attention works on tiles of queries by keys; the lanes of a vector are queries. Multiples of every vector's lanes. */
enum { TILE_QUERIES = 64, TILE_KEYS = 64 };

/* Which keys a query sees, as fp32 (exact below 2^24): low <= key <= high. */
typedef struct tile_mask {
    const float *low, *high; /* [TILE_QUERIES] */
    float first_key;         /* the tile's first key */
    bool partial;            /* some pair of the tile is masked */
} tile_mask;

typedef struct tile_loops {
    int bytes; /* bytes of an E */
    int pair;  /* P */
    /* pack row-major x of T: x[m, k] to rows; x[k, m]^T to rows; x[k, n] to lanes; x[n, k]^T to lanes */
    void (*rows)(void *a, int64_t lda, const void *x, int64_t pitch, int64_t m, int64_t k);
    void (*rows_transposed)(void *a, int64_t lda, const void *x, int64_t pitch, int64_t k, int64_t m);
    void (*lanes)(void *b, int64_t ldb, const void *x, int64_t pitch, int64_t k, int64_t n);
    void (*lanes_transposed)(void *b, int64_t ldb, const void *x, int64_t pitch, int64_t n, int64_t k);
    void (*product)(float *c, int64_t ldc, const void *a, int64_t a_row, int64_t a_step, const void *b, int64_t ldb,
                    int64_t m, int64_t n, int64_t k, bool accumulate);
    /* s[keys][TILE_QUERIES] = tanh(s factor): the scores' soft cap, before the mask */
    void (*cap)(float *s, int64_t keys, float factor);
    /* The same, and dp = (dp - delta) (1 - s^2), of which softmax_grad with a delta of 0 makes ds. */
    void (*cap_grad)(float *s, float *dp, const float *delta, int64_t keys, float factor);
    /* One step of the online softmax, to base 2 (scale holds log2 e), on scores s[keys][TILE_QUERIES]: p lanes = 2^(s
     * scale - top), top and sum updated, fade = the factor of older sums. Returns whether any fade < 1. */
    bool (*softmax)(void *p, float *s, float *top, float *sum, float *fade, const tile_mask *mask, int64_t keys,
                    float scale);
    /* c[m, TILE_QUERIES] *= fade, lane by lane */
    void (*fade)(float *c, const float *fade, int64_t m);
    /* p = 2^(s scale - lse); ds = p (dp - delta) grad_scale. p and ds as rows [keys, even][TILE_QUERIES], ds as lanes
     * too. */
    void (*softmax_grad)(void *p, void *ds, void *ds_lanes, const float *s, const float *dp, const float *lse,
                         const float *delta, const tile_mask *mask, int64_t keys, float scale, float grad_scale);
    /* y[n, m] T, row-major = the transpose of c[m, n], column j multiplied by factor[j] */
    void (*transposed_out)(void *y, int64_t pitch, const float *c, int64_t ldc, const float *factor, int64_t m,
                           int64_t n);
    float (*dot)(const void *a, const void *b, int64_t n); /* T */
} tile_loops;
