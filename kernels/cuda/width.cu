/* RMSNorm of queries and of keys over all their heads (OLMo 2), which tensor ranks divide: sums of a rank's squares,
 * and of its products in the gradient, leave the device between the steps, to be added over the ranks.
 *
 * A block has one row, of q or of k; only where weights' gradients are made it walks over several, each column a
 * thread's own, and the blocks' shares are added afterwards.
 */
#include "kernels/cuda/vector.cuh"

static constexpr int MOST_THREADS = 512, GRAD_THREADS = 256, ROWS_A_BLOCK = 8, MOST_BLOCKS = 384;

/* A kernel's operands of q, or of k: y is written, dx where there is dy. */
template <typename T> struct side {
    T *y;
    const T *dy, *x, *w;
    int64_t y_pitch, dy_pitch, x_pitch, columns;
    float width;
};

/* [tokens, 2] */
struct sums_of_rows {
    float *at;
    int64_t pitch;

    __device__ float &of(int64_t token, int which) const
    {
        return at[token * pitch + which];
    }
};

struct norm_of {
    float epsilon, offset;
};

template <typename T> DEVICE float scale_of(const side<T> &s, float squares, norm_of n)
{
    return 1.0f / sqrtf(squares / s.width + n.epsilon);
}

template <typename T, int V> KERNEL(MOST_THREADS, 2) sum_squares(side<T> q, side<T> k, sums_of_rows squares)
{
    int which = (int)(blockIdx.x % 2);
    int64_t token = blockIdx.x / 2;
    const side<T> s = which ? k : q;
    float sum = 0;
    for (int64_t column = (int64_t)threadIdx.x * V; column < s.columns; column += (int64_t)blockDim.x * V) {
        float x[V];
        load(x, s.x + token * s.x_pitch + column);
        UNROLL for (int i = 0; i < V; i++) sum += x[i] * x[i];
    }
    sum = block_sum(sum, 0).a;
    if (threadIdx.x == 0)
        squares.of(token, which) = sum;
}

template <typename T, int V> KERNEL(MOST_THREADS, 2) normalise(side<T> q, side<T> k, sums_of_rows squares, norm_of n)
{
    int which = (int)(blockIdx.x % 2);
    int64_t token = blockIdx.x / 2;
    const side<T> s = which ? k : q;
    float scale = scale_of(s, squares.of(token, which), n);
    for (int64_t column = (int64_t)threadIdx.x * V; column < s.columns; column += (int64_t)blockDim.x * V) {
        float x[V], w[V];
        load(x, s.x + token * s.x_pitch + column);
        load(w, s.w + column);
        UNROLL for (int i = 0; i < V; i++) x[i] = x[i] * scale * (w[i] + n.offset);
        store(s.y + token * s.y_pitch + column, x);
    }
}

/* dots[token] = sum dy (w + offset) n, n = x rstd; partials[block, columns]: sums of dy n over the block's rows, all
 * blocks' of q before all of k; dynamic shared memory: a row of floats if HELD. */
template <typename T, int V, bool HELD>
KERNEL(GRAD_THREADS, 3)
sum_products(side<T> q, side<T> k, sums_of_rows squares, sums_of_rows dots, float *partials, int64_t tokens, norm_of n)
{
    SHARED_DYNAMIC(dynamic);
    int which = (int)(blockIdx.x % 2);
    int64_t block = blockIdx.x / 2, blocks = gridDim.x / 2, step = (int64_t)blockDim.x * V;
    const side<T> s = which ? k : q;
    float *to = partials + (which ? blocks * q.columns : 0) + block * s.columns;
    float *dw = HELD ? reinterpret_cast<float *>(dynamic) : to;
    const float zeros[V] = {};
    for (int64_t column = (int64_t)threadIdx.x * V; column < s.columns; column += step)
        store_kept<HELD>(dw, column, zeros);
    for (int64_t token = block; token < tokens; token += blocks) {
        float scale = scale_of(s, squares.of(token, which), n), dot = 0;
        for (int64_t column = (int64_t)threadIdx.x * V; column < s.columns; column += step) {
            float d[V], x[V], w[V], sum[V];
            load(d, s.dy + token * s.dy_pitch + column);
            load(x, s.x + token * s.x_pitch + column);
            load(w, s.w + column);
            load_kept<HELD>(sum, dw, column);
            UNROLL for (int i = 0; i < V; i++)
            {
                x[i] *= d[i] * scale;
                dot += x[i] * (w[i] + n.offset);
                sum[i] += x[i];
            }
            store_kept<HELD>(dw, column, sum);
        }
        dot = block_sum(dot, 0).a;
        if (threadIdx.x == 0)
            dots.of(token, which) = dot;
    }
    for (int64_t column = (int64_t)threadIdx.x * V; HELD && column < s.columns; column += step) {
        float sum[V];
        load_kept<HELD>(sum, dw, column);
        store(to + column, sum);
    }
}

/* dx = rstd (dy (w + offset) - n dots / width) */
template <typename T, int V>
KERNEL(MOST_THREADS, 2)
slope(side<T> q, side<T> k, sums_of_rows squares, sums_of_rows dots, norm_of n)
{
    int which = (int)(blockIdx.x % 2);
    int64_t token = blockIdx.x / 2;
    const side<T> s = which ? k : q;
    float scale = scale_of(s, squares.of(token, which), n), mean = dots.of(token, which) / s.width;
    for (int64_t column = (int64_t)threadIdx.x * V; column < s.columns; column += (int64_t)blockDim.x * V) {
        float d[V], x[V], w[V];
        load(d, s.dy + token * s.dy_pitch + column);
        load(x, s.x + token * s.x_pitch + column);
        load(w, s.w + column);
        UNROLL for (int i = 0; i < V; i++) d[i] = scale * (d[i] * (w[i] + n.offset) - x[i] * scale * mean);
        store(s.y + token * s.y_pitch + column, d);
    }
}

