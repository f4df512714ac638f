/* Vocabulary-parallel cross-entropy over a chunk of tokens: each shard's statistics, then, when every shard's are
 * known, the loss and the logits' gradient in place of the logits. Each pass reads the logits once; the second writes
 * them once.
 */
#include "kernels/cuda/vector.cuh"

static constexpr int MOST_THREADS = 512;

/* joins m and sum = sum exp(x - m) of two parts */
DEVICE void join(float &m, float &sum, float other_m, float other_sum)
{
    float most = fmaxf(m, other_m);
    /* an empty part has m = -inf and sum = 0: exp(-inf - -inf) must not be asked for */
    sum = (m == most ? sum : sum * expf(m - most)) + (other_m == most ? other_sum : other_sum * expf(other_m - most));
    m = most;
}

/* stats[t, 3] = largest logit m, sum exp(logit - m), the target's logit or -inf; a block a row */
template <typename T, int V>
KERNEL(MOST_THREADS, 2)
cross_entropy_row(float *stats, const T *logits, const int32_t *targets, int64_t columns, int64_t count, int64_t first)
{
    SHARED(float, part, 64);
    const T *row = logits + blockIdx.x * columns;
    float m = -INFINITY, sum = 0;
    for (int64_t column = (int64_t)threadIdx.x * V; column < count; column += (int64_t)blockDim.x * V) {
        float x[V], most = m;
        load(x, row + column);
        UNROLL for (int i = 0; i < V; i++)
        {
            x[i] = column + i < count ? x[i] : -INFINITY;
            most = fmaxf(most, x[i]);
        }
        if (most > m) {
            sum *= expf(m - most);
            m = most;
        }
        if (m > -INFINITY)
            UNROLL for (int i = 0; i < V; i++) sum += expf(x[i] - m);
    }
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2)
    {
        float other_m = warp_xor(m, mask), other_sum = warp_xor(sum, mask);
        join(m, sum, other_m, other_sum);
    }
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    if (lane == 0) {
        part[warp] = m;
        part[32 + warp] = sum;
    }
    block_barrier();
    if (threadIdx.x == 0) {
        for (int k = 1; k < warps; k++)
            join(m, sum, part[k], part[32 + k]);
        int64_t target = (int64_t)targets[blockIdx.x] - first;
        float *to = stats + (int64_t)blockIdx.x * 3;
        to[0] = m;
        to[1] = sum;
        to[2] = targets[blockIdx.x] >= 0 && target >= 0 && target < count ? to_float(row[target]) : -INFINITY;
    }
}

/* losses[t] = log sum exp - target logit, 0 for an ignored target; dlogits = (softmax - onehot) loss_scale /
 * loss_tokens */
template <typename T, int V>
KERNEL(MOST_THREADS, 2)
cross_entropy_finish(float *losses, T *dlogits, const T *logits, const int32_t *targets, const float *stats,
                     const step_scalars *scalars, int64_t shards, int64_t tokens, int64_t columns, int64_t count,
                     int64_t first)
{
    int64_t token = blockIdx.x;
    float m = -INFINITY, sum = 0, target_logit = -INFINITY;
    for (int64_t shard = 0; shard < shards; shard++) {
        const float *from = stats + (shard * tokens + token) * 3;
        join(m, sum, from[0], from[1]);
        target_logit = fmaxf(target_logit, from[2]);
    }
    bool counts = targets[token] >= 0;
    if (threadIdx.x == 0)
        losses[token] = counts ? logf(sum) + m - target_logit : 0.0f;
    if (!dlogits)
        return;
    float scale = counts ? scalars->loss_scale / scalars->loss_tokens : 0.0f, each = scale / sum;
    int64_t target = (int64_t)targets[token] - first;
    for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += (int64_t)blockDim.x * V) {
        float x[V];
        load(x, logits + token * columns + column);
        UNROLL for (int i = 0; i < V; i++)
        {
            float d = counts && column + i < count ? expf(x[i] - m) * each : 0.0f;
            x[i] = counts && column + i == target && target < count ? d - scale : d;
        }
        store(dlogits + token * columns + column, x);
    }
}

/* loss (+)= the sum of losses[tokens]; one block, one order */
KERNEL(MOST_THREADS, 1) loss_sum(float *loss, const float *losses, int64_t tokens, bool accumulate)
{
    float sum = 0;
    for (int64_t token = threadIdx.x; token < tokens; token += MOST_THREADS)
        sum += losses[token];
    sum = block_sum(sum, 0).a;
    if (threadIdx.x == 0)
        *loss = accumulate ? *loss + sum : sum;
}

void cuda_cross_entropy_stats(const op *o, const run_context *r)
{
    const tensor *in = o->in[0];
    const int64_t columns = in->shape[1];
    void *logits = whole(o, in, r);
    auto is_wide = [&](int vector) { return columns % vector == 0 && aligned(logits, 16); };
    cuda_launched(o, in->shape[0] == 0 ? 0 : with_access(in->type, is_wide, [&](auto t, auto v) {
                      using T = decltype(t);
                      return launch(cross_entropy_row<T, v()>, (unsigned)in->shape[0], threads_for(columns / v()), 0,
                                    r->stream, whole<float>(o, o->out[0], r), (const T *)logits,
                                    data<const int32_t>(o->in[1], r), columns, o->at.vocabulary.ids,
                                    o->at.vocabulary.first);
                  }));
}

CUDA_SCRATCH(cuda_cross_entropy_scratch, o->in[0]->shape[0] * (int64_t)sizeof(float))

void cuda_cross_entropy(const op *o, const run_context *r)
{
    const tensor *in = o->in[0], *stats = o->in[2];
    const int64_t tokens = in->shape[0], columns = in->shape[1];
    void *logits = whole(o, in, r), *dlogits = whole(o, o->out[1], r);
    float *losses = data<float>(o->scratch, r);
    auto is_wide = [&](int vector) { return columns % vector == 0 && aligned_all(dlogits, logits); };
    int failed = tokens == 0 ? 0 : with_access(in->type, is_wide, [&](auto t, auto v) {
        using T = decltype(t);
        return launch(cross_entropy_finish<T, v()>, (unsigned)tokens, threads_for(columns / v()), 0, r->stream, losses,
                      (T *)dlogits, (const T *)logits, data<const int32_t>(o->in[1], r),
                      whole<const float>(o, stats, r), data<const step_scalars>(o->in[3], r), stats->shape[0] / tokens,
                      tokens, columns, o->at.vocabulary.ids, o->at.vocabulary.first);
    });
    auto kernel = loss_sum;
    if (!failed)
        LAUNCH(kernel, 1, MOST_THREADS, 0, (cudaStream_t)r->stream, data<float>(o->out[0], r), losses, tokens,
               o->at.accumulate != OP_WRITES);
    cuda_launched(o, failed ? failed : launch_result());
}
