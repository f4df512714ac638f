/* Vectors of floats, one vocabulary for every instruction set. Included by the isa_*.c files only, after one of
 * SIMD_AVX512 (with SIMD_BF16 where the processor has bf16 dot products), SIMD_AVX2 or neither; the functions that use
 * it are compiled once a file and reached through the table of isa.h. `vf` holds LANES floats. Functions with `n` take
 * 1 <= n <= LANES elements; lanes beyond n read as 0 and are not written. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "memory/dtype.h"

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define LOG2_E 1.44269504088896341f
#define INLINE static inline __attribute__((always_inline, unused))

#if defined SIMD_AVX512 || defined SIMD_AVX2
/* ---- operations that AVX-512 and AVX2 name alike ----------------------------------------------------------------- */
#ifdef SIMD_AVX512
enum { LANES = 16 };
typedef __m512 vf;
typedef __m512i vi;
#define MM(name) _mm512_##name
#else
enum { LANES = 8 };
typedef __m256 vf;
typedef __m256i vi;
#define MM(name) _mm256_##name
#endif

INLINE vf vf_set(float x)
{
    return MM(set1_ps)(x);
}
INLINE vf vf_load(const float *p)
{
    return MM(loadu_ps)(p);
}
INLINE void vf_store(float *p, vf v)
{
    MM(storeu_ps)(p, v);
}
/* a b + c, rounded once */
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return MM(fmadd_ps)(a, b, c);
}
/* the larger; b where either is NaN */
INLINE vf vf_max(vf a, vf b)
{
    return MM(max_ps)(a, b);
}
INLINE vf vf_min(vf a, vf b)
{
    return MM(min_ps)(a, b);
}
INLINE vf vf_sqrt(vf a)
{
    return MM(sqrt_ps)(a);
}
#endif

#if defined SIMD_AVX512
/* ---- AVX-512 --------------------------------------------------------------------------------------------------- */
INLINE __mmask16 vf_first(int n)
{
    return (__mmask16)((1u << n) - 1);
}
INLINE vf load_fp32(const float *p, int n)
{
    return n == LANES ? vf_load(p) : _mm512_maskz_loadu_ps(vf_first(n), p);
}
INLINE void store_fp32(float *p, vf v, int n)
{
    if (n == LANES)
        vf_store(p, v);
    else
        _mm512_mask_storeu_ps(p, vf_first(n), v);
}
INLINE __m256i load_16(const void *p, int n)
{
    return n == LANES ? _mm256_loadu_si256(p) : _mm256_maskz_loadu_epi16(vf_first(n), p);
}
INLINE void store_16(void *p, __m256i v, int n)
{
    if (n == LANES)
        _mm256_storeu_si256(p, v);
    else
        _mm256_mask_storeu_epi16(p, vf_first(n), v);
}
INLINE vf load_bf16(const uint16_t *p, int n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16(p, n)), 16));
}
/* The upper halves, rounded to nearest even; NaN stays NaN. */
INLINE vi vf_round_bf16(vf v)
{
    vi bits = _mm512_castps_si512(v);
    vi odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    vi rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}
INLINE void store_bf16(uint16_t *p, vf v, int n)
{
#ifdef SIMD_BF16
    store_16(p, (__m256i)_mm512_cvtneps_pbh(v), n);
#else
    store_16(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(vf_round_bf16(v), 16)), n);
