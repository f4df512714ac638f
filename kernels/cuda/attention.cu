/* Attention for what flash.cu does not take: fp32 and unusual head sizes, one warp a query (or key), 32 keys (or queries)
 * at a time, one a lane; and decoding, one new token a sample against its cache. Also the ops' entry points.
 */
#include "kernels/cuda/flash.cuh"

static constexpr int WARPS = 4, THREADS = WARPS * WARP, MOST_HEAD_SIZE = 256, LANE_COLUMNS = MOST_HEAD_SIZE / WARP,
                     DECODE_WARPS = 8, DELTA_TOKENS = 32;

/* A row of `size` elements as floats in shared memory, for one warp. */
template <typename T> DEVICE void stage_row(float *to, const T *from, int size)
{
    for (int column = (int)threadIdx.x % WARP; column < size; column += WARP)
        to[column] = to_float(from[column]);
    warp_barrier();
}

template <typename T> DEVICE float dot(const float *a, const T *b, int size)
{
    float sum = 0;
    for (int i = 0; i < size; i++)
        sum += a[i] * to_float(b[i]);
    return sum;
}

/* to[i] += sum over lanes l < count of weight(l) rows[l, i WARP + lane] */
template <typename T>
DEVICE void add_rows(float (&to)[LANE_COLUMNS], float weight, const T *rows, int64_t pitch, int count, int size)
{
    int lane = (int)threadIdx.x % WARP;
    for (int l = 0; l < count; l++) {
        float w = warp_from(weight, l);
        UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
        {
            int column = i * WARP + lane;
            if (column < size)
                to[i] += w * to_float(rows[l * pitch + column]);
        }
    }
}

template <typename T> DEVICE void write_row(T *to, const float (&from)[LANE_COLUMNS], float factor, int size)
{
    UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
    {
        int column = i * WARP + (int)threadIdx.x % WARP;
        if (column < size)
            from_float(to[column], from[i] * factor);
    }
}

/* The state of a softmax: what one warp has seen of the keys so far. */
struct seen {
    float most, sum, out[LANE_COLUMNS];
};

/* keys [first, end) of k and v, strided by `step` blocks of 32, for the query in shared memory */
template <typename T>
DEVICE seen attend(const float *query, const T *k, const T *v, int64_t pitch, int32_t first, int32_t end, int32_t step,
                   int size, float scale)
{
    int lane = (int)threadIdx.x % WARP;
    seen s = {-INFINITY, 0, {}};
    for (int32_t key = first; key < end; key += step) {
        int32_t mine = key + lane;
        float score = mine < end ? dot(query, k + mine * pitch, size) * scale : -INFINITY;
        float most = fmaxf(s.most, warp_largest(score)), shrink = expf(s.most - most), p = expf(score - most);
        s.sum = s.sum * shrink + warp_sum(p);
        s.most = most;
        UNROLL for (int i = 0; i < LANE_COLUMNS; i++) s.out[i] *= shrink;
        add_rows(s.out, p, v + key * pitch, pitch, end - key < WARP ? end - key : WARP, size);
    }
    return s;
}

/* grid (blocks of WARPS queries, heads, samples) */
template <typename T> KERNEL(THREADS, 2) attention_forward(T *y, float *lse, flash_in<T> in, int32_t size)
{
    SHARED(float, rows, WARPS *MOST_HEAD_SIZE);
    int warp = (int)threadIdx.x / WARP, head = (int)blockIdx.y, kv_head = head / (in.heads / in.kv_heads);
    int64_t token = (int64_t)blockIdx.z * in.sequence;
    int32_t query = (int32_t)blockIdx.x * WARPS + warp;
    if (query >= in.sequence)
        return;
    stage_row(rows + warp * MOST_HEAD_SIZE, in.q(token + query, head, size), size);
    seen s = attend(rows + warp * MOST_HEAD_SIZE, in.k(token, kv_head, size), in.v(token, kv_head, size), in.pitch,
                    in.lowest(token, query), query + 1, WARP, size, in.scale);
    write_row(y + (token + query) * in.y_pitch + head * size, s.out, 1.0f / s.sum, size);
    if (threadIdx.x % WARP == 0)
        lse[head * in.lse_pitch + token + query] = s.most + logf(s.sum);
}

