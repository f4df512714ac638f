/* Ops on single heads of q and k: rotary positions (2104.09864) and the RMSNorm of each (Qwen3). */
#include "kernels/cuda/vector.cuh"

static constexpr int THREADS = 256, WARPS = THREADS / WARP, MOST_HEAD_SIZE = 256, LANE_COLUMNS = MOST_HEAD_SIZE / WARP,
                     MOST_BLOCKS = 512, PAIRS_A_WARP = 8;

/* Finds the beginning of head `head` of a token: first the heads of q, then the heads of k. */
template <typename T> struct head_rows {
    T *q, *k;
    int64_t q_pitch, k_pitch;
    int32_t heads, size;

    __device__ T *at(int64_t token, int32_t head) const
    {
        return head < heads ? q + token * q_pitch + (int64_t)head * size
                            : k + token * k_pitch + (int64_t)(head - heads) * size;
    }
};

/* V pairs (a, b) of a head, from pair `first` on: elements i and half + i, or the neighbours 2i and 2i + 1. */
template <bool INTERLEAVED> struct pairs_of {
    template <typename T, int V>
    static __device__ void load_pairs(float (&a)[V], float (&b)[V], const T *head, int32_t first, int32_t half)
    {
        load(a, head + first);
        load(b, head + half + first);
    }

    template <typename T, int V>
    static __device__ void store_pairs(T *head, const float (&a)[V], const float (&b)[V], int32_t first, int32_t half)
    {
        store(head + first, a);
        store(head + half + first, b);
    }
};

template <> struct pairs_of<true> {
    template <typename T, int V>
    static __device__ void load_pairs(float (&a)[V], float (&b)[V], const T *head, int32_t first, int32_t)
    {
        float low[V], high[V];
        load(low, head + 2 * first);
        load(high, head + 2 * first + V);
        UNROLL for (int i = 0; i < V; i++)
        {
            a[i] = 2 * i < V ? low[2 * i % V] : high[2 * i % V];
            b[i] = 2 * i + 1 < V ? low[(2 * i + 1) % V] : high[(2 * i + 1) % V];
        }
    }

    template <typename T, int V>
    static __device__ void store_pairs(T *head, const float (&a)[V], const float (&b)[V], int32_t first, int32_t)
    {
        float low[V], high[V];
        UNROLL for (int i = 0; i < V; i++)
        {
            low[i] = i % 2 ? b[i / 2] : a[i / 2];
            high[i] = (V + i) % 2 ? b[(V + i) / 2] : a[(V + i) / 2];
        }
        store(head + 2 * first, low);
        store(head + 2 * first + V, high);
    }
};

/* The part of each head that rotates: 2 half elements, in q after `front` others. `copied` elements stay as they are:
 * the front ones, which a head of k does not have, then the ones past the rotated part. */
struct rotated_part {
    int32_t half, front, copied;
};

/* (a, b) -> (a cos - b sin, b cos + a sin), cos, sin = table[position, i], table[position, half + i]; sign -1 turns
 * back. A thread handles V pairs of one of the `all` heads of q and k, or copies V elements. */
template <typename T, int V, bool INTERLEAVED>
KERNEL(THREADS, 4)
rope_rotate(head_rows<T> y, head_rows<T> x, const int32_t *positions, const float *table, int64_t items,
          int64_t table_pitch, rotated_part part, int32_t all, float sign)
{
    int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (item >= items)
        return;
    int32_t half = part.half, rotated_pieces = half / V, pieces = rotated_pieces + part.copied / V;
    int32_t piece = (int32_t)(item % pieces), head = (int32_t)(item / pieces % all);
    int64_t token = item / pieces / all;
    int32_t front = head < x.heads ? part.front : 0;
    if (piece >= rotated_pieces) {
        float a[V];
        int32_t column = (piece - rotated_pieces) * V;
        if (column >= part.front)
            column += front + 2 * half - part.front;
        else if (front == 0)
            return;
        load(a, x.at(token, head) + column);
        store(y.at(token, head) + column, a);
        return;
    }
    using pairs = pairs_of<INTERLEAVED>;
    const float *row = table + positions[token] * table_pitch + piece * V;
    float a[V], b[V], cosine[V], sine[V];
    pairs::load_pairs(a, b, x.at(token, head) + front, piece * V, half);
    load(cosine, row);
    load(sine, row + half);
    UNROLL for (int i = 0; i < V; i++)
    {
        float s = sine[i] * sign, first = a[i];
        a[i] = first * cosine[i] - b[i] * s;
        b[i] = b[i] * cosine[i] + first * s;
    }
    pairs::store_pairs(y.at(token, head) + front, a, b, piece * V, half);
}

