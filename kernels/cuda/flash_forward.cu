/* Flash attention, forward: a block is 64 MT queries of one head, going through the keys it may see, N at a time, with a
 * running maximum and sum per query (2307.08691, algorithm 1). The copy of the next keys overlaps the second product, the
 * copy of the values the first.
 */
#include "kernels/cuda/flash.cuh"

/* Mask what lies outside [low, own position], raise the running maximum, turn scores into 2^(...) and rescale the past.
 * Scores in the accumulators are unscaled; `scale` includes log2 e. */
template <int N, int D8>
DEVICE void online_softmax(float (&score)[N / 8][4], float (&out)[D8][4], float (&most)[2], float (&sum)[2],
                           const int32_t (&low)[2], int32_t query, int32_t key, float scale, bool edge)
{
    int pair = (int)threadIdx.x % 4 * 2;
    UNROLL for (int half = 0; half < 2; half++)
    {
        float top = most[half];
        UNROLL for (int n = 0; n < N / 8; n++) UNROLL for (int i = half * 2; i < half * 2 + 2; i++)
        {
            int32_t at = key + n * 8 + pair + i % 2;
            if (edge && (at > query + half * 8 || at < low[half]))
                score[n][i] = -INFINITY;
            top = fmaxf(top, score[n][i]);
        }
        top = fmaxf(top, warp_xor(top, 1));
        top = fmaxf(top, warp_xor(top, 2));
        float base = top == -INFINITY ? 0.0f : top * scale; /* a query may see nothing of this tile */
        float shrink = fast_exp2(most[half] * scale - base);
        most[half] = top;
        sum[half] *= shrink;
        UNROLL for (int d = 0; d < D8; d++)
        {
            out[d][half * 2] *= shrink;
            out[d][half * 2 + 1] *= shrink;
        }
        UNROLL for (int n = 0; n < N / 8; n++) UNROLL for (int i = half * 2; i < half * 2 + 2; i++)
        {
            score[n][i] = fast_exp2(score[n][i] * scale - base);
            sum[half] += score[n][i];
        }
    }
}

/* dynamic shared memory: q[M, D], k[N, D], v[N, D], padded; grid (query blocks, heads, samples) */
template <typename T, int D, int MT, int N>
KERNEL(FLASH_THREADS, 2)
flash_forward_kernel(T *y, float *lse, flash_in<T> in)
{
    constexpr int M = FLASH_WARPS * 16 * MT;
    SHARED_DYNAMIC(dynamic);
    T *q_tile = reinterpret_cast<T *>(dynamic), *k_tile = q_tile + M * STRIDE<D>, *v_tile = k_tile + N * STRIDE<D>;
    int lane = (int)threadIdx.x % WARP, a_row = (int)threadIdx.x / WARP * 16 * MT;
    int head = (int)blockIdx.y, kv_head = head / (in.heads / in.kv_heads);
    int64_t token = (int64_t)blockIdx.z * in.sequence;
    int32_t first = (int32_t)(gridDim.x - 1 - blockIdx.x) * M; /* the longest rows start first */
    int32_t end = first + M < in.sequence ? first + M : in.sequence;
    int32_t key = in.lowest(token, first) / N * N, low_last = in.lowest(token, end - 1);
    const T *k = in.k(token, kv_head, D), *v = in.v(token, kv_head, D);
    float scale = in.scale * LOG2_E;
    float out[MT][D / 8][4] = {}, most[MT][2], sum[MT][2] = {};
    int32_t low[MT][2];
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int half = 0; half < 2; half++)
    {
        int32_t query = first + a_row + m * 16 + half * 8 + lane / 4;
        most[m][half] = -INFINITY;
        low[m][half] = query < end ? in.lowest(token, query) : 0;
    }
    fetch_tile<D, M>(q_tile, in.q(token, head, D), in.pitch, first, end);
    fetch_tile<D, N>(k_tile, k, in.pitch, key, end);
    copy_commit();
    for (; key < end; key += N) {
        copy_wait<0>();
        block_barrier(); /* the keys have been copied; no thread reads the last tile's values any more */
        fetch_tile<D, N>(v_tile, v, in.pitch, key, end);
        copy_commit();
        float score[MT][N / 8][4] = {};
        multiply_rows<D, N, MT>(score, q_tile, a_row, k_tile);
        bool edge = key + N > first || key < low_last;
        UNROLL for (int m = 0; m < MT; m++) online_softmax<N, D / 8>(
            score[m], out[m], most[m], sum[m], low[m], first + a_row + m * 16 + lane / 4, key, scale, edge);
        copy_wait<0>();
        block_barrier(); /* the values have been copied; no thread reads the keys any more */
        if (key + N < end)
            fetch_tile<D, N>(k_tile, k, in.pitch, key + N, end);
        copy_commit();
        multiply_columns<D, N, MT>(out, score, v_tile);
    }
    copy_wait<0>();
    float factor[MT][2];
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int half = 0; half < 2; half++)
    {
        float total = sum[m][half] + warp_xor(sum[m][half], 1);
        total += warp_xor(total, 2);
        factor[m][half] = 1.0f / total;
        int32_t query = first + a_row + m * 16 + half * 8 + lane / 4;
        if (lane % 4 == 0 && query < end)
            lse[head * in.lse_pitch + token + query] = most[m][half] * in.scale + logf(total);
    }
    write_rows<D, MT>(y + token * in.y_pitch + head * D, in.y_pitch, first, end, q_tile, a_row, out, factor);
}

template <typename T, int D, int MT, int N>
static int run(void *stream, void *y, float *lse, const launch_attention_in *in)
{
    constexpr int M = FLASH_WARPS * 16 * MT, shared = (M + 2 * N) * STRIDE<D> * (int)sizeof(T);
    auto kernel = flash_forward_kernel<T, D, MT, N>;
    int failed = allow_shared(kernel, shared);
    if (failed)
        return failed;
    dim3 grid(blocks_for(in->at.sequence, M), (unsigned)in->at.heads, (unsigned)(in->tokens / in->at.sequence));
    LAUNCH(kernel, grid, FLASH_THREADS, shared, (cudaStream_t)stream, (T *)y, lse, flash_of<T>(in));
    return launch_result();
}

template <typename T> static int run_size(void *stream, void *y, float *lse, const launch_attention_in *in)
{
    switch (in->at.head_size) {
    case 64:
        return run<T, 64, 2, 64>(stream, y, lse, in);
    case 80:
        return run<T, 80, 2, 64>(stream, y, lse, in);
    case 96:
        return run<T, 96, 2, 32>(stream, y, lse, in);
    case 128:
        return run<T, 128, 2, 32>(stream, y, lse, in);
    default:
        return run<T, 256, 1, 32>(stream, y, lse, in);
    }
}

int flash_forward(void *stream, int type, void *y, float *lse, const launch_attention_in *in)
{
    return type == LAUNCH_BF16 ? run_size<bf16>(stream, y, lse, in) : run_size<fp16>(stream, y, lse, in);
}
