/* Attention that the flash kernels do not take: fp32 and unusual head sizes, one warp a query (or key), 32 keys (or
 * queries) at a time, one a lane; and decoding, one new token a sample against its cache. Also the ops' entry points.
 */
#include "kernels/cuda/flash.cuh"

static constexpr int WARPS = 4, THREADS = WARPS * WARP, MOST_HEAD_SIZE = 256, LANE_COLUMNS = MOST_HEAD_SIZE / WARP,
                     DECODE_WARPS = 8, DELTA_TOKENS = 32, SINK_THREADS = 512;

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

/* The score of a query and a key from their product, and its derivative by scale times the product, from the score. */
template <bool CAP> struct score_of {
    float scale, cap;
    __device__ float operator()(float product) const
    {
        return CAP ? cap * tanhf(product * scale / cap) : product * scale;
    }
    __device__ float slope(float score) const
    {
        return CAP ? 1.0f - score * score / (cap * cap) : 1.0f;
    }
};

/* The running softmax of one warp over the keys so far. */
struct seen {
    float most, sum, out[LANE_COLUMNS];
};

/* The keys and values of one head, from the sample's first on. */
template <typename T> struct head_keys {
    const T *k, *v;
    int64_t k_pitch, v_pitch;
    int size, v_size;
};

/* keys [first, end), strided by `step` blocks of 32, for the query in shared memory; a sink above -INFINITY comes
 * before them */
template <bool CAP, typename T>
DEVICE seen attend(const float *query, const head_keys<T> &of, int32_t first, int32_t end, int32_t step,
                   score_of<CAP> f, float sink)
{
    int lane = (int)threadIdx.x % WARP;
    seen s = {sink, sink > -INFINITY ? 1.0f : 0.0f, {}};
    for (int32_t key = first; key < end; key += step) {
        int32_t mine = key + lane;
        float score = mine < end ? f(dot(query, of.k + mine * of.k_pitch, of.size)) : -INFINITY;
        float most = fmaxf(s.most, warp_largest(score)), shrink = expf(s.most - most), p = expf(score - most);
        s.sum = s.sum * shrink + warp_sum(p);
        s.most = most;
        UNROLL for (int i = 0; i < LANE_COLUMNS; i++) s.out[i] *= shrink;
        add_rows(s.out, p, of.v + key * of.v_pitch, of.v_pitch, end - key < WARP ? end - key : WARP, of.v_size);
    }
    return s;
}

/* grid (blocks of WARPS queries of a run, heads, runs) */
template <bool CAP, typename T>
KERNEL(THREADS, 2)
attention_forward(flash_rows<T> y, flash_in<T> in, int32_t size, int32_t v_size)
{
    SHARED(float, rows, WARPS *MOST_HEAD_SIZE);
    int warp = (int)threadIdx.x / WARP, head = (int)blockIdx.y, kv_head = heads_read(head, in.heads, in.kv_heads);
    flash_run of = in.run_at((int32_t)blockIdx.z);
    int32_t query = (int32_t)blockIdx.x * WARPS + warp;
    if (query >= in.run)
        return;
    stage_row(rows + warp * MOST_HEAD_SIZE, in.q.at(of.row + query, head, size), size);
    head_keys<T> keys = {
        in.k.at(of.keys, kv_head, size), in.v.at(of.keys, kv_head, v_size), in.k.pitch, in.v.pitch, size, v_size};
    seen s = attend(rows + warp * MOST_HEAD_SIZE, keys, in.lowest(of, query), in.keys_end(of, query), WARP,
                    score_of<CAP>{in.scale, in.cap}, sink_of(in.sinks, head));
    write_row(y.at(of.row + query, head, v_size), s.out, 1.0f / s.sum, v_size);
    if (threadIdx.x % WARP)
        return;
    in.lse_of((int32_t)blockIdx.z, head)[query] = s.most + logf(s.sum);
    if (in.max_logit)
        in.max_logit[head * in.max_logit_pitch + of.row + query] = s.most;
}

/* delta[head, t] = sum over the head of dy y: `lanes` lanes an item, V elements a lane at a time. grid (heads, blocks
 * of DELTA_TOKENS tokens), so that rows are read whole by blocks side by side, and delta is written whole sectors at a
 * time */
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

