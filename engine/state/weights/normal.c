#include "engine/state/weights/normal.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/philox.h"

/* The site of philox_draws() that dropout never uses. */
enum { INITIAL_SITE = 0xffff, BATCH = 256 }; /* blocks at a time */

/* ln(x) for x in [2^-24, 1]: x = 2^e m with m in [sqrt(1/2), sqrt(2)), then the series of 2 artanh((m-1)/(m+1)) in the
 * first five terms (relative error below 1e-7). */
static inline float logarithm(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t shifted = bits - 0x3f3504f3u; /* bits of sqrt(1/2) */
    int32_t e = (int32_t)shifted >> 23;
    bits -= (uint32_t)e << 23;
    float m;
    memcpy(&m, &bits, 4);
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float series = 1.0f + z * (0.33333334f + z * (0.2f + z * (0.14285715f + z * 0.11111111f)));
    return (float)e * 0.69314718f + 2.0f * s * series;
}

/* sin and cos of 2 pi u, u in [0, 1), by the nearest quarter turn and Taylor series on [-pi/4, pi/4]. */
static inline void turn(float *sine, float *cosine, float u)
{
    float quarter = (float)(int32_t)(u * 4.0f + 0.5f);
    float a = (u - quarter * 0.25f) * 6.28318531f, z = a * a;
    float s = a * (1.0f - z * (0.16666667f - z * (8.3333333e-3f - z * (1.9841270e-4f - z * 2.7557319e-6f))));
    float c = 1.0f - z * (0.5f - z * (4.1666667e-2f - z * (1.3888889e-3f - z * 2.4801587e-5f)));
    int32_t q = (int32_t)quarter & 3;
    float swap_s = q & 1 ? c : s, swap_c = q & 1 ? s : c;
    *sine = q & 2 ? -swap_s : swap_s;
    *cosine = (q == 1 || q == 2) ? -swap_c : swap_c;
}

/* sqrt without errno, so that the loop below becomes vector code */
static inline float root(float x)
{
    return __builtin_sqrtf(x);
}

/* Draws of `count` Philox blocks, the words of a block each in its own plane. A round goes over all blocks before the
 * next does, which makes vector code of it. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void
draw_blocks(uint32_t draw[restrict 4][BATCH], uint64_t seed, uint64_t stream, uint64_t first, int count)
{
    for (int i = 0; i < count; i++) {
        uint64_t block = first + (uint64_t)i;
        draw[0][i] = (uint32_t)block;
        draw[1][i] = (uint32_t)stream;
        draw[2][i] = (uint32_t)(block >> 32);
        draw[3][i] = (INITIAL_SITE & 0xffffu) | ((uint32_t)(stream >> 32) << 16);
    }
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
#pragma omp simd
        for (int i = 0; i < count; i++)
            philox_round(&draw[0][i], &draw[1][i], &draw[2][i], &draw[3][i], key[0], key[1]);
        philox_next_key(key);
    }
}

/* out[4 i + k] = deviation times the normal of draw[k][i] (Box and Muller, 1958: two of two) */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void
normals(float *restrict out, uint32_t draw[restrict 4][BATCH], int count, float deviation)
{
    float normal[4][BATCH];
    for (int k = 0; k < 4; k += 2) {
#pragma omp simd
        for (int i = 0; i < count; i++) {
            float u = (float)((int32_t)(draw[k][i] >> 8) + 1) * 5.9604645e-8f; /* (0, 1] */
            float v = (float)(int32_t)(draw[k + 1][i] >> 8) * 5.9604645e-8f;
            float radius = root(-2.0f * logarithm(u)), s, c;
            turn(&s, &c, v);
            normal[k][i] = deviation * (radius * c);
            normal[k + 1][i] = deviation * (radius * s);
        }
    }
#pragma omp simd
    for (int i = 0; i < count; i++) {
        out[4 * i] = normal[0][i];
        out[4 * i + 1] = normal[1][i];
        out[4 * i + 2] = normal[2][i];
        out[4 * i + 3] = normal[3][i];
    }
}

void normal_fill(float *out, uint64_t seed, uint64_t stream, int64_t first, int64_t count, float deviation)
{
    uint32_t draw[4][BATCH];
    float batch[4 * BATCH];
    int64_t done = 0;
    while (done < count) {
        int64_t index = first + done, skip = index & 3, left = skip + count - done;
        int64_t blocks = left < 4 * BATCH ? (left + 3) / 4 : BATCH, take = 4 * blocks < left ? 4 * blocks : left;
        bool whole = skip == 0 && take == 4 * blocks;
        draw_blocks(draw, seed, stream, (uint64_t)(index >> 2), (int)blocks);
        normals(whole ? out + done : batch, draw, (int)blocks, deviation);
        if (!whole)
            memcpy(out + done, batch + skip, (size_t)(take - skip) * sizeof *out);
        done += take - skip;
    }
}