/* A warp handles a head: y = x rstd (w + offset). */
template <typename T>
KERNEL(THREADS, 4)
head_norm_forward(head_rows<T> y, head_rows<T> x, float *rstd, const T *wq, const T *wk, int64_t pairs, int32_t all,
                  float epsilon, float offset)
{
    int lane = (int)threadIdx.x % WARP, size = x.size;
    int64_t pair = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (pair >= pairs)
        return;
    int64_t token = pair / all;
    int32_t head = (int32_t)(pair % all);
    const T *w = head < x.heads ? wq : wk, *from = x.at(token, head);
    T *to = y.at(token, head);
    float a[LANE_COLUMNS], squares = 0;
    UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
    {
        int column = i * WARP + lane;
        a[i] = column < size ? to_float(from[column]) : 0.0f;
        squares += a[i] * a[i];
    }
    float scale = 1.0f / sqrtf(warp_sum(squares) / (float)size + epsilon);
    if (lane == 0)
        rstd[pair] = scale;
    UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
    {
        int column = i * WARP + lane;
        if (column < size)
            from_float(to[column], a[i] * scale * (to_float(w[column]) + offset));
    }
}

/* w stands for w + offset: dx = rstd (dy w - n mean(dy w n)), n = x rstd; a warp walks over heads and sums dwq and dwk
 * in its registers. partials[block, dwq | dwk]. The walk counts v's heads among a token's and skips them: the order of
 * the sums was settled with them. */
template <typename T>
KERNEL(THREADS, 2)
head_norm_backward(head_rows<T> dx, head_rows<T> dy, head_rows<T> x, float *partials, const T *wq, const T *wk,
                   const float *rstd, int64_t pairs, int32_t kv_heads, float offset)
{
    SHARED(float, part, WARPS * 2 * MOST_HEAD_SIZE);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, size = x.size, heads = x.heads;
    int all = heads + kv_heads, walked = all + kv_heads;
    float sum_q[LANE_COLUMNS] = {}, sum_k[LANE_COLUMNS] = {};
    for (int64_t pair = (int64_t)blockIdx.x * WARPS + warp; pair < pairs; pair += (int64_t)gridDim.x * WARPS) {
        int64_t token = pair / walked;
        int32_t head = (int32_t)(pair % walked);
        if (head >= all)
            continue;
        const T *w = head < heads ? wq : wk, *dy_row = dy.at(token, head), *x_row = x.at(token, head);
        T *to = dx.at(token, head);
        float scale = rstd[token * all + head], along = 0;
        float d[LANE_COLUMNS], n[LANE_COLUMNS], g[LANE_COLUMNS];
        UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
        {
            int column = i * WARP + lane;
            bool inside = column < size;
            d[i] = inside ? to_float(dy_row[column]) : 0.0f;
            n[i] = inside ? to_float(x_row[column]) * scale : 0.0f;
            g[i] = inside ? d[i] * (to_float(w[column]) + offset) : 0.0f;
            along += g[i] * n[i];
            if (head < heads)
                sum_q[i] += d[i] * n[i];
            else
                sum_k[i] += d[i] * n[i];
        }
        along = warp_sum(along) / (float)size;
        UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
        {
            int column = i * WARP + lane;
            if (column < size)
                from_float(to[column], scale * (g[i] - n[i] * along));
        }
    }
    UNROLL for (int i = 0; i < LANE_COLUMNS; i++)
    {
        part[(warp * 2 + 0) * MOST_HEAD_SIZE + i * WARP + lane] = sum_q[i];
        part[(warp * 2 + 1) * MOST_HEAD_SIZE + i * WARP + lane] = sum_k[i];
    }
    block_barrier();
    for (int i = (int)threadIdx.x; i < 2 * size; i += THREADS) {
        float total = 0;
        for (int k = 0; k < WARPS; k++)
            total += part[(k * 2 + i / size) * MOST_HEAD_SIZE + i % size];
        partials[(int64_t)blockIdx.x * 2 * size + i] = total;
    }
}

template <typename T> static head_rows<T> rows_of(const op *o, const run_context *r, const tensor *q, const tensor *k)
{
    return {data<T>(q, r), data<T>(k, r), q->pitch, k->pitch, o->at.heads.q, o->at.heads.size};
}