/* to[head] (+)= - sum over tokens of exp(sink - lse) delta; grid (heads) */
template <typename T>
KERNEL(SINK_THREADS, 2)
sinks_grad(float *to, const float *delta, const float *lse, int32_t run, const T *sinks, int64_t tokens,
           bool accumulate)
{
    int64_t head = blockIdx.x;
    float sink = to_float(sinks[head]), sum = 0;
    for (int64_t token = threadIdx.x; token < tokens; token += SINK_THREADS)
        sum -= expf(sink - lse[(token / run * gridDim.x + head) * run + token % run]) * delta[head * tokens + token];
    sum = block_sum(sum, 0).a;
    if (threadIdx.x == 0)
        to[head] = accumulate ? to[head] + sum : sum;
}

/* dq = scale sum over keys of p (dy v - delta) k */
template <bool CAP, typename T>
KERNEL(THREADS, 2)
attention_grad_q(flash_rows<T> dq_rows, flash_rows<const T> dy, const float *delta, flash_in<T> in, int32_t size,
                 int32_t v_size)
{
    SHARED(float, rows, 2 * WARPS * MOST_HEAD_SIZE);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int head = (int)blockIdx.y, kv_head = heads_read(head, in.heads, in.kv_heads);
    flash_run of = in.run_at((int32_t)blockIdx.z);
    int32_t query = (int32_t)blockIdx.x * WARPS + warp;
    if (query >= in.run)
        return;
    int32_t end = in.keys_end(of, query);
    float *q = rows + warp * 2 * MOST_HEAD_SIZE, *d = q + MOST_HEAD_SIZE, dq[LANE_COLUMNS] = {};
    stage_row(q, in.q.at(of.row + query, head, size), size);
    stage_row(d, dy.at(of.row + query, head, v_size), v_size);
    const T *k = in.k.at(of.keys, kv_head, size), *v = in.v.at(of.keys, kv_head, v_size);
    const score_of<CAP> f = {in.scale, in.cap};
    float log_sum = in.lse_of((int32_t)blockIdx.z, head)[query], del = delta[head * in.tokens + of.row + query];
    for (int32_t key = in.lowest(of, query); key < end; key += WARP) {
        int32_t mine = key + lane;
        float ds = 0;
        if (mine < end) {
            float score = f(dot(q, k + mine * in.k.pitch, size));
            ds = expf(score - log_sum) * (dot(d, v + mine * in.v.pitch, v_size) - del) * f.slope(score);
        }
        add_rows(dq, ds, k + key * in.k.pitch, in.k.pitch, end - key < WARP ? end - key : WARP, size);
    }
    write_row(dq_rows.at(of.row + query, head, size), dq, in.scale, size);
}

/* dv = sum over queries of p dy, dk = scale sum over queries of p (dy v - delta) q; grid (blocks of keys, kv_heads,
 * samples) */
template <bool CAP, typename T>
KERNEL(THREADS, 2)
attention_grad_kv(flash_rows<T> dk_rows, flash_rows<T> dv_rows, flash_rows<const T> dy, const float *delta,
                  flash_in<T> in, int32_t size, int32_t v_size)
{
    SHARED(float, rows, 2 * WARPS * MOST_HEAD_SIZE);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int kv_head = (int)blockIdx.y, last_head = heads_first(kv_head + 1, in.heads, in.kv_heads);
    int64_t keys = (int64_t)blockIdx.z * in.sequence;
    int32_t key = (int32_t)blockIdx.x * WARPS + warp;
    if (key >= in.sequence)
        return;
    float *k = rows + warp * 2 * MOST_HEAD_SIZE, *v = k + MOST_HEAD_SIZE, dk[LANE_COLUMNS] = {}, dv[LANE_COLUMNS] = {};
    stage_row(k, in.k.at(keys + key, kv_head, size), size);
    stage_row(v, in.v.at(keys + key, kv_head, v_size), v_size);
    const score_of<CAP> f = {in.scale, in.cap};
    query_walk at = {heads_first(kv_head, in.heads, in.kv_heads), 0, -1, {}};
    while ((at = walk_on<1>(at, in, keys, key, key + 1, last_head)).head < last_head) {
        const T *q = in.q.at(at.of.row, at.head, size), *d = dy.at(at.of.row, at.head, v_size);
        int32_t mine = at.query + lane, count = in.run - at.query < WARP ? in.run - at.query : WARP;
        float p = 0, ds = 0;
        if (mine < in.run && in.lowest(at.of, mine) <= key) {
            int64_t row = at.of.row + mine;
            float score = f(dot(k, q + mine * in.q.pitch, size));
            p = expf(score - in.lse_of(at.run, at.head)[mine]);
            ds = p * (dot(v, d + mine * dy.pitch, v_size) - delta[at.head * in.tokens + row]) * f.slope(score);
        }
        add_rows(dk, ds, q + at.query * in.q.pitch, in.q.pitch, count, size);
        add_rows(dv, p, d + at.query * dy.pitch, dy.pitch, count, v_size);
        at.query += WARP;
    }
    write_row(dk_rows.at(keys + key, kv_head, size), dk, in.scale, size);
    write_row(dv_rows.at(keys + key, kv_head, v_size), dv, 1.0f, v_size);
}