#endif
}
INLINE vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a 2^n for integral n */
INLINE vf vf_scale(vf a, vf n)
{
    return _mm512_scalef_ps(a, n);
}
/* v where low <= x <= high, else other */
INLINE vf vf_between(vf v, vf x, vf low, vf high, vf other)
{
    __mmask16 in = _mm512_cmp_ps_mask(x, low, _CMP_GE_OQ);
    return _mm512_mask_blend_ps(_mm512_mask_cmp_ps_mask(in, x, high, _CMP_LE_OQ), other, v);
}
/* 16 rows of 16 floats, in place */
INLINE void vf_transpose(vf *v)
{
    vf a[LANES];
    UNROLL for (int i = 0; i < 16; i += 4)
    {
        vf x = _mm512_unpacklo_ps(v[i], v[i + 1]), y = _mm512_unpacklo_ps(v[i + 2], v[i + 3]);
        vf z = _mm512_unpackhi_ps(v[i], v[i + 1]), w = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
        a[i] = _mm512_shuffle_ps(x, y, 0x44);
        a[i + 1] = _mm512_shuffle_ps(x, y, 0xee);
        a[i + 2] = _mm512_shuffle_ps(z, w, 0x44);
        a[i + 3] = _mm512_shuffle_ps(z, w, 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        vf x = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), y = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        vf z = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd), w = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
        v[i] = _mm512_shuffle_f32x4(x, y, 0x88);
        v[i + 4] = _mm512_shuffle_f32x4(z, w, 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(x, y, 0xdd);
        v[i + 12] = _mm512_shuffle_f32x4(z, w, 0xdd);
    }
}

#elif defined SIMD_AVX2
/* ---- AVX2 with FMA and F16C ------------------------------------------------------------------------------------ */
INLINE __m128i load_16(const void *p, int n)
{
    if (n == LANES)
        return _mm_loadu_si128(p);
    uint16_t part[LANES] = {0};
    memcpy(part, p, 2 * (size_t)n);
    return _mm_loadu_si128((const void *)part);
}
INLINE void store_16(void *p, __m128i v, int n)
{
    if (n == LANES) {
        _mm_storeu_si128(p, v);
        return;
    }
    uint16_t part[LANES];
    _mm_storeu_si128((void *)part, v);
    memcpy(p, part, 2 * (size_t)n);
}
INLINE vf load_bf16(const uint16_t *p, int n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(p, n)), 16));
}
INLINE void store_bf16(uint16_t *p, vf v, int n)
{
    vi bits = _mm256_castps_si256(v);
    vi odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    vi rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    vi quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    vf nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    vi upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan)), 16);
    store_16(p, _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1)), n);
}
INLINE vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a 2^n, in two halves, so that results below the normal range do not wrap */
INLINE vf vf_scale(vf a, vf n)
{
    vi whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
    vi one = _mm256_set1_epi32(127);
    a = _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, one), 23)));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, one), 23)));
}
INLINE vf vf_between(vf v, vf x, vf low, vf high, vf other)
{
    vf in = _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_GE_OQ), _mm256_cmp_ps(x, high, _CMP_LE_OQ));
    return _mm256_blendv_ps(other, v, in);
}

