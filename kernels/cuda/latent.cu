/* Multi-head latent attention (2405.04434): joins and splits the keys of all heads, and decodes one new token a sample
 * over a cache of latents without making its keys and values. */
#include "kernels/cuda/vector.cuh"

static constexpr int THREADS = 256, WARPS = THREADS / WARP, CHUNK = THREADS; /* rows of the cache at a time */

template <typename T> struct key_rows {
    T *k, *kn, *kr;
    int64_t k_pitch, kn_pitch, kr_pitch;
    int32_t heads, nope, rope;
};

/* V elements of k a thread */
template <typename T, int V> KERNEL(THREADS, 8) join_rows(key_rows<T> to, int64_t items)
{
    int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (item >= items)
        return;
    int32_t size = to.nope + to.rope, columns = to.heads * size;
    int64_t token = item / (columns / V);
    int32_t column = (int32_t)(item % (columns / V)) * V, head = column / size, within = column % size;
    float a[V];
    load(a, within < to.nope ? to.kn + token * to.kn_pitch + head * to.nope + within
                             : to.kr + token * to.kr_pitch + within - to.nope);
    store(to.k + token * to.k_pitch + column, a);
}

/* V elements of kn a thread, or V of kr, which are sums over heads in ascending order */
template <typename T, int V> KERNEL(THREADS, 4) split_rows(key_rows<T> of, int64_t items)
{
    int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (item >= items)
        return;
    int32_t size = of.nope + of.rope, own = of.heads * of.nope, pieces = (own + of.rope) / V;
    int64_t token = item / pieces;
    int32_t column = (int32_t)(item % pieces) * V;
    const T *k = of.k + token * of.k_pitch;
    float a[V], sum[V] = {};
    if (column < own) {
        load(a, k + column / of.nope * size + column % of.nope);
        store(of.kn + token * of.kn_pitch + column, a);
        return;
    }
    for (int32_t head = 0; head < of.heads; head++) {
        load(a, k + head * size + of.nope + column - own);
        UNROLL for (int i = 0; i < V; i++) sum[i] += a[i];
    }
    store(of.kr + token * of.kr_pitch + column - own, sum);
}

/* ---- one new token ----------------------------------------------------------------------------------------------- */

template <typename T> struct latent_in {
    T *y, *cache;
    const T *q, *latent, *kr, *w;
    int64_t y_pitch, q_pitch, latent_pitch, kr_pitch, w_pitch, capacity;
    const int32_t *positions;
    int32_t heads, nope, rope, v_size, rank;
    float scale;
};

/* Writes the new rows of samples into their cache; a thread an element. */
template <typename T> KERNEL(THREADS, 4) latent_append(latent_in<T> in, int64_t items)
{
    int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (item >= items)
        return;
    int32_t width = in.rank + in.rope, column = (int32_t)(item % width);
    int64_t sample = item / width;
    in.cache[(sample * in.capacity + in.positions[sample]) * width + column] =
        column < in.rank ? in.latent[sample * in.latent_pitch + column]
                         : in.kr[sample * in.kr_pitch + column - in.rank];
}

/* The dot product of a row of T and one of floats in shared memory, by a warp: the same in all its lanes. */
template <typename T> DEVICE float warp_dot(const float *a, const T *b, int32_t size)
{
    float sum = 0;
    for (int32_t i = (int32_t)threadIdx.x % WARP; i < size; i += WARP)
        sum += a[i] * to_float(b[i]);
    return warp_sum(sum);
}

/* query[rank + rope] = Wk^T q_nope, then the rotated part of q, by a block */
template <typename T> DEVICE void absorb_query(float *query, const latent_in<T> &in, const T *q, int32_t head)
{
    const T *w = in.w + (int64_t)head * in.nope * in.w_pitch;
    for (int32_t column = (int32_t)threadIdx.x; column < in.rank + in.rope; column += THREADS) {
        float sum = 0;
        if (column >= in.rank)
            sum = to_float(q[in.nope + column - in.rank]);
        else
            for (int32_t i = 0; i < in.nope; i++)
                sum += to_float(q[i]) * to_float(w[i * in.w_pitch + column]);
        query[column] = sum;
    }
}

