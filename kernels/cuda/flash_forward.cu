/* Flash attention, forward: a block is 64 MT queries of one head, going through the keys it may see, N at a time, with
 * a running maximum and sum per query (2307.08691, algorithm 1). The copy of the next keys overlaps the second product,
 * the copy of the values the first.
 */
#include "kernels/cuda/flash.cuh"

/* Masks scores outside [low, own position], raises the running maximum, turns scores into 2^(...) and rescales the
 * past. Scores in the accumulators are unscaled; `scale` includes log2 e. */
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
            if (edge && !token_sees(query + half * 8, low[half], at))
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

/* scores = tanh(scores factor), before the mask */
template <int N, int MT> DEVICE void cap_scores(float (&score)[MT][N / 8][4], float factor)
{
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int n = 0; n < N / 8; n++) UNROLL for (int i = 0; i < 4; i++)
        score[m][n][i] = short_tanh(score[m][n][i] * factor);
}

/* dynamic shared memory: q[M, D], k[N, D], v[N, E], padded; grid (query blocks of a run, heads, runs) */
template <typename T, int D, int E, int MT, int N, bool CAP>
KERNEL(FLASH_THREADS, 2)
flash_forward_kernel(flash_rows<T> y, flash_in<T> in)
{
    constexpr int M = FLASH_WARPS * 16 * MT;
    static_assert(E <= D, "y's rows are written through q's tile");
    SHARED_DYNAMIC(dynamic);
    T *q_tile = reinterpret_cast<T *>(dynamic), *k_tile = q_tile + M * STRIDE<D>, *v_tile = k_tile + N * STRIDE<D>;
    int lane = (int)threadIdx.x % WARP, a_row = (int)threadIdx.x / WARP * 16 * MT;
    int head = (int)blockIdx.y, kv_head = heads_read(head, in.heads, in.kv_heads);
    flash_run of = in.run_at((int32_t)blockIdx.z);
    int32_t first = (int32_t)(gridDim.x - 1 - blockIdx.x) * M; /* the longest rows start first */
    int32_t end = first + M < in.run ? first + M : in.run, keys_end = in.keys_end(of, end - 1);
    int32_t key = in.lowest(of, first) / N * N, low_last = in.lowest(of, end - 1);
    const T *k = in.k.at(of.keys, kv_head, D), *v = in.v.at(of.keys, kv_head, E);
    float scale = exponent_of<CAP>(in) * LOG2_E, sink = sink_of(in.sinks, head) / exponent_of<CAP>(in);
    float out[MT][E / 8][4] = {}, most[MT][2], sum[MT][2];
    int32_t low[MT][2];
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int half = 0; half < 2; half++)
    {
        int32_t query = first + a_row + m * 16 + half * 8 + lane / 4;
        most[m][half] = sink;
        sum[m][half] = in.sinks && lane % 4 == 0 ? 1.0f : 0.0f; /* the lanes of a row are added up */
        low[m][half] = query < end ? in.lowest(of, query) : 0;
    }
    fetch_tile<D, M>(q_tile, in.q.at(of.row, head, D), in.q.pitch, first, end);
    fetch_tile<D, N>(k_tile, k, in.k.pitch, key, keys_end);
    copy_commit();
    for (; key < keys_end; key += N) {
        copy_wait<0>();
        block_barrier(); /* the keys have been copied; no thread reads the last tile's values any more */
        fetch_tile<E, N>(v_tile, v, in.v.pitch, key, keys_end);
        copy_commit();
        float score[MT][N / 8][4] = {};
        multiply_rows<D, N, MT>(score, q_tile, a_row, k_tile);
        if constexpr (CAP)
            cap_scores<N, MT>(score, in.scale / in.cap);
        bool edge = key + N > in.keys_end(of, first) || key < low_last;
        UNROLL for (int m = 0; m < MT; m++) online_softmax<N, E / 8>(
            score[m], out[m], most[m], sum[m], low[m], of.shift + first + a_row + m * 16 + lane / 4, key, scale, edge);
        copy_wait<0>();
        block_barrier(); /* the values have been copied; no thread reads the keys any more */
        if (key + N < keys_end)
            fetch_tile<D, N>(k_tile, k, in.k.pitch, key + N, keys_end);
        copy_commit();
        multiply_columns<E, N, MT>(out, score, v_tile);
    }
    copy_wait<0>();
    float factor[MT][2];
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int half = 0; half < 2; half++)
    {
        float total = sum[m][half] + warp_xor(sum[m][half], 1);
        total += warp_xor(total, 2);
        factor[m][half] = 1.0f / total;
        int32_t query = first + a_row + m * 16 + half * 8 + lane / 4;
        if (lane % 4 || query >= end)
            continue;
        in.lse_of((int32_t)blockIdx.z, head)[query] = most[m][half] * exponent_of<CAP>(in) + logf(total);
        if (in.max_logit)
            in.max_logit[head * in.max_logit_pitch + of.row + query] = most[m][half] * in.scale;
    }
    write_rows<E, MT>(y.at(of.row, head, E), y.pitch, first, end, q_tile, a_row, out, factor);
}

template <typename T, int D, int E, int MT, int N, bool CAP>
static int launch(void *stream, const launch_attention_operands *of)
{
    constexpr int M = FLASH_WARPS * 16 * MT, shared = ((M + N) * STRIDE<D> + N * STRIDE<E>)*(int)sizeof(T);
    auto kernel = flash_forward_kernel<T, D, E, MT, N, CAP>;
    int failed = allow_shared(kernel, shared);
    if (failed)
        return failed;
    dim3 grid(blocks_for(of->run, M), (unsigned)of->at.heads, (unsigned)(of->tokens / of->run));
    return launch(kernel, grid, FLASH_THREADS, shared, stream, flash_rows_of<T>(of->y), flash_of<T>(of));
}

template <typename T, int D, int E, int MT, int N> static int run(void *stream, const launch_attention_operands *of)
{
    return with_cap(of->at.cap, [&](auto capped) {
        constexpr bool CAP = decltype(capped)::value;
        constexpr int ROWS = CAP && D == 192 ? 1 : MT; /* the registers hold no more beside a tanh */
        return launch<T, D, E, ROWS, N, CAP>(stream, of);
    });
}

template <typename T> static int run_size(void *stream, const launch_attention_operands *of)
{
    switch (of->at.head_size) {
    case 64:
        return run<T, 64, 64, 2, 64>(stream, of);
    case 80:
        return run<T, 80, 80, 2, 32>(stream, of); /* of 64 keys at a time sm_80 spills registers */
    case 96:
        return run<T, 96, 96, 2, 32>(stream, of);
    case 128:
        return run<T, 128, 128, 2, 32>(stream, of);
    case 192:
        return run<T, 192, 128, 2, 32>(stream, of);
    default:
        return run<T, 256, 256, 1, 32>(stream, of);
    }
}

int flash_forward(void *stream, int type, const launch_attention_operands *of)
{
    return type == DTYPE_BF16 ? run_size<bf16>(stream, of) : run_size<fp16>(stream, of);
}