/* delta[head, t] = sum over the head of dy y: `lanes` lanes an item, V elements a lane at a time. grid (heads, blocks of
 * DELTA_TOKENS tokens), so that rows are read whole by blocks side by side, and delta is written whole sectors at a time */
template <typename T, int V>
KERNEL(THREADS, 8)
attention_delta(float *delta, const T *dy, int64_t dy_pitch, const T *y, int64_t y_pitch, int64_t tokens, int32_t size,
                int32_t lanes)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, each = WARP / lanes, part = lane % lanes;
    int64_t head = blockIdx.x, first = ((int64_t)blockIdx.y * WARPS + warp) * (DELTA_TOKENS / WARPS);
    for (int k = lane / lanes; k < DELTA_TOKENS / WARPS; k += each) {
        int64_t token = first + k;
        float sum = 0;
        for (int column = part * V; column < size && token < tokens; column += lanes * V) {
            float a[V], b[V];
            load(a, dy + token * dy_pitch + head * size + column);
            load(b, y + token * y_pitch + head * size + column);
            UNROLL for (int i = 0; i < V; i++) sum += a[i] * b[i];
        }
        for (int mask = lanes / 2; mask > 0; mask /= 2)
            sum += warp_xor(sum, mask);
        if (part == 0 && token < tokens)
            delta[head * tokens + token] = sum;
    }
}

/* dq = scale sum over keys of p (dy v - delta) k */
template <typename T>
KERNEL(THREADS, 2)
attention_grad_q(T *dqkv, int64_t dqkv_pitch, const T *dy, const float *lse, const float *delta, flash_in<T> in,
                 int32_t size)
{
    SHARED(float, rows, 2 * WARPS * MOST_HEAD_SIZE);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int head = (int)blockIdx.y, kv_head = head / (in.heads / in.kv_heads);
    int64_t token = (int64_t)blockIdx.z * in.sequence;
    int32_t query = (int32_t)blockIdx.x * WARPS + warp;
    if (query >= in.sequence)
        return;
    float *q = rows + warp * 2 * MOST_HEAD_SIZE, *d = q + MOST_HEAD_SIZE, dq[LANE_COLUMNS] = {};
    stage_row(q, in.q(token + query, head, size), size);
    stage_row(d, dy + (token + query) * in.y_pitch + head * size, size);
    const T *k = in.k(token, kv_head, size), *v = in.v(token, kv_head, size);
    float log_sum = lse[head * in.lse_pitch + token + query], del = delta[head * in.tokens + token + query];
    for (int32_t key = in.lowest(token, query); key <= query; key += WARP) {
        int32_t mine = key + lane;
        float ds = 0;
        if (mine <= query)
            ds = expf(dot(q, k + mine * in.pitch, size) * in.scale - log_sum) *
                 (dot(d, v + mine * in.pitch, size) - del);
        add_rows(dq, ds, k + key * in.pitch, in.pitch, query + 1 - key < WARP ? query + 1 - key : WARP, size);
    }
    write_row(dqkv + (token + query) * dqkv_pitch + head * size, dq, in.scale, size);
}

/* dv = sum over queries of p dy, dk = scale sum over queries of p (dy v - delta) q; grid (blocks of keys, kv_heads, samples) */
template <typename T>
KERNEL(THREADS, 2)
attention_grad_kv(T *dqkv, int64_t dqkv_pitch, const T *dy, const float *lse, const float *delta, flash_in<T> in,
                  int32_t size)
{
    SHARED(float, rows, 2 * WARPS * MOST_HEAD_SIZE);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int kv_head = (int)blockIdx.y, group = in.heads / in.kv_heads;
    int64_t token = (int64_t)blockIdx.z * in.sequence;
    int32_t key = (int32_t)blockIdx.x * WARPS + warp;
    if (key >= in.sequence)
        return;
    float *k = rows + warp * 2 * MOST_HEAD_SIZE, *v = k + MOST_HEAD_SIZE, dk[LANE_COLUMNS] = {}, dv[LANE_COLUMNS] = {};
    stage_row(k, in.k(token + key, kv_head, size), size);
    stage_row(v, in.v(token + key, kv_head, size), size);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        const T *q = in.q(token, head, size), *d = dy + token * in.y_pitch + head * size;
        for (int32_t query = key; query < in.sequence && in.lowest(token, query) <= key; query += WARP) {
            int32_t mine = query + lane;
            float p = 0, ds = 0;
            if (mine < in.sequence && in.lowest(token, mine) <= key) {
                p = expf(dot(k, q + mine * in.pitch, size) * in.scale - lse[head * in.lse_pitch + token + mine]);
                ds = p * (dot(v, d + mine * in.y_pitch, size) - delta[head * in.tokens + token + mine]);
            }
            int count = in.sequence - query < WARP ? in.sequence - query : WARP;
            add_rows(dk, ds, q + query * in.pitch, in.pitch, count, size);
            add_rows(dv, p, d + query * in.y_pitch, in.y_pitch, count, size);
        }
    }
    T *to = dqkv + (token + key) * dqkv_pitch + (in.heads + kv_head) * size;
    write_row(to, dk, in.scale, size);
    write_row(to + in.kv_heads * size, dv, 1.0f, size);
}