void cuda_rope(const op *o, const run_context *r)
{
    const tensor *const t[] = {o->out[0], o->out[1], o->in[0], o->in[1]}, *table = o->in[3];
    const int32_t rotated = (int32_t)table->shape[1], size = o->at.heads.size, all = o->at.heads.q + latent_key_heads(o);
    bool in_place = data(t[0], r) == data(t[2], r) && data(t[1], r) == data(t[3], r);
    rotated_part part = {rotated / 2, (int32_t)latent_unrotated(o), in_place ? 0 : size - rotated};
    auto is_wide = [&](int vector) {
        bool wide = part.half % vector == 0 && size % vector == 0 && part.front % vector == 0 &&
                    table->pitch % 4 == 0 && aligned(data(table, r), 16);
        for (const tensor *each : t)
            wide = wide && each->pitch % vector == 0 && aligned(data(each, r), 16);
        return wide;
    };
    cuda_launched(o, with_access(o->in[0]->type, is_wide, [&](auto type, auto v) {
                      using T = decltype(type);
                      int64_t items = t[2]->shape[0] * all * ((part.half + part.copied) / v());
                      auto kernel = o->at.rotation.interleaved ? rope_rotate<T, v(), true> : rope_rotate<T, v(), false>;
                      return launch(kernel, blocks_for(items, THREADS), THREADS, 0, r->stream,
                                    rows_of<T>(o, r, t[0], t[1]), rows_of<T>(o, r, t[2], t[3]),
                                    data<const int32_t>(o->in[2], r), data<const float>(table, r), items, table->pitch,
                                    part, all, o->at.rotation.inverse ? -1.0f : 1.0f);
                  }));
}

void cuda_head_norm(const op *o, const run_context *r)
{
    const int32_t all = o->at.heads.q + o->at.heads.kv;
    const int64_t pairs = o->in[0]->shape[0] * all;
    cuda_launched(
        o, o->at.heads.size > MOST_HEAD_SIZE ? (int)cudaErrorInvalidValue : with_type(o->in[0]->type, [&](auto t) {
            using T = decltype(t);
            return launch(head_norm_forward<T>, blocks_for(pairs, WARPS), THREADS, 0, r->stream,
                          rows_of<T>(o, r, o->out[0], o->out[1]), rows_of<T>(o, r, o->in[0], o->in[1]),
                          data<float>(o->out[2], r), data<const T>(o->in[2], r), data<const T>(o->in[3], r), pairs, all,
                          o->at.norm.epsilon, o->at.norm.offset);
        }));
}

static int64_t walked_heads(const op *o)
{
    return o->in[2]->shape[0] * (o->at.heads.q + 2 * o->at.heads.kv);
}

static int64_t grad_blocks(const op *o)
{
    int64_t blocks = divide_up(walked_heads(o), (int64_t)WARPS * PAIRS_A_WARP);
    return blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks;
}

CUDA_SCRATCH(cuda_head_norm_grad_scratch, grad_blocks(o) * 2 * o->at.heads.size * (int64_t)sizeof(float))

static int norm_heads_back(const op *o, const run_context *r)
{
    const int32_t size = o->at.heads.size;
    if (size > MOST_HEAD_SIZE)
        return (int)cudaErrorInvalidValue;
    const int64_t blocks = grad_blocks(o);
    float *scratch = data<float>(o->scratch, r);
    int failed = with_type(o->in[2]->type, [&](auto t) {
        using T = decltype(t);
        return launch(head_norm_backward<T>, (unsigned)blocks, THREADS, 0, r->stream,
                      rows_of<T>(o, r, o->out[0], o->out[1]), rows_of<T>(o, r, o->in[0], o->in[1]),
                      rows_of<T>(o, r, o->in[2], o->in[3]), scratch, data<const T>(o->in[4], r),
                      data<const T>(o->in[5], r), data<const float>(o->in[6], r), walked_heads(o), o->at.heads.kv,
                      o->at.norm.offset);
    });
    for (int i = 0; i < 2 && !failed; i++)
        failed = reduce_partials(r->stream, data<float>(o->out[2 + i], r), scratch + i * size, blocks, size, 2 * size,
                                 o->at.accumulate != OP_WRITES);
    return failed;
}

CUDA_OP(head_norm_grad, cuda_launched(o, norm_heads_back(o, r)))
