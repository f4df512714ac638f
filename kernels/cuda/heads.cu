/* What happens to single heads of the fused row qkv[t, (heads + 2 kv_heads) head_size]: rotary positions (2104.09864,
 * halves rotated) and the RMSNorm of each head of q and k (Qwen3).
 */
#include "kernels/cuda/vector.cuh"

#include "kernels/cuda/reduce.cuh"

static constexpr int THREADS = 256, WARPS = THREADS / WARP, MOST_HEAD_SIZE = 256, LANE_COLUMNS = MOST_HEAD_SIZE / WARP,
                     MOST_BLOCKS = 512, PAIRS_A_WARP = 8;

/* (a, b) -> (a cos - b sin, b cos + a sin), cos, sin = table[position, i], table[position, half + i]; sign -1 turns back.
 * `turned` heads are rotated, those after them copied. A thread handles V pairs. */
template <typename T, int V>
KERNEL(THREADS, 4)
rope_turn(T *y, const T *x, const int32_t *positions, const float *table, int64_t items, int64_t y_pitch,
          int64_t x_pitch, int64_t table_pitch, int32_t half, int32_t turned, int32_t heads, float sign)
{
    int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (item >= items)
        return;
    int32_t pieces = half / V, piece = (int32_t)(item % pieces), head = (int32_t)(item / pieces % heads);
    int64_t token = item / pieces / heads, at = (int64_t)head * 2 * half + piece * V;
    float a[V], b[V];
    load(a, x + token * x_pitch + at);
    load(b, x + token * x_pitch + at + half);
    if (head < turned) {
        const float *row = table + positions[token] * table_pitch + piece * V;
        float cosine[V], sine[V];
        load(cosine, row);
        load(sine, row + half);
        UNROLL for (int i = 0; i < V; i++)
        {
            float s = sine[i] * sign, first = a[i];
            a[i] = first * cosine[i] - b[i] * s;
            b[i] = b[i] * cosine[i] + first * s;
        }
    }
    store(y + token * y_pitch + at, a);
    store(y + token * y_pitch + at + half, b);
}

/* a warp a head: y = x rstd w for the q and k heads, y = x for the v heads */
template <typename T>
KERNEL(THREADS, 4)
head_norm_forward(T *y, float *rstd, const T *x, const T *wq, const T *wk, int64_t pairs, int32_t heads,
                  int32_t kv_heads, int32_t head_size, float epsilon)
{
    int lane = (int)threadIdx.x % WARP, all = heads + 2 * kv_heads;
    int64_t pair = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (pair >= pairs)
        return;
    int64_t token = pair / all;
    int32_t head = (int32_t)(pair % all);
    const T *w = head < heads ? wq : wk;
    float a[LANE_COLUMNS], squares = 0;
    UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
    {
        int column = i * WARP + lane;
        a[i] = column < head_size ? to_float(x[pair * head_size + column]) : 0.0f;
        squares += a[i] * a[i];
    }
    float scale = 1;
    bool normed = head < heads + kv_heads;
    if (normed) {
        scale = 1.0f / sqrtf(warp_sum(squares) / (float)head_size + epsilon);
        if (lane == 0)
            rstd[token * (heads + kv_heads) + head] = scale;
    }
    UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
    {
        int column = i * WARP + lane;
        if (column < head_size)
            from_float(y[pair * head_size + column], normed ? a[i] * scale * to_float(w[column]) : a[i]);
    }
}

/* dx = rstd (dy w - n mean(dy w n)), n = x rstd; a warp walks over heads and sums dwq and dwk in its registers.
 * partials[block, dwq | dwk] */
template <typename T>
KERNEL(THREADS, 2)
head_norm_backward(T *dx, float *partials, const T *dy, const T *x, const T *wq, const T *wk, const float *rstd,
                   int64_t pairs, int32_t heads, int32_t kv_heads, int32_t head_size)
{
    SHARED(float, part, WARPS * 2 * MOST_HEAD_SIZE);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, all = heads + 2 * kv_heads;
    float sum_q[LANE_COLUMNS] = {}, sum_k[LANE_COLUMNS] = {};
    for (int64_t pair = (int64_t)blockIdx.x * WARPS + warp; pair < pairs; pair += (int64_t)gridDim.x * WARPS) {
        int64_t token = pair / all;
        int32_t head = (int32_t)(pair % all);
        bool normed = head < heads + kv_heads;
        const T *w = head < heads ? wq : wk;
        float scale = normed ? rstd[token * (heads + kv_heads) + head] : 0.0f, along = 0;
        float d[LANE_COLUMNS], n[LANE_COLUMNS], g[LANE_COLUMNS];
        UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
        {
            int column = i * WARP + lane;
            bool inside = column < head_size;
            d[i] = inside ? to_float(dy[pair * head_size + column]) : 0.0f;
            n[i] = inside ? to_float(x[pair * head_size + column]) * scale : 0.0f;
            g[i] = inside ? d[i] * to_float(w[column]) : 0.0f;
            along += g[i] * n[i];
            if (head < heads)
                sum_q[i] += d[i] * n[i];
            else
                sum_k[i] += d[i] * n[i]; /* n is 0 for a v head */
        }
        along = warp_sum(along) / (float)head_size;
        UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
        {
            int column = i * WARP + lane;
            if (column < head_size)
                from_float(dx[pair * head_size + column], normed ? scale * (g[i] - n[i] * along) : d[i]);
        }
    }
    UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
    {
        part[(warp * 2 + 0) * MOST_HEAD_SIZE + i * WARP + lane] = sum_q[i];
        part[(warp * 2 + 1) * MOST_HEAD_SIZE + i * WARP + lane] = sum_k[i];
    }
    block_barrier();
    for (int i = (int)threadIdx.x; i < 2 * head_size; i += THREADS) {
        float total = 0;
        for (int k = 0; k < WARPS; k++)
            total += part[(k * 2 + i / head_size) * MOST_HEAD_SIZE + i % head_size];
        partials[(int64_t)blockIdx.x * 2 * head_size + i] = total;
    }
}