/* the new keys and values into the caches; a thread an element */
template <typename T>
KERNEL(256, 4)
cache_append(T *k_cache, T *v_cache, const T *qkv, const int32_t *positions, int64_t items, int64_t capacity,
             int32_t q_columns, int32_t kv_columns)
{
    int64_t item = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (item >= items)
        return;
    int64_t sample = item / kv_columns, column = item % kv_columns;
    const T *row = qkv + sample * (q_columns + 2 * kv_columns) + q_columns;
    int64_t to = (sample * capacity + positions[sample]) * kv_columns + column;
    k_cache[to] = row[column];
    v_cache[to] = row[kv_columns + column];
}

/* a block a (head, sample); its warps share the keys and join what they saw, in the order of the warps */
template <typename T>
KERNEL(DECODE_WARPS *WARP, 2)
attention_step(T *y, const T *k_cache, const T *v_cache, const T *qkv, const int32_t *positions, int64_t capacity,
               launch_heads at)
{
    SHARED(float, rows, DECODE_WARPS *MOST_HEAD_SIZE);
    SHARED(float, most, DECODE_WARPS);
    SHARED(float, sums, DECODE_WARPS);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, size = at.head_size;
    int head = (int)blockIdx.x, kv_head = head / (at.heads / at.kv_heads);
    int64_t sample = blockIdx.y, pitch = (int64_t)at.kv_heads * size,
            cache = sample * capacity * pitch + kv_head * size;
    float *row = rows + warp * MOST_HEAD_SIZE;
    int32_t last = positions[sample], first = at.window > 0 && last >= at.window ? last - at.window + 1 : 0;
    stage_row(row, qkv + sample * (at.heads + 2 * at.kv_heads) * size + head * size, size);
    seen s = attend(row, k_cache + cache, v_cache + cache, pitch, first + warp * WARP, last + 1, DECODE_WARPS * WARP,
                    size, at.scale);
    warp_barrier();
    UNROLL for (int i = 0; i < LANE_COLUMNS; i++) row[i * WARP + lane] = s.out[i];
    if (lane == 0) {
        most[warp] = s.most;
        sums[warp] = s.sum;
    }
    block_barrier();
    float top = -INFINITY, total = 0;
    for (int k = 0; k < DECODE_WARPS; k++)
        top = fmaxf(top, most[k]);
    for (int k = 0; k < DECODE_WARPS; k++)
        total += sums[k] * expf(most[k] - top);
    for (int column = (int)threadIdx.x; column < size; column += DECODE_WARPS * WARP) {
        float out = 0;
        for (int k = 0; k < DECODE_WARPS; k++)
            out += rows[k * MOST_HEAD_SIZE + column] * expf(most[k] - top);
        from_float(y[sample * at.heads * size + head * size + column], out / total);
    }
}

/* ---- host side ----------------------------------------------------------------------------------------------- */

static bool refused(const launch_heads &at)
{
    return at.head_size > MOST_HEAD_SIZE || at.kv_heads < 1 || at.heads % at.kv_heads;
}

static dim3 grid_of(const launch_attention_in *in, int heads)
{
    return dim3(blocks_for(in->at.sequence, WARPS), (unsigned)heads, (unsigned)(in->tokens / in->at.sequence));
}