/* Writes the new keys (or values) of samples into their cache; a thread an element. */
template <typename T>
KERNEL(256, 4)
cache_append(T *cache, flash_rows<const T> x, const int32_t *positions, int64_t items, int64_t capacity,
             int32_t columns)
{
    int64_t item = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (item >= items)
        return;
    int64_t sample = item / columns, column = item % columns;
    cache[(sample * capacity + positions[sample]) * columns + column] = x.at(sample, 0, 0)[column];
}

/* A block handles a (head, sample); its warps share the keys and join their softmax states in the warps' order. */
template <bool CAP, typename T>
KERNEL(DECODE_WARPS *WARP, 2)
attention_step(flash_rows<T> y, const T *k_cache, const T *v_cache, flash_rows<const T> q, const int32_t *positions,
               int64_t capacity, launch_heads at, const T *sinks)
{
    SHARED(float, rows, DECODE_WARPS *MOST_HEAD_SIZE);
    SHARED(float, most, DECODE_WARPS);
    SHARED(float, sums, DECODE_WARPS);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, size = at.head_size, v_size = at.v_head_size;
    int head = (int)blockIdx.x, kv_head = heads_read(head, at.heads, at.kv_heads);
    int64_t sample = blockIdx.y, k_pitch = (int64_t)at.kv_heads * size, v_pitch = (int64_t)at.kv_heads * v_size;
    head_keys<T> keys = {k_cache + sample * capacity * k_pitch + kv_head * size,
                         v_cache + sample * capacity * v_pitch + kv_head * v_size,
                         k_pitch,
                         v_pitch,
                         size,
                         v_size};
    float *row = rows + warp * MOST_HEAD_SIZE;
    int32_t position = positions[sample], first = token_first_key(position, at.window, 0);
    stage_row(row, q.at(sample, head, size), size);
    seen s = attend(row, keys, first + warp * WARP, token_last_key(position) + 1, DECODE_WARPS * WARP,
                    score_of<CAP>{at.scale, at.cap}, warp == 0 ? sink_of(sinks, head) : -INFINITY);
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
    for (int column = (int)threadIdx.x; column < v_size; column += DECODE_WARPS * WARP) {
        float out = 0;
        for (int k = 0; k < DECODE_WARPS; k++)
            out += rows[k * MOST_HEAD_SIZE + column] * expf(most[k] - top);
        from_float(y.at(sample, head, v_size)[column], out / total);
    }
}

/* ---- host side ----------------------------------------------------------------------------------------------- */

static bool refused(const launch_heads &at)
{
    return at.head_size > MOST_HEAD_SIZE || at.v_head_size > MOST_HEAD_SIZE || !heads_divide(at.heads, at.kv_heads);
}

static bool refused(const launch_attention_operands *of)
{
    return refused(of->at) || of->keys % of->at.sequence || of->run < 1 || of->tokens % of->run ||
           (!of->token_positions && (of->run != of->at.sequence || of->tokens != of->keys));
}

/* The grid of a block for WARPS rows of each of `parts` parts of `rows`. */
static dim3 grid_of(int64_t rows, int heads, int64_t parts)
{
    return dim3(blocks_for(rows, WARPS), (unsigned)heads, (unsigned)parts);
}