#else
/* ---- any x86-64 (or any other processor): vectors of four ------------------------------------------------------ */
enum { LANES = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

INLINE vf vf_set(float x)
{
    return (vf){x, x, x, x};
}
INLINE vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
INLINE vf load_bf16(const uint16_t *p, int n)
{
    vf v = {0};
    for (int i = 0; i < n; i++)
        v[i] = bf16_to_float(p[i]);
    return v;
}
INLINE vf load_fp16(const uint16_t *p, int n)
{
    vf v = {0};
    for (int i = 0; i < n; i++)
        v[i] = fp16_to_float(p[i]);
    return v;
}
INLINE void store_bf16(uint16_t *p, vf v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = float_to_bf16(v[i]);
}
INLINE void store_fp16(uint16_t *p, vf v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = float_to_fp16(v[i]);
}
/* rounded twice here: without the instruction the exact one is a slow call */
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
INLINE vf vf_max(vf a, vf b)
{
    vf v;
    for (int i = 0; i < LANES; i++)
        v[i] = a[i] > b[i] ? a[i] : b[i];
    return v;
}
INLINE vf vf_min(vf a, vf b)
{
    vf v;
    for (int i = 0; i < LANES; i++)
        v[i] = a[i] < b[i] ? a[i] : b[i];
    return v;
}
INLINE vf vf_sqrt(vf a)
{
    for (int i = 0; i < LANES; i++)
        a[i] = sqrtf(a[i]);
    return a;
}
/* rounds to nearest, by adding and taking away 1.5 2^23, for |a| < 2^22 */
INLINE vf vf_round(vf a)
{
    vf big = vf_set(0x1.8p23f);
    return (a + big) - big;
}
INLINE vf vf_scale(vf a, vf n)
{
    vi whole = __builtin_convertvector(n, vi), half = whole >> 1, rest = whole - half;
    return a * (vf)((half + 127) << 23) * (vf)((rest + 127) << 23);
}
INLINE vf vf_between(vf v, vf x, vf low, vf high, vf other)
{
    vi in = (x >= low) & (x <= high);
    return (vf)((in & (vi)v) | (~in & (vi)other));
}
#endif

/* ---- from the above -------------------------------------------------------------------------------------------- */

#if defined SIMD_AVX512 || defined SIMD_AVX2
INLINE vf load_fp16(const uint16_t *p, int n)
{
    return MM(cvtph_ps)(load_16(p, n));
}
INLINE void store_fp16(uint16_t *p, vf v, int n)
{
    store_16(p, MM(cvtps_ph)(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
}
#endif

#ifndef SIMD_AVX512
INLINE vf load_fp32(const float *p, int n)
{
    if (n == LANES)
        return vf_load(p);
    float part[LANES] = {0};
    memcpy(part, p, 4 * (size_t)n);
    return vf_load(part);
}
INLINE void store_fp32(float *p, vf v, int n)
{
    if (n == LANES) {
        vf_store(p, v);
        return;
    }
    float part[LANES];
    vf_store(part, v);
    memcpy(p, part, 4 * (size_t)n);
}
INLINE void vf_transpose(vf *v)
{
    float a[LANES][LANES], b[LANES][LANES];
    for (int i = 0; i < LANES; i++)
        vf_store(a[i], v[i]);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < LANES; j++)
            b[i][j] = a[j][i];
    for (int i = 0; i < LANES; i++)
        v[i] = vf_load(b[i]);
}
#endif

/* The lanes in a fixed order: halves are added until one is left. */
INLINE float vf_sum(vf v)
{
    float a[LANES];
    vf_store(a, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] += a[i + half];
    return a[0];
}

INLINE float vf_largest(vf v)
{
    float a[LANES], largest;
    vf_store(a, v);
    largest = a[0];
    for (int i = 1; i < LANES; i++)
        largest = a[i] > largest ? a[i] : largest;
    return largest;
}

INLINE float vf_smallest(vf v)
{
    return -vf_largest(vf_set(0) - v);
}

/* v in the first n lanes, x beyond */
INLINE vf vf_pad(vf v, float x, int n)
{
    if (n == LANES)
        return v;
    float a[LANES];
    vf_store(a, v);
    for (int i = n; i < LANES; i++)
        a[i] = x;
    return vf_load(a);
}

/* exp(x) = 2^n exp(r), n = round(x/ln 2), |r| <= ln 2/2, by a polynomial of degree 6 fitted to a relative error of
 * 5e-9; in all within 1.2e-7. Infinity above 89, 0 below -104, NaN for NaN. */
INLINE vf vf_exp(vf x)
{
    x = vf_min(vf_set(89.0f), vf_max(vf_set(-104.0f), x));
    vf n = vf_round(x * vf_set(1.44269504f));
    vf r = vf_fma(n, vf_set(-0.693359375f), x); /* ln 2 in two parts, the first exact in products with small n */
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_fma(vf_set(0.00137498708f), r, vf_set(0.0083720043f));
    p = vf_fma(p, r, vf_set(0.0416699116f));
    p = vf_fma(p, r, vf_set(0.166664883f));
    p = vf_fma(p, r, vf_set(0.499999853f));
    p = vf_fma(p, r * r, r);
    return vf_scale(p + vf_set(1.0f), n);
}

/* 2^x by a polynomial of degree 5 fitted to 1.5e-7; 0 below -150, for x up to 126. The shorter function, where x comes
 * from an fp32 sum of products with as large a rounding error, or the result is rounded to 16 bits. */
INLINE vf vf_exp2(vf x)
{
    x = vf_max(vf_set(-160.0f), x);
    vf n = vf_round(x), r = x - n;
    vf p = vf_fma(vf_set(0.00132217988f), r, vf_set(0.00967721786f));
    p = vf_fma(p, r, vf_set(0.0555095848f));
    p = vf_fma(p, r, vf_set(0.240221341f));
    p = vf_fma(p, r, vf_set(0.69314674f));
    return vf_scale(vf_fma(p, r, vf_set(1.0f)), n);
}

/* 1 / (1 + exp(-x)), in full precision or for a result of 16 bits */
INLINE vf vf_sigmoid(vf x)
{
    return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(vf_set(0.0f) - x));
}
INLINE vf vf_sigmoid_short(vf x)
{
    return vf_set(1.0f) / (vf_set(1.0f) + vf_exp2(vf_min(vf_set(126.0f), x * vf_set(-LOG2_E))));
}
/* Phi(x), the integral of the normal distribution up to x, which keeps its relative accuracy in the negative tail:
 * erfc(z) = t exp(P(t) - z^2), t = 1 / (1 + z / 2), for z >= 0; P is a least-squares fit of degree 9 at 200 Chebyshev
 * points of z in [0, 10], with an error of 5e-8. */
INLINE vf vf_normal_integral(vf x)
{
    static const float p[] = {0.144930214f,   -0.680827178f, 1.15673376f,  -0.696251898f, -0.0802804326f,
                              0.00126758655f, 0.0346027999f, 0.386640412f, 0.998632783f,  -1.265448f};
    vf size = vf_max(x, vf_set(0) - x), z = size * vf_set(0.70710678f);
    vf t = vf_set(1) / vf_fma(z, vf_set(0.5f), vf_set(1)), sum = vf_set(p[0]);
    for (int i = 1; i < 10; i++)
        sum = vf_fma(sum, t, vf_set(p[i]));
    vf tail = vf_set(0.5f) * t * vf_exp(vf_fma(vf_set(-0.5f) * size, size, sum));
    return vf_between(vf_set(1) - tail, x, vf_set(0), vf_set(INFINITY), tail);
}
/* tanh(x), to a relative error of 2e-7: (1 - e) / (1 + e), e = exp(-2 |x|), and where that cancels x + x^3 P(x^2), P a
 * least-squares fit of degree 4 at 400 Chebyshev points of x^2 in [0, 0.625^2], with an error of 1e-8. */
INLINE vf vf_tanh(vf x)
{
    static const float p[] = {-0.0056919856f, 0.0206262916f, -0.0537353195f, 0.13331382f, -0.333332807f};
    vf zero = vf_set(0), one = vf_set(1), e = vf_exp(vf_set(-2) * vf_max(x, zero - x)), square = x * x;
    vf sum = vf_set(p[0]), size = (one - e) / (one + e);
    for (int i = 1; i < 5; i++)
        sum = vf_fma(sum, square, vf_set(p[i]));
    vf large = vf_between(size, x, zero, vf_set(INFINITY), zero - size);
    return vf_between(vf_fma(x * square, sum, x), x, vf_set(-0.625f), vf_set(0.625f), large);
}
/* 1, 0 or -1 */
INLINE vf vf_sign(vf a)
{
    vf zero = vf_set(0);
    return vf_between(zero, a, zero, zero, vf_between(vf_set(1), a, zero, vf_set(INFINITY), vf_set(-1)));
}
