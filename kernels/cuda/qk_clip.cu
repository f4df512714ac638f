/* QK-clip: the largest scores of attention's heads, and the factors of weights' rows that follow from them.
 */
#include "kernels/cuda/vector.cuh"

#include "kernels/heads.h"

static constexpr int THREADS = 256, WARPS = THREADS / WARP;

/* y[row] = the largest of y[row], where it accumulates, and x[row, columns]; grid (rows) */
KERNEL(THREADS, 4) largest_of_row(float *y, const float *x, int64_t columns, int64_t pitch, bool accumulate)
{
    SHARED(float, part, WARPS);
    float most = -INFINITY;
    for (int64_t column = threadIdx.x; column < columns; column += THREADS)
        most = fmaxf(most, x[blockIdx.x * pitch + column]);
    most = warp_largest(most);
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = most;
    block_barrier();
    if (threadIdx.x)
        return;
    for (int k = 1; k < WARPS; k++)
        most = fmaxf(most, part[k]);
    y[blockIdx.x] = accumulate ? fmaxf(y[blockIdx.x], most) : most;
}

/* A warp a block of rows; grid (blocks of WARPS of them), the last of which are rows that no head has. */
KERNEL(THREADS, 4) factors_of_rows(float *factors, int64_t rows, launch_qk_factors of)
{
    int lane = (int)threadIdx.x % WARP;
    int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / WARP) * of.size;
    bool whole;
    int32_t head = heads_of_clipped_row(&whole, first, of.heads, of.blocks, of.size, of.whole);
    float most = 0;
    for (int64_t row = of.layer + lane * of.layers; head >= 0 && row < of.peak_rows; row += WARP * of.layers)
        most = fmaxf(most, of.peaks[row * of.heads + head]);
    most = warp_largest(most);
    float gamma = most > of.threshold && most < INFINITY ? of.threshold / most : 1.0f;
    for (int64_t row = first + lane; row < first + of.size && row < rows; row += WARP) {
        heads_of_clipped_row(&whole, row, of.heads, of.blocks, of.size, of.whole);
        factors[row] = whole ? gamma : sqrtf(gamma);
    }
}

int launch_largest(void *stream, float *y, launch_matrix x, launch_extent of, bool accumulate)
{
    if (of.rows == 0)
        return 0;
    auto kernel = largest_of_row;
    LAUNCH(kernel, (unsigned)of.rows, THREADS, 0, (cudaStream_t)stream, y, (const float *)x.at, of.columns, x.pitch,
           accumulate);
    return launch_result();
}

int launch_qk_clip(void *stream, float *factors, int64_t rows, const launch_qk_factors *of)
{
    auto kernel = factors_of_rows;
    LAUNCH(kernel, blocks_for(divide_up(rows, of->size), WARPS), THREADS, 0, (cudaStream_t)stream, factors, rows, *of);
    return launch_result();
}