/* A chunk's softmax statistics, alike in every thread. */
struct chunk_state {
    float most, total, shrink;
};

/* Turns scores[count] into exp(score - most) with the largest score so far, by the block; earlier sums must be
 * multiplied by `shrink`. */
DEVICE chunk_state weigh(float *scores, int32_t count, const chunk_state &before)
{
    float most = before.most, own = 0, p = 0;
    for (int32_t i = (int32_t)threadIdx.x % WARP; i < count; i += WARP)
        most = fmaxf(most, scores[i]);
    most = warp_largest(most);
    for (int32_t i = (int32_t)threadIdx.x % WARP; i < count; i += WARP)
        own += expf(scores[i] - most);
    if ((int32_t)threadIdx.x < count)
        p = expf(scores[threadIdx.x] - most);
    block_barrier(); /* no warp reads scores any more */
    scores[threadIdx.x] = p;
    block_barrier(); /* probabilities are there */
    float shrink = expf(before.most - most);
    return {most, before.total * shrink + warp_sum(own), shrink};
}

/* A block per (head, sample) goes over the cache by chunks: warps make scores, a row each, then threads sum latents, a
 * column each, rescaling older sums as the largest score grows. Shared memory: query[rank + rope], sums[rank]. */
template <typename T> KERNEL(THREADS, 2) latent_step(latent_in<T> in)
{
    SHARED_DYNAMIC(dynamic);
    SHARED(float, scores, CHUNK);
    float *query = reinterpret_cast<float *>(dynamic), *sums = query + in.rank + in.rope;
    int warp = (int)threadIdx.x / WARP, head = (int)blockIdx.x;
    int64_t sample = blockIdx.y, width = in.rank + in.rope;
    const T *cache = in.cache + sample * in.capacity * width;
    absorb_query(query, in, in.q + sample * in.q_pitch + (int64_t)head * (in.nope + in.rope), head);
    for (int32_t column = (int32_t)threadIdx.x; column < in.rank; column += THREADS)
        sums[column] = 0;
    block_barrier(); /* the query is there */
    chunk_state seen = {-INFINITY, 0, 0};
    int32_t end = in.positions[sample] + 1;
    for (int32_t first = 0; first < end; first += CHUNK) {
        int32_t count = end - first < CHUNK ? end - first : CHUNK;
        const T *rows = cache + first * width;
        for (int32_t i = warp; i < count; i += WARPS) {
            float score = in.scale * warp_dot(query, rows + i * width, (int32_t)width);
            if (threadIdx.x % WARP == 0)
                scores[i] = score;
        }
        block_barrier(); /* the chunk's scores are there */
        seen = weigh(scores, count, seen);
        for (int32_t column = (int32_t)threadIdx.x; column < in.rank; column += THREADS) {
            float sum = sums[column] * seen.shrink;
            for (int32_t i = 0; i < count; i++)
                sum += scores[i] * to_float(rows[i * width + column]);
            sums[column] = sum;
        }
        block_barrier(); /* no thread reads the chunk's probabilities any more, and the sums are there */
    }
    T *y = in.y + sample * in.y_pitch + (int64_t)head * in.v_size;
    const T *w = in.w + ((int64_t)in.heads * in.nope + (int64_t)head * in.v_size) * in.w_pitch;
    for (int32_t j = warp; j < in.v_size; j += WARPS) {
        float out = warp_dot(sums, w + j * in.w_pitch, in.rank) / seen.total;
        if (threadIdx.x % WARP == 0)
            from_float(y[j], out);
    }
}

/* ---- host side ----------------------------------------------------------------------------------------------- */