/* Calls f with a value of the type and whether scores are capped. */
template <typename F> static int with_score(int type, const launch_heads &at, F f)
{
    return with_type(type, [&](auto t) { return with_cap(at.cap, [&](auto capped) { return f(t, capped); }); });
}

/* v: its columns give the width of a head's values */
static launch_heads heads_of(const op *o, const tensor *v)
{
    const op_heads &heads = o->at.heads;
    const op_attention &at = o->at.attention;
    return {heads.q,     heads.kv,  heads.size, (int32_t)attention_v_head_size(o, v),
            at.sequence, at.window, at.scale,   at.cap};
}

/* in: q, k, v; masks: document_start, places */
static launch_attention_operands operands_of(const op *o, const run_context *r, tensor *const *in, const tensor *y,
                                             const tensor *lse, tensor *const *masks)
{
    launch_attention_operands of = {};
    of.q = matrix(in[0], r);
    of.k = matrix(in[1], r);
    of.v = matrix(in[2], r);
    of.y = matrix(y, r);
    of.lse = whole<float>(o, lse, r);
    of.document_start = data<const int32_t>(masks[0], r);
    of.token_positions = data<const int32_t>(masks[1], r);
    of.tokens = in[0]->shape[0];
    of.keys = in[1]->shape[0];
    of.run = attention_run(o);
    of.at = heads_of(o, in[2]);
    return of;
}

static int attend_all(void *stream, int type, const launch_attention_operands *of)
{
    if (refused(of))
        return (int)cudaErrorInvalidValue;
    if (flash_takes(type, of->at, of->q, of->k, of->v, of->y))
        return flash_forward(stream, type, of);
    return with_score(type, of->at, [&](auto t, auto capped) {
        using T = decltype(t);
        return launch(attention_forward<decltype(capped)::value, T>,
                      grid_of(of->run, of->at.heads, of->tokens / of->run), THREADS, 0, stream, flash_rows_of<T>(of->y),
                      flash_of<T>(of), of->at.head_size, of->at.v_head_size);
    });
}

/* Writes y, lse, which its gradient reads, and the max logits. */
void cuda_attention(const op *o, const run_context *r)
{
    if (op_run_prepared(o, r))
        return;
    launch_attention_operands of = operands_of(o, r, o->in, o->out[0], o->out[1], &o->in[3]);
    of.sinks = data(o->in[5], r);
    of.max_logit = data<float>(o->out[2], r);
    of.max_logit_pitch = o->out[2] ? o->out[2]->pitch : 0;
    cuda_launched(o, attend_all(r->stream, o->in[0]->type, &of));
}

template <typename T>
static int delta_of(void *stream, float *delta, launch_matrix dy, launch_matrix y, int64_t tokens, launch_heads at)
{
    constexpr int V = VECTOR<T>;
    /* enough lanes that each pass of a warp is over its own tokens */
    int32_t size = at.v_head_size, lanes = WARPS * WARP / DELTA_TOKENS;
    bool wide = size % V == 0 && dy.pitch % V == 0 && y.pitch % V == 0 && aligned_all(dy.at, y.at);
    while (lanes < WARP && lanes * (wide ? V : 1) < size)
        lanes *= 2;
    auto kernel = wide ? attention_delta<T, V> : attention_delta<T, 1>;
    dim3 grid((unsigned)at.heads, blocks_for(tokens, DELTA_TOKENS), 1);
    return launch(kernel, grid, THREADS, 0, stream, delta, (const T *)dy.at, dy.pitch, (const T *)y.at, y.pitch, tokens,
                  size, lanes);
}

CUDA_SCRATCH(cuda_attention_grad_scratch, o->in[1]->shape[0] * o->at.heads.q * (int64_t)sizeof(float))

