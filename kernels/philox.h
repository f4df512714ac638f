/* Random numbers as a function of their purpose: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1,
 * 2, 3", 2011). No state: recompute, resume and every layout draw the same numbers. Plain C that is also C++ and CUDA,
 * so that host, device, initialiser and reference share one definition.
 *
 *   key     = seed (low word, high word)
 *   counter = (block, sample bits 0..31, step bits 0..31, site bits 0..15 | sample bits 32..47 << 16)
 *
 * Element i of a sample (or of a parameter, for the initialiser, where the sample is the parameter's number and the
 * step 0) is word i mod 4 of block i / 4, so that a sample may have 2^34 elements.
 */
#pragma once

#include <stdint.h>

#include "kernels/host_device.h"

enum { PHILOX_ROUNDS = 10 };

HOST_DEVICE_INLINE void philox_round(uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d, uint32_t k, uint32_t l)
{
    uint64_t first = (uint64_t)0xD2511F53u * *a, second = (uint64_t)0xCD9E8D57u * *c;
    *a = (uint32_t)(second >> 32) ^ *b ^ k;
    *c = (uint32_t)(first >> 32) ^ *d ^ l;
    *b = (uint32_t)second;
    *d = (uint32_t)first;
}

/* The key of the next round, in place. */
HOST_DEVICE_INLINE void philox_next_key(uint32_t key[2])
{
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
}

/* out[4] = the ten-round bijection of counter[4] under key[2] */
HOST_DEVICE_INLINE void philox_block(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t at[2] = {key[0], key[1]};
    for (int i = 0; i < 4; i++)
        out[i] = counter[i];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        philox_round(&out[0], &out[1], &out[2], &out[3], at[0], at[1]);
        philox_next_key(at);
    }
}

HOST_DEVICE_INLINE void philox_draws(uint32_t out[4], uint64_t seed, uint32_t site, uint64_t step, uint64_t sample,
                                     uint64_t block)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)sample, (uint32_t)step,
                                 (site & 0xffffu) | ((uint32_t)(sample >> 32) << 16)};
    philox_block(out, counter, key);
}

/* A number for a name (FNV-1a, 48 bits): the `sample` of draws for a parameter by Hugging Face's name. */
HOST_DEVICE_INLINE uint64_t philox_stream(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return (h ^ h >> 48) & 0xffffffffffffu;
}

/* A number in [0, 1): the upper 24 bits, exact in fp32. */
HOST_DEVICE_INLINE float philox_uniform(uint32_t draw)
{
    return (float)(draw >> 8) * 5.9604644775390625e-8f; /* 2^-24 */
}
