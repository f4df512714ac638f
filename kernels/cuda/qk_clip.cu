/* QK-clip: the max logits of attention's heads, and the factors on weights' rows that follow from them. */
#include "kernels/cuda/vector.cuh"

#include "kernels/heads.h"

static constexpr int THREADS = 256, WARPS = THREADS / WARP;

/* y[row] = the maximum of x[row, columns], and of y[row] if it accumulates; grid (rows) */
KERNEL(THREADS, 4) max_logit_of_row(float *y, const float *x, int64_t columns, int64_t pitch, bool accumulate)
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

/* The attributes of the op qk_factors; peaks: the max logits, rows of `heads`, `layers` rows for each rank. */
struct launch_qk_factors {
    const float *max_logits;
    int64_t max_logit_rows, layers, layer;
    int32_t heads, blocks, size, whole;
    float threshold;
};

/* A warp handles a block of rows; grid (blocks of WARPS of them); the last are rows that no head has. */
KERNEL(THREADS, 4) factors_of_rows(float *factors, int64_t rows, launch_qk_factors of)
{
    int lane = (int)threadIdx.x % WARP;
    int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / WARP) * of.size;
    bool whole;
    int32_t head = heads_of_clipped_row(&whole, first, of.heads, of.blocks, of.size, of.whole);
    float most = 0;
    for (int64_t row = of.layer + lane * of.layers; head >= 0 && row < of.max_logit_rows; row += WARP * of.layers)
        most = fmaxf(most, of.max_logits[row * of.heads + head]);
    most = warp_largest(most);
    float gamma = most > of.threshold && most < INFINITY ? of.threshold / most : 1.0f;
    for (int64_t row = first + lane; row < first + of.size && row < rows; row += WARP) {
        heads_of_clipped_row(&whole, row, of.heads, of.blocks, of.size, of.whole);
        factors[row] = whole ? gamma : sqrtf(gamma);
    }
}

void cuda_max_logit(const op *o, const run_context *r)
{
    const tensor *x = o->in[0];
    const int64_t rows = o->out[0]->shape[0], columns = x->shape[x->dims == 2];
    auto kernel = max_logit_of_row;
    if (rows > 0)
        LAUNCH(kernel, (unsigned)rows, THREADS, 0, (cudaStream_t)r->stream, data<float>(o->out[0], r),
               data<const float>(x, r), columns, x->dims == 2 ? x->pitch : columns, o->at.accumulate != OP_WRITES);
    cuda_launched(o, launch_result());
}

void cuda_qk_factors(const op *o, const run_context *r)
{
    const tensor *max_logits = o->in[0];
    const op_qk_clip &as = o->at.qk;
    const int64_t rows = o->out[0]->shape[0];
    const launch_qk_factors of = {whole<const float>(o, max_logits, r),
                                  max_logits->shape[0],
                                  o->at.qk.layers,
                                  o->at.qk.layer,
                                  as.heads,
                                  as.blocks,
                                  as.size,
                                  as.whole,
                                  as.threshold};
    cuda_launched(o, launch(factors_of_rows, blocks_for(divide_up(rows, of.size), WARPS), THREADS, 0, r->stream,
                            data<float>(o->out[0], r), rows, of));
}
