#include "kernels/exact_sum.h"

#include <math.h>
#include <string.h>

/* value = sign mantissa 2^(exponent - 1075), mantissa of 53 bits: bit 0 is at place exponent - 1075 + SUM_LOWEST of the
 * accumulator, in limb place / 32. Shifted by place mod 32 it covers at most three limbs. */
void exact_sum_add(int64_t *bins, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t mantissa = bits & 0xfffffffffffff;
    if (exponent == 0x7ff) {
        bins[SUM_NOT_FINITE]++;
        return;
    }
    if (exponent)
        mantissa |= 1ull << 52;
    else
        exponent = 1;
    int place = exponent - 1075 + SUM_LOWEST;
    if (place < 0) {
        mantissa = place > -64 ? mantissa >> -place : 0;
        place = 0;
    }
    int limb = place / 32, shift = place % 32;
    uint64_t low = mantissa << shift, high = shift ? mantissa >> (64 - shift) : 0;
    int64_t sign = bits >> 63 ? -1 : 1;
    bins[limb] += sign * (int64_t)(low & 0xffffffff);
    if (low >> 32)
        bins[limb + 1] += sign * (int64_t)(low >> 32);
    if (high)
        bins[limb + 2] += sign * (int64_t)high;
}

void exact_sum_merge(int64_t *bins, const int64_t *other)
{
    for (int i = 0; i < SUM_BINS; i++)
        bins[i] += other[i];
}

/* Carries are moved up so that every limb but the top is in [0, 2^32), a negative sum is negated first; then the
 * leading limbs are added from below: what is lost is beneath the last place. */
double exact_sum_value(const int64_t *bins)
{
    if (bins[SUM_NOT_FINITE])
        return NAN;
    int64_t limbs[SUM_LIMBS];
    memcpy(limbs, bins, sizeof limbs);
    double sign = 1;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i + 1 < SUM_LIMBS; i++) {
            int64_t carry = limbs[i] >> 32;
            limbs[i] &= 0xffffffff;
            limbs[i + 1] += carry;
        }
        if (limbs[SUM_LIMBS - 1] >= 0)
            break;
        sign = -1;
        for (int i = 0; i < SUM_LIMBS; i++)
            limbs[i] = -limbs[i];
    }
    int top = SUM_LIMBS - 1;
    while (top > 0 && !limbs[top])
        top--;
    double sum = 0;
    for (int i = top > 3 ? top - 3 : 0; i <= top; i++)
        sum += ldexp((double)limbs[i], 32 * i - SUM_LOWEST);
    return sign * sum;
}