static int attend_back(void *stream, int type, const launch_attention_gradients *to,
                       const launch_attention_operands *of)
{
    const launch_heads &at = of->at;
    if (refused(of))
        return (int)cudaErrorInvalidValue;
    int failed = with_type(
        type, [&](auto t) { return delta_of<decltype(t)>(stream, to->scratch, to->dy, of->y, of->tokens, at); });
    if (failed)
        return failed;
    if (flash_takes(type, at, of->q, of->k, of->v, to->dq, to->dk, to->dv, to->dy))
        return flash_backward(stream, type, to, of);
    return with_score(type, at, [&](auto t, auto capped) {
        using T = decltype(t);
        auto kernel_q = attention_grad_q<decltype(capped)::value, T>;
        auto kernel_kv = attention_grad_kv<decltype(capped)::value, T>;
        LAUNCH(kernel_q, grid_of(of->run, at.heads, of->tokens / of->run), THREADS, 0, (cudaStream_t)stream,
               flash_rows_of<T>(to->dq), flash_rows_of<const T>(to->dy), to->scratch, flash_of<T>(of), at.head_size,
               at.v_head_size);
        return launch(kernel_kv, grid_of(at.sequence, at.kv_heads, of->keys / at.sequence), THREADS, 0, stream,
                      flash_rows_of<T>(to->dk), flash_rows_of<T>(to->dv), flash_rows_of<const T>(to->dy), to->scratch,
                      flash_of<T>(of), at.head_size, at.v_head_size);
    });
}

void cuda_attention_grad(const op *o, const run_context *r)
{
    if (op_run_prepared(o, r))
        return;
    const launch_attention_operands of = operands_of(o, r, &o->in[1], o->in[4], o->in[5], &o->in[6]);
    const launch_attention_gradients to = {matrix(o->out[0], r), matrix(o->out[1], r), matrix(o->out[2], r),
                                           matrix(o->in[0], r), data<float>(o->scratch, r)};
    cuda_launched(o, attend_back(r->stream, o->in[1]->type, &to, &of));
}

CUDA_SCRATCH(cuda_attention_sinks_grad_scratch, o->in[0]->shape[0] * o->at.heads.q * (int64_t)sizeof(float))

void cuda_attention_sinks_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *lse = o->in[2];
    float *scratch = data<float>(o->scratch, r);
    launch_heads at = {};
    at.heads = o->at.heads.q;
    at.v_head_size = (int32_t)(dy->shape[1] / at.heads);
    cuda_launched(
        o, with_type(dy->type, [&](auto t) {
            using T = decltype(t);
            int failed = delta_of<T>(r->stream, scratch, matrix(dy, r), matrix(o->in[1], r), dy->shape[0], at);
            if (failed)
                return failed;
            return launch(sinks_grad<T>, (unsigned)at.heads, SINK_THREADS, 0, r->stream, data<float>(o->out[0], r),
                          scratch, whole<const float>(o, lse, r), (int32_t)lse->shape[1], data<const T>(o->in[3], r),
                          dy->shape[0], o->at.accumulate != OP_WRITES);
        }));
}

static int attend_next(const op *o, const run_context *r)
{
    const launch_heads at = heads_of(o, o->in[2]);
    const int64_t samples = o->in[0]->shape[0], capacity = o->in[4]->shape[1];
    const int32_t *positions = data<const int32_t>(o->in[3], r);
    void *k_cache = whole(o, o->in[4], r), *v_cache = whole(o, o->in[5], r);
    if (refused(at))
        return (int)cudaErrorInvalidValue;
    return with_score(o->in[0]->type, at, [&](auto t, auto capped) {
        using T = decltype(t);
        const int32_t k_columns = at.kv_heads * at.head_size, v_columns = at.kv_heads * at.v_head_size;
        auto append = cache_append<T>;
        auto step = attention_step<decltype(capped)::value, T>;
        LAUNCH(append, blocks_for(samples * k_columns, 256), 256, 0, (cudaStream_t)r->stream, (T *)k_cache,
               flash_rows_of<const T>(matrix(o->in[1], r)), positions, samples * k_columns, capacity, k_columns);
        LAUNCH(append, blocks_for(samples * v_columns, 256), 256, 0, (cudaStream_t)r->stream, (T *)v_cache,
               flash_rows_of<const T>(matrix(o->in[2], r)), positions, samples * v_columns, capacity, v_columns);
        return launch(step, dim3((unsigned)at.heads, (unsigned)samples, 1), DECODE_WARPS * WARP, 0, r->stream,
                      flash_rows_of<T>(matrix(o->out[0], r)), (const T *)k_cache, (const T *)v_cache,
                      flash_rows_of<const T>(matrix(o->in[0], r)), positions, capacity, at, data<const T>(o->in[6], r));
    });
}

CUDA_OP(attention_decode, cuda_launched(o, attend_next(o, r)))