int launch_rope(void *stream, int type, void *y, const void *qkv, const int32_t *positions, const float *table,
                int64_t tokens, int64_t y_pitch, int64_t qkv_pitch, int64_t table_pitch, launch_heads at, bool inverse)
{
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int V = VECTOR<T>;
        int32_t half = at.head_size / 2, turned = at.heads + at.kv_heads;
        int32_t heads = y == qkv ? turned : turned + at.kv_heads; /* in place there is no v to copy */
        bool wide = half % V == 0 && y_pitch % V == 0 && qkv_pitch % V == 0 && table_pitch % 4 == 0 &&
                    aligned_all(y, qkv, table);
        int64_t items = tokens * heads * (half / (wide ? V : 1));
        auto kernel = wide ? rope_turn<T, V> : rope_turn<T, 1>;
        LAUNCH(kernel, blocks_for(items, THREADS), THREADS, 0, (cudaStream_t)stream, (T *)y, (const T *)qkv, positions,
               table, items, y_pitch, qkv_pitch, table_pitch, half, turned, heads, inverse ? -1.0f : 1.0f);
        return launch_result();
    });
}

int launch_head_norm(void *stream, int type, void *y, float *rstd, const void *qkv, const void *wq, const void *wk,
                     int64_t tokens, launch_heads at, float epsilon)
{
    if (at.head_size > MOST_HEAD_SIZE)
        return (int)cudaErrorInvalidValue;
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        int64_t pairs = tokens * (at.heads + 2 * at.kv_heads);
        auto kernel = head_norm_forward<T>;
        LAUNCH(kernel, blocks_for(pairs, WARPS), THREADS, 0, (cudaStream_t)stream, (T *)y, rstd, (const T *)qkv,
               (const T *)wq, (const T *)wk, pairs, at.heads, at.kv_heads, at.head_size, epsilon);
        return launch_result();
    });
}

static int64_t grad_blocks(int64_t tokens, launch_heads at)
{
    int64_t blocks = divide_up(tokens * (at.heads + 2 * at.kv_heads), (int64_t)WARPS * PAIRS_A_WARP);
    return blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks;
}

int64_t launch_head_norm_grad_scratch(int64_t tokens, launch_heads at)
{
    return grad_blocks(tokens, at) * 2 * at.head_size * (int64_t)sizeof(float);
}

int launch_head_norm_grad(void *stream, int type, void *dqkv, float *dwq, float *dwk, const void *dy, const void *qkv,
                          const void *wq, const void *wk, const float *rstd, int64_t tokens, launch_heads at,
                          bool accumulate, float *scratch)
{
    if (at.head_size > MOST_HEAD_SIZE)
        return (int)cudaErrorInvalidValue;
    int64_t blocks = grad_blocks(tokens, at), pairs = tokens * (at.heads + 2 * at.kv_heads);
    int failed = with_type(type, [&](auto t) {
        using T = decltype(t);
        auto kernel = head_norm_backward<T>;
        LAUNCH(kernel, (unsigned)blocks, THREADS, 0, (cudaStream_t)stream, (T *)dqkv, scratch, (const T *)dy,
               (const T *)qkv, (const T *)wq, (const T *)wk, rstd, pairs, at.heads, at.kv_heads, at.head_size);
        return launch_result();
    });
    if (!failed)
        failed = reduce_partials(stream, dwq, scratch, blocks, at.head_size, 2 * at.head_size, accumulate);
    if (!failed)
        failed =
            reduce_partials(stream, dwk, scratch + at.head_size, blocks, at.head_size, 2 * at.head_size, accumulate);
    return failed;
}
