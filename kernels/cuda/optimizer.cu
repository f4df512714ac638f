/* The optimizer's reductions over all gradients: the exact sum of squares, and the clipping factor. The rules of the
 * update are in update.cu. */
#include "kernels/cuda/vector.cuh"

#include "kernels/exact_sum.h"

static constexpr int THREADS = 256, V = 4;

/* Shapes of the sum of squares: eight blocks a multiprocessor of an H100, and the pieces of a vector. */
static constexpr int SQUARE_WARPS = THREADS / WARP, SQUARE_BLOCKS = 8 * 132, SQUARE_ROW = 64;

/* bins += value (>= 0), digit by digit; integer additions commute, so their order does not matter. */
DEVICE void exact_add(int64_t *bins, double value)
{
    uint64_t digit[3];
    int limb = exact_sum_digits(digit, value);
    if (limb == SUM_NOT_FINITE) {
        bins[SUM_NOT_FINITE]++;
        return;
    }
    for (int i = 0; i < 3; i++)
        bins[limb + i] += (int64_t)digit[i];
}

/* A warp sums a row's squares in fp64, in an order that `columns` and W decide, then adds to its own bins. A block's
 * bins are added to the others' once, by atomics on integers. */
template <int W>
KERNEL(THREADS, 4)
sum_of_squares(int64_t *bins, const float *gradient, int64_t rows, int64_t columns, int64_t pitch)
{
    SHARED(int64_t, held, SQUARE_WARPS * SUM_BINS);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t *mine = held + warp * SUM_BINS;
    for (int i = lane; i < SUM_BINS; i += WARP)
        mine[i] = 0;
    warp_barrier();
    for (int64_t row = (int64_t)blockIdx.x * SQUARE_WARPS + warp; row < rows;
         row += (int64_t)gridDim.x * SQUARE_WARPS) {
        double sum = 0;
        for (int64_t column = (int64_t)lane * W; column < columns; column += WARP * W) {
            float g[W];
            load(g, gradient + row * pitch + column);
            UNROLL for (int i = 0; i < W; i++) sum += (double)g[i] * (double)g[i];
        }
        sum = warp_sum(sum);
        if (lane == 0)
            exact_add(mine, sum);
    }
    block_barrier();
    for (int i = (int)threadIdx.x; i < SUM_BINS; i += THREADS) {
        int64_t all = 0;
        for (int k = 0; k < SQUARE_WARPS; k++)
            all += held[k * SUM_BINS + i];
        if (all)
            atomic_add(reinterpret_cast<unsigned long long *>(bins) + i, (unsigned long long)all);
    }
}

/* Returns the sum in the bins, with carries; NaN if a value was not finite. `limb` is working memory. */
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

KERNEL(WARP, 1) clip_control(float *control, const int64_t *bins, const step_scalars *scalars)
{
    SHARED(int64_t, limb, SUM_LIMBS);
    if (threadIdx.x)
        return;
    double scale = scalars->loss_scale, norm = sqrt(exact_value(limb, bins)) / scale, limit = scalars->clip;
    bool finite = (float)norm - (float)norm == 0.0f;
    double factor = (limit > 0 && norm > limit ? limit / norm : 1.0) / scale;
    control[CONTROL_NORM] = (float)norm;
    control[CONTROL_FACTOR] = finite ? (float)factor : 0.0f;
    control[CONTROL_SKIP] = finite ? 0.0f : 1.0f;
}

static int add_squares(const op *o, const run_context *r)
{
    const tensor *g = o->in[0];
    int64_t rows = g->shape[0], columns = columns_of(g), pitch = g->pitch, *bins = data<int64_t>(o->out[0], r);
    int failed = o->at.accumulate ? 0 : launch_zero(r->stream, bins, SUM_BINS * (int64_t)sizeof *bins);
    if (failed || rows == 0)
        return failed;
    if (columns == 1 && pitch == 1) { /* a vector: in rows for several warps, or as one */
        columns = pitch = rows % SQUARE_ROW ? rows : SQUARE_ROW;
        rows /= columns;
    }
    int64_t blocks = divide_up(rows, SQUARE_WARPS);
    bool wide = columns % V == 0 && pitch % V == 0 && aligned(data(g, r), 16);
    auto kernel = wide ? sum_of_squares<V> : sum_of_squares<1>;
    return launch(kernel, (unsigned)(blocks < SQUARE_BLOCKS ? blocks : SQUARE_BLOCKS), THREADS, 0, r->stream, bins,
                  data<const float>(g, r), rows, columns, pitch);
}

CUDA_OP(sum_squares, cuda_launched(o, add_squares(o, r)))

void cuda_clip(const op *o, const run_context *r)
{
    cuda_launched(o, launch(clip_control, 1, WARP, 0, r->stream, data<float>(o->out[0], r),
                            data<const int64_t>(o->in[0], r), data<const step_scalars>(o->in[1], r)));
}
