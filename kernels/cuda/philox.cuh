/* Philox 4x32-10 (Salmon et al., SC 2011): random numbers as a pure function of where they are used. */
#ifndef PHALANX_KERNELS_CUDA_PHILOX_CUH
#define PHALANX_KERNELS_CUDA_PHILOX_CUH

#include "kernels/cuda/device.cuh"

struct philox_block {
    uint32_t word[4];
};

DEVICE philox_block philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1)
{
    UNROLL for (int round = 0; round < 10; round++)
    {
        uint32_t high0 = multiply_high(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        uint32_t high1 = multiply_high(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

/* where in the training run a draw is used: see op dropout */
struct philox_place {
    uint64_t seed;
    uint32_t site;
    uint64_t step, sample;
};

/* V draws in [0, 1) for elements element.. of the sample: word element % 4 of the block with the counter (element / 4,
 * site, step, sample) and the key seed, its upper 24 bits. V is 1, or a multiple of 4 with `element` a multiple of 4. */
template <int V> DEVICE void philox_draws(float (&to)[V], const philox_place &at, uint64_t element)
{
    UNROLL for (int i = 0; i < V; i += 4)
    {
        philox_block block = philox((uint32_t)((element + (uint64_t)i) / 4), at.site, (uint32_t)at.step,
                                    (uint32_t)at.sample, (uint32_t)at.seed, (uint32_t)(at.seed >> 32));
        UNROLL for (int j = 0; j < 4 && j < V; j++)
        {
            uint32_t word = V == 1 ? block.word[element % 4] : block.word[j];
            to[i + j] = (float)(word >> 8) * 0x1p-24f;
        }
    }
}

#endif
