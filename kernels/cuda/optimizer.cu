/* What the optimizer does to all gradients together: the exact sum of squares, and the clipping factor. The rules of the
 * update are in update.cu.
 */
#include "kernels/cuda/vector.cuh"

#include "kernels/cuda/scalars.h"
#include "kernels/exact_sum.h"

static constexpr int THREADS = 256, MOST_BLOCKS = 1 << 16;

DEVICE double block_sum_double(double x)
{
    SHARED(double, part, WARP);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2) x += warp_xor(x, mask);
    block_barrier(); /* the last sum's readers are done */
    if (lane == 0)
        part[warp] = x;
    block_barrier();
    x = 0;
    for (int k = 0; k < warps; k++)
        x += part[k];
    return x;
}

/* bins += value (>= 0), digit by digit of 32 bits; integer additions commute, so no order shows. See exact_sum.h. */
DEVICE void exact_add(int64_t *bins, double value)
{
    unsigned long long *to = reinterpret_cast<unsigned long long *>(bins);
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t mantissa = bits & 0xfffffffffffffull;
    if (exponent == 0x7ff) {
        atomic_add(to + SUM_NOT_FINITE, 1);
        return;
    }
    if (exponent)
        mantissa |= 1ull << 52;
    else
        exponent = 1;
    int place = exponent - 1075 + SUM_LOWEST; /* value = mantissa 2^(place - SUM_LOWEST) */
    if (place < 0) {
        mantissa = place > -64 ? mantissa >> -place : 0;
        place = 0;
    }
    int shift = place % 32;
    uint64_t low = mantissa << shift, high = shift ? mantissa >> (64 - shift) : 0;
    uint64_t digit[3] = {low & 0xffffffffu, low >> 32, high};
    for (int i = 0; i < 3; i++)
        if (digit[i])
            atomic_add(to + place / 32 + i, digit[i]);
}

/* a block a row (or several): the row's squares in fp64, in an order that `columns` decides, then into the bins */
KERNEL(THREADS, 4) sum_of_squares(int64_t *bins, const float *gradient, int64_t rows, int64_t columns, int64_t pitch)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        double sum = 0;
        for (int64_t column = threadIdx.x; column < columns; column += THREADS) {
            double g = gradient[row * pitch + column];
            sum += g * g;
        }
        sum = block_sum_double(sum);
        if (threadIdx.x == 0)
            exact_add(bins, sum);
    }
}

/* the sum in the bins, carried through; NaN if a value was not finite. `limb` is working memory. */
DEVICE double exact_value(int64_t *limb, const int64_t *bins)
{
    if (bins[SUM_NOT_FINITE])
        return NAN;
    int64_t carry = 0;
    int top = 0;
    for (int i = 0; i < SUM_LIMBS; i++) {
        int64_t all = bins[i] + carry;
        limb[i] = all & 0xffffffff;
        carry = all >> 32;
        top = limb[i] ? i : top;
    }
    double value = 0; /* the three highest digits hold 65 bits or more */
    for (int i = top; i >= 0 && i > top - 4; i--)
        value += ldexp((double)limb[i], 32 * i - SUM_LOWEST);
    return value;
}

KERNEL(WARP, 1) clip_control(float *control, const int64_t *bins, const scalars_device *scalars)
{
    SHARED(int64_t, limb, SUM_LIMBS);
    if (threadIdx.x)
        return;
    double scale = scalars->loss_scale, norm = sqrt(exact_value(limb, bins)) / scale, limit = scalars->clip;
    bool finite = (float)norm - (float)norm == 0.0f;
    double factor = (limit > 0 && norm > limit ? limit / norm : 1.0) / scale;
    control[SCALARS_NORM] = (float)norm;
    control[SCALARS_FACTOR] = finite ? (float)factor : 0.0f;
    control[SCALARS_SKIP] = finite ? 0.0f : 1.0f;
}

int launch_sum_squares(void *stream, int64_t *bins, const float *gradient, int64_t rows, int64_t columns, int64_t pitch,
                       bool accumulate)
{
    int failed = accumulate ? 0 : launch_zero(stream, bins, SUM_BINS * (int64_t)sizeof *bins);
    if (failed || rows == 0)
        return failed;
    auto kernel = sum_of_squares;
    LAUNCH(kernel, (unsigned)(rows < MOST_BLOCKS ? rows : MOST_BLOCKS), THREADS, 0, (cudaStream_t)stream, bins,
           gradient, rows, columns, pitch);
    return launch_result();
}

int launch_clip(void *stream, float *control, const int64_t *bins, const void *scalars)
{
    auto kernel = clip_control;
    LAUNCH(kernel, 1, WARP, 0, (cudaStream_t)stream, control, bins, (const scalars_device *)scalars);
    return launch_result();
}
