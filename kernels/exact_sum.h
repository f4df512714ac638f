/* A sum of doubles that does not depend on order or grouping: a fixed-point superaccumulator.
 *
 * The sum is held as int64 limbs of 32 bits of weight each, limb i counting units of 2^(32 i - SUM_LOWEST); integer
 * additions are exact and associative, so partial sums made by different ranks, threads and in any order, added limb by
 * limb, give the same bits. The limbs belong to the caller (the tensor `bins`). 2^30 values fit before a limb could
 * overflow. Bits below 2^-SUM_LOWEST are dropped, value by value, so that the sum is still independent of order.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/host_device.h"

enum {
    SUM_LOWEST = 512,                              /* 2^-512: the square of no fp32 number is smaller (2^-298) */
    SUM_LIMBS = (1024 + SUM_LOWEST + 31) / 32 + 1, /* up to the largest double, with a limb of headroom */
    SUM_NOT_FINITE = SUM_LIMBS,                    /* this bin counts the values that were infinite or NaN */
    SUM_BINS = SUM_LIMBS + 1,
};

/* |value| as three digits of 32 bits, the lowest first; returns the limb that the lowest belongs to, or SUM_NOT_FINITE.
 * value = sign mantissa 2^(exponent - 1075), mantissa of 53 bits: bit 0 is at place exponent - 1075 + SUM_LOWEST of the
 * accumulator, in limb place / 32. Shifted by place mod 32 it covers at most three limbs. Host and device share it. */
HOST_DEVICE_INLINE int exact_sum_digits(uint64_t digit[3], double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t mantissa = bits & 0xfffffffffffff;
    if (exponent == 0x7ff)
        return SUM_NOT_FINITE;
    if (exponent)
        mantissa |= (uint64_t)1 << 52;
    else
        exponent = 1;
    int place = exponent - 1075 + SUM_LOWEST;
    if (place < 0) {
        mantissa = place > -64 ? mantissa >> -place : 0;
        place = 0;
    }
    int shift = place % 32;
    uint64_t low = mantissa << shift;
    digit[0] = low & 0xffffffff;
    digit[1] = low >> 32;
    digit[2] = shift ? mantissa >> (64 - shift) : 0;
    return place / 32;
}

/* bins += value */
void exact_sum_add(int64_t *bins, double value);
/* bins += other, both int64[SUM_BINS], as an all-reduce of int64 adds them */
void exact_sum_merge(int64_t *bins, const int64_t *other);
/* The sum, correctly rounded to within one unit in the last place; NaN if any value was not finite. */
double exact_sum_value(const int64_t *bins);
