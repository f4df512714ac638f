#include "kernels/exact_sum.h"

#include <math.h>
#include <string.h>

void exact_sum_add(int64_t *bins, double value)
{
    uint64_t digit[3];
    int limb = exact_sum_digits(digit, value);
    if (limb == SUM_NOT_FINITE) {
        bins[SUM_NOT_FINITE]++;
        return;
    }
    int64_t sign = signbit(value) ? -1 : 1;
    for (int i = 0; i < 3; i++)
        bins[limb + i] += sign * (int64_t)digit[i];
}

void exact_sum_merge(int64_t *bins, const int64_t *other)
{
    for (int i = 0; i < SUM_BINS; i++)
        bins[i] += other[i];
}

/* Moves carries up so that every limb but the top is in [0, 2^32), after negating a negative sum; then adds the leading
 * limbs from below: the error is beneath the last place. */
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
