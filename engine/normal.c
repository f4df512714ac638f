#include "engine/normal.h"

#include <string.h>

#include "kernels/philox.h"

/* The site of philox_draws() that dropout never uses. */
enum { INITIAL_SITE = 0xffff, BATCH = 1024 };

uint64_t normal_stream(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return (h ^ h >> 48) & 0xffffffffffffu;
}

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

/* count normals (a multiple of 4) from whole Philox blocks */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void
blocks(float *restrict out, uint64_t seed, uint64_t stream, uint64_t first_block, int count)
{
    uint32_t draw[4][BATCH / 4];
    const uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    const uint32_t last = (INITIAL_SITE & 0xffffu) | ((uint32_t)(stream >> 32) << 16);
    for (int i = 0; i < count; i++) {
        const uint32_t counter[4] = {(uint32_t)(first_block + (uint64_t)i), (uint32_t)stream,
                                     (uint32_t)((first_block + (uint64_t)i) >> 32), last};
        const uint32_t key[2] = {k0, k1};
        uint32_t four[4];
        philox_block(four, counter, key);
        for (int k = 0; k < 4; k++)
            draw[k][i] = four[k];
    }
    for (int pair = 0; pair < 2; pair++)
        for (int i = 0; i < count; i++) {
            float u = (float)((int32_t)(draw[2 * pair][i] >> 8) + 1) * 5.9604645e-8f; /* (0, 1] */
            float v = (float)(int32_t)(draw[2 * pair + 1][i] >> 8) * 5.9604645e-8f;
            float radius = root(-2.0f * logarithm(u)), s, c;
            turn(&s, &c, v);
            out[4 * i + 2 * pair] = radius * c;
            out[4 * i + 2 * pair + 1] = radius * s;
        }
}

void normal_fill(float *out, uint64_t seed, uint64_t stream, int64_t first, int64_t count, float deviation)
{
    float batch[BATCH];
    int64_t done = 0;
    while (done < count) {
        int64_t index = first + done, skip = index & 3, want = count - done;
        int64_t take = want < BATCH - skip ? want : BATCH - skip;
        blocks(batch, seed, stream, (uint64_t)(index >> 2), (int)((skip + take + 3) / 4));
        for (int64_t i = 0; i < take; i++)
            out[done + i] = deviation * batch[skip + i];
        done += take;
    }
}