/* Launches `kernel` of (T(), V()) over the keys of all heads; a token has pieces(V) of V elements. */
template <typename P, typename K>
static void each_piece(const op *o, const run_context *r, const tensor *k, const tensor *kn, const tensor *kr, P pieces,
                       K kernel_of)
{
    const int32_t heads = o->at.heads.q, nope = o->at.heads.size, rope = (int32_t)kr->shape[1];
    auto is_wide = [&](int vector) {
        return nope % vector == 0 && rope % vector == 0 && k->pitch % vector == 0 && kn->pitch % vector == 0 &&
               kr->pitch % vector == 0 && aligned_all(data(k, r), data(kn, r), data(kr, r));
    };
    cuda_launched(
        o, heads < 1 || nope < 1 || rope < 1
               ? (int)cudaErrorInvalidValue
               : with_access(k->type, is_wide, [&](auto t, auto v) {
                     using T = decltype(t);
                     const key_rows<T> rows = {data<T>(k, r), data<T>(kn, r), data<T>(kr, r), k->pitch, kn->pitch,
                                               kr->pitch,     heads,          nope,           rope};
                     int64_t items = k->shape[0] * pieces(rows, v());
                     return launch(kernel_of(t, v), blocks_for(items, THREADS), THREADS, 0, r->stream, rows, items);
                 }));
}

/* writes k */
void cuda_join_keys(const op *o, const run_context *r)
{
    each_piece(
        o, r, o->out[0], o->in[0], o->in[1],
        [](const auto &of, int vector) { return (int64_t)of.heads * ((of.nope + of.rope) / vector); },
        [](auto t, auto v) { return join_rows<decltype(t), v()>; });
}

/* writes kn and kr of k, all of them cotangents */
void cuda_split_keys(const op *o, const run_context *r)
{
    each_piece(
        o, r, o->in[0], o->out[0], o->out[1],
        [](const auto &of, int vector) { return ((int64_t)of.heads * of.nope + of.rope) / vector; },
        [](auto t, auto v) { return split_rows<decltype(t), v()>; });
}

/* cudaErrorInvalidValue where a head's sums do not fit into a block's shared memory: 2 rank + rope floats of 4 bytes */
static int decode(const op *o, const run_context *r)
{
    const tensor *q = o->in[0], *latent = o->in[1], *kr = o->in[2], *w = o->in[3], *cache = o->in[5], *y = o->out[0];
    const latent_sizes of = latent_sizes_of(o);
    const int64_t samples = q->shape[0], items = samples * of.width,
                  bytes = (of.width + of.rank) * (int64_t)sizeof(float);
    if (of.heads < 1 || of.nope < 1 || of.rope < 1 || of.rank < 1 || bytes > max_dynamic_shared())
        return (int)cudaErrorInvalidValue;
    return with_type(q->type, [&](auto t) {
        using T = decltype(t);
        auto append = latent_append<T>;
        auto step = latent_step<T>;
        const latent_in<T> in = {data<T>(y, r),
                                 whole<T>(o, cache, r),
                                 data<const T>(q, r),
                                 data<const T>(latent, r),
                                 data<const T>(kr, r),
                                 data<const T>(w, r),
                                 y->pitch,
                                 q->pitch,
                                 latent->pitch,
                                 kr->pitch,
                                 w->pitch,
                                 cache->shape[1],
                                 data<const int32_t>(o->in[4], r),
                                 (int32_t)of.heads,
                                 (int32_t)of.nope,
                                 (int32_t)of.rope,
                                 (int32_t)of.v_head_size,
                                 (int32_t)of.rank,
                                 o->at.attention.scale};
        LAUNCH(append, blocks_for(items, THREADS), THREADS, 0, (cudaStream_t)r->stream, in, items);
        return launch(step, dim3((unsigned)of.heads, (unsigned)samples, 1), THREADS, (int)bytes, r->stream, in);
    });
}

CUDA_OP(latent_decode, cuda_launched(o, decode(o, r)))
