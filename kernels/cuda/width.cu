/* RMSNorm of queries and of keys over all their heads (OLMo 2), which tensor ranks divide: sums of a rank's squares,
 * and of its products in the gradient, leave the device between the steps, to be added over the ranks.
 *
 * A block has one row, of q or of k; only where weights' gradients are made it walks over several, each column a
 * thread's own, and the blocks' shares are added afterwards.
 */
#include "kernels/cuda/vector.cuh"

#include "kernels/cuda/reduce.cuh"

static constexpr int MOST_THREADS = 512, GRAD_THREADS = 256, ROWS_A_BLOCK = 8, MOST_BLOCKS = 384;

/* What a kernel is told of q, or of k: y is written, dx where there is dy. */
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

/* dots[token] = sum dy (w + offset) n, n = x rstd; partials[block, columns]: sums of dy n over the block's rows, those
 * of all blocks for q before those for k; dynamic shared memory: a row of floats if HELD. */
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

template <typename T> static side<T> side_of(const launch_width *of, int which)
{
    return {(T *)of->y[which].at,    (const T *)of->dy[which].at, (const T *)of->x[which].at,
            (const T *)of->w[which], of->y[which].pitch,          of->dy[which].pitch,
            of->x[which].pitch,      of->columns[which],          (float)of->width[which]};
}

static bool are_wide(const launch_width *of, int elements)
{
    bool all = aligned(of->scratch, 16);
    for (int which = 0; which < 2; which++) {
        int64_t pitches = of->y[which].pitch | of->dy[which].pitch | of->x[which].pitch | of->columns[which];
        all = all && pitches % elements == 0 &&
              aligned_all(of->y[which].at, of->dy[which].at, of->x[which].at, of->w[which]);
    }
    return all;
}

static unsigned row_threads(const launch_width *of, int elements, unsigned most)
{
    int64_t columns = of->columns[0] > of->columns[1] ? of->columns[0] : of->columns[1];
    unsigned threads = threads_for(columns / elements);
    return threads < most ? threads : most;
}

static sums_of_rows sums_at(launch_matrix m)
{
    return {(float *)m.at, m.pitch};
}

/* Calls launch(T(), V) with the elements of one access. */
template <typename F> static int with_access(int type, const launch_width *of, F launch)
{
    if (of->tokens == 0)
        return 0;
    return with_type(type, [&](auto t) {
        constexpr int V = VECTOR<decltype(t)>;
        return are_wide(of, V) ? launch(t, std::integral_constant<int, V>())
                               : launch(t, std::integral_constant<int, 1>());
    });
}

int launch_width_squares(void *stream, int type, const launch_width *of)
{
    return with_access(type, of, [&](auto t, auto v) {
        using T = decltype(t);
        auto kernel = sum_squares<T, v()>;
        LAUNCH(kernel, (unsigned)of->tokens * 2, row_threads(of, v(), MOST_THREADS), 0, (cudaStream_t)stream,
               side_of<T>(of, 0), side_of<T>(of, 1), sums_at(of->squares));
        return launch_result();
    });
}

int launch_width_norm(void *stream, int type, const launch_width *of)
{
    return with_access(type, of, [&](auto t, auto v) {
        using T = decltype(t);
        auto kernel = normalise<T, v()>;
        LAUNCH(kernel, (unsigned)of->tokens * 2, row_threads(of, v(), MOST_THREADS), 0, (cudaStream_t)stream,
               side_of<T>(of, 0), side_of<T>(of, 1), sums_at(of->squares), norm_of{of->epsilon, of->offset});
        return launch_result();
    });
}

static int64_t grad_blocks(int64_t tokens)
{
    int64_t blocks = divide_up(tokens, ROWS_A_BLOCK);
    return blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks;
}

int64_t launch_width_dots_scratch(int64_t tokens, int64_t columns)
{
    return grad_blocks(tokens) * columns * (int64_t)sizeof(float);
}

int launch_width_dots(void *stream, int type, const launch_width *of)
{
    int64_t blocks = grad_blocks(of->tokens);
    int failed = with_access(type, of, [&](auto t, auto v) {
        using T = decltype(t);
        int shared = held_bytes(of->columns[0] > of->columns[1] ? of->columns[0] : of->columns[1]);
        auto kernel = shared ? sum_products<T, v(), true> : sum_products<T, v(), false>;
        int refused = allow_shared(kernel, shared);
        if (refused)
            return refused;
        LAUNCH(kernel, (unsigned)blocks * 2, row_threads(of, v(), GRAD_THREADS), (size_t)shared, (cudaStream_t)stream,
               side_of<T>(of, 0), side_of<T>(of, 1), sums_at(of->squares), sums_at(of->dots), of->scratch, of->tokens,
               norm_of{of->epsilon, of->offset});
        return launch_result();
    });
    for (int which = 0; which < 2 && !failed && of->tokens > 0; which++)
        failed = reduce_partials(stream, of->dw[which], of->scratch + (which ? blocks * of->columns[0] : 0), blocks,
                                 of->columns[which], of->columns[which], of->accumulate);
    return failed;
}

int launch_width_norm_grad(void *stream, int type, const launch_width *of)
{
    return with_access(type, of, [&](auto t, auto v) {
        using T = decltype(t);
        auto kernel = slope<T, v()>;
        LAUNCH(kernel, (unsigned)of->tokens * 2, row_threads(of, v(), MOST_THREADS), 0, (cudaStream_t)stream,
               side_of<T>(of, 0), side_of<T>(of, 1), sums_at(of->squares), sums_at(of->dots),
               norm_of{of->epsilon, of->offset});
        return launch_result();
    });
}