/* An op's operands of q and k, [0] and [1] of each array; absent ones are all zero. */
struct width_operands {
    const op *o;
    const run_context *r;
    launch_matrix y[2], dy[2], x[2]; /* y: what is written, y or dx */
    void *w[2];
    int64_t tokens, columns[2];
    float *scratch;

    /* queries and keys are inputs x0 and x0 + 1; w0, dy0 likewise, -1: none */
    width_operands(const op *o_, const run_context *r_, int x0, int w0, int dy0, bool writes)
        : o(o_), r(r_), tokens(o->in[x0]->shape[0]), scratch(data<float>(o->scratch, r))
    {
        for (int i = 0; i < 2; i++) {
            x[i] = matrix(o->in[x0 + i], r);
            columns[i] = o->in[x0 + i]->shape[1];
            w[i] = w0 >= 0 ? data(o->in[w0 + i], r) : nullptr;
            dy[i] = dy0 >= 0 ? matrix(o->in[dy0 + i], r) : launch_matrix{};
            y[i] = writes ? matrix(o->out[i], r) : launch_matrix{};
        }
    }
    template <typename T> side<T> at(int which) const
    {
        return {(T *)y[which].at,    (const T *)dy[which].at, (const T *)x[which].at,
                (const T *)w[which], y[which].pitch,          dy[which].pitch,
                x[which].pitch,      columns[which],          (float)o->at.norm.width[which]};
    }
    int64_t most_columns() const
    {
        return columns[0] > columns[1] ? columns[0] : columns[1];
    }
    unsigned threads(int elements, unsigned most) const
    {
        unsigned all = threads_for(most_columns() / elements);
        return all < most ? all : most;
    }
    norm_of norm() const
    {
        return {o->at.norm.epsilon, o->at.norm.offset};
    }
    /* Calls launch(T(), V) with the elements of one access. */
    template <typename F> int each(F launch) const
    {
        auto is_wide = [&](int vector) {
            bool all = aligned(scratch, 16);
            for (int i = 0; i < 2; i++)
                all = all && (y[i].pitch | dy[i].pitch | x[i].pitch | columns[i]) % vector == 0 &&
                      aligned_all(y[i].at, dy[i].at, x[i].at, w[i]);
            return all;
        };
        return tokens == 0 ? 0 : with_access(o->in[0]->type, is_wide, launch);
    }
};

static sums_of_rows sums_at(const tensor *t, const run_context *r)
{
    return {data<float>(t, r), t->pitch};
}

void cuda_width_squares(const op *o, const run_context *r)
{
    const width_operands of(o, r, 0, -1, -1, false);
    cuda_launched(o, of.each([&](auto t, auto v) {
        using T = decltype(t);
        return launch(sum_squares<T, v()>, (unsigned)of.tokens * 2, of.threads(v(), MOST_THREADS), 0, r->stream,
                      of.at<T>(0), of.at<T>(1), sums_at(o->out[0], r));
    }));
}

void cuda_width_norm(const op *o, const run_context *r)
{
    const width_operands of(o, r, 0, 2, -1, true);
    cuda_launched(o, of.each([&](auto t, auto v) {
        using T = decltype(t);
        return launch(normalise<T, v()>, (unsigned)of.tokens * 2, of.threads(v(), MOST_THREADS), 0, r->stream,
                      of.at<T>(0), of.at<T>(1), sums_at(o->in[4], r), of.norm());
    }));
}

static int64_t grad_blocks(int64_t tokens)
{
    int64_t blocks = divide_up(tokens, ROWS_A_BLOCK);
    return blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks;
}

int64_t cuda_width_dots_scratch(const op *o)
{
    return grad_blocks(o->in[2]->shape[0]) * (o->in[2]->shape[1] + o->in[3]->shape[1]) * (int64_t)sizeof(float);
}

void cuda_width_dots(const op *o, const run_context *r)
{
    const width_operands of(o, r, 2, 4, 0, false);
    int64_t blocks = grad_blocks(of.tokens);
    int failed = of.each([&](auto t, auto v) {
        using T = decltype(t);
        int shared = held_bytes(of.most_columns());
        auto kernel = shared ? sum_products<T, v(), true> : sum_products<T, v(), false>;
        return launch(kernel, (unsigned)blocks * 2, of.threads(v(), GRAD_THREADS), shared, r->stream, of.at<T>(0),
                      of.at<T>(1), sums_at(o->in[6], r), sums_at(o->out[0], r), of.scratch, of.tokens, of.norm());
    });
    for (int i = 0; i < 2 && !failed && of.tokens > 0; i++)
        failed =
            reduce_partials(r->stream, data<float>(o->out[1 + i], r), of.scratch + (i ? blocks * of.columns[0] : 0),
                            blocks, of.columns[i], of.columns[i], o->at.accumulate != OP_WRITES);
    cuda_launched(o, failed);
}

void cuda_width_norm_grad(const op *o, const run_context *r)
{
    const width_operands of(o, r, 2, 4, 0, true);
    cuda_launched(o, of.each([&](auto t, auto v) {
        using T = decltype(t);
        return launch(slope<T, v()>, (unsigned)of.tokens * 2, of.threads(v(), MOST_THREADS), 0, r->stream, of.at<T>(0),
                      of.at<T>(1), sums_at(o->in[6], r), sums_at(o->in[7], r), of.norm());
    }));
}
