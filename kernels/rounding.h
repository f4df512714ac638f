/* Stochastic rounding of fp32 to bf16: up with the probability of the part that is cut off, so that the mean of many
 * roundings is the number itself. Rounding to nearest would lose every update below half a unit of bf16's eight bits.
 * Plain C that is also C++ and CUDA: host, device and tests share one definition.
 *
 * The random numbers are a function of (seed, step, site, Hugging Face name, element), as all are: no layout changes
 * them, and no state is saved. A Philox block serves eight elements: element e takes half e mod 2 of word e / 2 mod 4
 * of block e / 8 of the draws at (seed, site, step, sample = the name's stream).
 */
#pragma once

#include "kernels/host_device.h"
#include "kernels/philox.h"

/* Sites of philox_draws() that dropout and initial weights never use: operand k of an update is rounded at site + k. */
enum { ROUNDING_SITE = 0xff00, ROUNDING_SITE_MOMENTUM = 0xff08, ROUNDING_ELEMENTS = 8 };

typedef struct rounding {
    uint64_t seed, stream; /* philox_stream() of the name */
    int64_t step;
    uint32_t site;
} rounding;

HOST_DEVICE_INLINE void rounding_draws(uint32_t out[4], const rounding *r, uint64_t block)
{
    philox_draws(out, r->seed, r->site, (uint64_t)r->step, r->stream, block);
}

/* The 16 random bits of an element, from its block's draws. */
HOST_DEVICE_INLINE uint32_t rounding_bits(const uint32_t draws[4], uint64_t element)
{
    /* an index that is not a constant would put the draws into memory on a GPU */
    uint32_t low = element & 2 ? draws[1] : draws[0], high = element & 2 ? draws[3] : draws[2];
    return (element & 4 ? high : low) >> (16 * (element & 1)) & 0xffffu;
}

/* Rounds fp32, as its bits, to bf16; values that are not finite stay as they are. */
HOST_DEVICE_INLINE uint16_t rounding_bf16(uint32_t value, uint32_t random)
{
    uint32_t finite = (value & 0x7f800000u) != 0x7f800000u;
    uint32_t quiet = (value & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0; /* NaN */
    return (uint16_t)(((finite ? value + random : value) | quiet) >> 16);
}