int launch_attention(void *stream, int type, void *y, float *lse, const launch_attention_in *in)
{
    if (refused(in->at) || in->tokens % in->at.sequence)
        return (int)cudaErrorInvalidValue;
    if (flash_takes(type, in->at.head_size, in->qkv_pitch, in->y_pitch, in->qkv, y))
        return flash_forward(stream, type, y, lse, in);
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        auto kernel = attention_forward<T>;
        LAUNCH(kernel, grid_of(in, in->at.heads), THREADS, 0, (cudaStream_t)stream, (T *)y, lse, flash_of<T>(in),
               in->at.head_size);
        return launch_result();
    });
}

template <typename T>
static int delta_of(void *stream, float *delta, const T *dy, int64_t dy_pitch, const T *y,
                    const launch_attention_in *in)
{
    constexpr int V = VECTOR<T>;
    /* no fewer lanes: each pass of a warp is then over tokens of its own */
    int32_t size = in->at.head_size, lanes = WARPS * WARP / DELTA_TOKENS;
    bool wide = size % V == 0 && dy_pitch % V == 0 && in->y_pitch % V == 0 && aligned_all(dy, y);
    while (lanes < WARP && lanes * (wide ? V : 1) < size)
        lanes *= 2;
    auto kernel = wide ? attention_delta<T, V> : attention_delta<T, 1>;
    dim3 grid((unsigned)in->at.heads, blocks_for(in->tokens, DELTA_TOKENS), 1);
    LAUNCH(kernel, grid, THREADS, 0, (cudaStream_t)stream, delta, dy, dy_pitch, y, in->y_pitch, in->tokens, size,
           lanes);
    return launch_result();
}

int64_t launch_attention_grad_scratch(int64_t tokens, launch_heads at)
{
    return tokens * at.heads * (int64_t)sizeof(float);
}

int launch_attention_grad(void *stream, int type, void *dqkv, int64_t dqkv_pitch, const void *dy, int64_t dy_pitch,
                          const void *y, const float *lse, const launch_attention_in *in, float *scratch)
{
    if (refused(in->at) || in->tokens % in->at.sequence)
        return (int)cudaErrorInvalidValue;
    int32_t size = in->at.head_size;
    int failed = with_type(type, [&](auto t) {
        using T = decltype(t);
        return delta_of(stream, scratch, (const T *)dy, dy_pitch, (const T *)y, in);
    });
    if (failed)
        return failed;
    launch_attention_in back = *in; /* y is not read from here on, and dy has not moved */
    back.y_pitch = dy_pitch;
    if (flash_takes(type, size, in->qkv_pitch, dy_pitch, in->qkv, dy) &&
        flash_takes(type, size, dqkv_pitch, dy_pitch, dqkv, dy))
        return flash_backward(stream, type, dqkv, dqkv_pitch, dy, lse, scratch, &back);
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        auto kernel_q = attention_grad_q<T>;
        auto kernel_kv = attention_grad_kv<T>;
        LAUNCH(kernel_q, grid_of(in, in->at.heads), THREADS, 0, (cudaStream_t)stream, (T *)dqkv, dqkv_pitch,
               (const T *)dy, lse, scratch, flash_of<T>(&back), size);
        LAUNCH(kernel_kv, grid_of(in, in->at.kv_heads), THREADS, 0, (cudaStream_t)stream, (T *)dqkv, dqkv_pitch,
               (const T *)dy, lse, scratch, flash_of<T>(&back), size);
        return launch_result();
    });
}

int launch_attention_decode(void *stream, int type, void *y, void *k_cache, void *v_cache, const void *qkv,
                            const int32_t *positions, int64_t samples, int64_t capacity, launch_heads at)
{
    if (refused(at))
        return (int)cudaErrorInvalidValue;
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        int32_t kv_columns = at.kv_heads * at.head_size;
        auto append = cache_append<T>;
        auto step = attention_step<T>;
        LAUNCH(append, blocks_for(samples * kv_columns, 256), 256, 0, (cudaStream_t)stream, (T *)k_cache, (T *)v_cache,
               (const T *)qkv, positions, samples * kv_columns, capacity, at.heads * at.head_size, kv_columns);
        LAUNCH(step, dim3((unsigned)at.heads, (unsigned)samples, 1), DECODE_WARPS * WARP, 0, (cudaStream_t)stream,
               (T *)y, (const T *)k_cache, (const T *)v_cache, (const T *)qkv, positions, capacity, at);
        return launch_result();
    });
}
