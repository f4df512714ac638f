/* RMSNorm (1910.07467) and LayerNorm (1607.06450), with the residual addition before them fused in.
 *
 * Forward: a block a row. The sum s = x + residual is rounded to T, kept in shared memory as floats, and read again from
 * there: x and the residual are read once, y and s written once. Backward: a block walks over several rows and sums its
 * share of dw and db in shared memory, where each column belongs to one thread; the blocks' shares are added afterwards.
 */
#include "kernels/cuda/vector.cuh"

#include "kernels/cuda/reduce.cuh"

static constexpr int MOST_THREADS = 512, ROWS_A_BLOCK = 8, MOST_BLOCKS = 1024;

/* y = (s - mean) rstd w + b; without mean: y = s rstd w. dynamic shared memory: float row[columns] */
template <typename T, int V>
KERNEL(MOST_THREADS, 2)
norm_forward(T *y, float *rstd, float *mean, T *sum, const T *x, const T *w, const T *b, const T *residual,
             int64_t columns, float epsilon)
{
    SHARED_DYNAMIC(dynamic);
    float *row = reinterpret_cast<float *>(dynamic);
    int64_t base = blockIdx.x * columns, step = (int64_t)blockDim.x * V;
    float total = 0, squares = 0;
    for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += step) {
        float s[V];
        load(s, x + base + column);
        if (residual) {
            float r[V];
            load(r, residual + base + column);
            UNROLL for (int i = 0; i < V; i++) s[i] = rounded<T>(s[i] + r[i]);
            store(sum + base + column, s);
        }
        UNROLL for (int i = 0; i < V; i++)
        {
            total += s[i];
            squares += s[i] * s[i];
        }
        store(row + column, s);
    }
    two_sums sums = block_sum(total, squares);
    float center = 0, variance = sums.b / (float)columns;
    if (mean) { /* about the mean, in a second pass: squares minus the squared mean would cancel */
        center = sums.a / (float)columns;
        squares = 0;
        for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += step)
            UNROLL for (int i = 0; i < V; i++) squares += (row[column + i] - center) * (row[column + i] - center);
        variance = block_sum(squares, 0).a / (float)columns;
    }
    float scale = 1.0f / sqrtf(variance + epsilon);
    if (threadIdx.x == 0) {
        rstd[blockIdx.x] = scale;
        if (mean)
            mean[blockIdx.x] = center;
    }
    for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += step) {
        float s[V], weight[V], bias[V] = {};
        load(s, row + column);
        load(weight, w + column);
        if (b)
            load(bias, b + column);
        UNROLL for (int i = 0; i < V; i++) s[i] = (s[i] - center) * scale * weight[i] + bias[i];
        store(y + base + column, s);
    }
}

/* With n = (s - mean) rstd and g = dy w: dx = addend + rstd (g - [mean(g)] - n mean(g n)), the bracket for LayerNorm;
 * dw = sum dy n, db = sum dy. partials[block, dw | db]; dynamic shared memory: the same row of floats. */
template <typename T, int V>
KERNEL(MOST_THREADS, 2)
norm_backward(T *dx, float *partials, const T *dy, const T *s, const T *w, const float *rstd, const float *mean,
              const T *addend, int64_t rows, int64_t columns)
{
    SHARED_DYNAMIC(dynamic);
    float *dw = reinterpret_cast<float *>(dynamic), *db = mean ? dw + columns : nullptr;
    int64_t step = (int64_t)blockDim.x * V, width = mean ? 2 * columns : columns;
    /* A column's sums belong to the thread that visits it: no barrier. */
    for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += step)
        UNROLL for (int i = 0; i < V; i++)
        {
            dw[column + i] = 0;
            if (db)
                db[column + i] = 0;
        }
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float center = mean ? mean[row] : 0.0f, scale = rstd[row], sum_g = 0, sum_gn = 0;
        for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += step) {
            float d[V], n[V], weight[V];
            load(d, dy + row * columns + column);
            load(n, s + row * columns + column);
            load(weight, w + column);
            UNROLL for (int i = 0; i < V; i++)
            {
                n[i] = (n[i] - center) * scale;
                sum_g += d[i] * weight[i];
                sum_gn += d[i] * weight[i] * n[i];
                dw[column + i] += d[i] * n[i];
                if (db)
                    db[column + i] += d[i];
            }
        }
        two_sums sums = block_sum(sum_g, sum_gn);
        float mean_g = mean ? sums.a / (float)columns : 0.0f, mean_gn = sums.b / (float)columns;
        for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += step) {
            float d[V], n[V], weight[V], more[V] = {};
            load(d, dy + row * columns + column);
            load(n, s + row * columns + column);
            load(weight, w + column);
            if (addend)
                load(more, addend + row * columns + column);
            UNROLL for (int i = 0; i < V; i++)
            {
                n[i] = (n[i] - center) * scale;
                d[i] = more[i] + scale * (d[i] * weight[i] - mean_g - n[i] * mean_gn);
            }
            store(dx + row * columns + column, d);
        }
    }
    float *to = partials + blockIdx.x * width;
    for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += step)
        UNROLL for (int i = 0; i < V; i++)
        {
            to[column + i] = dw[column + i];
            if (db)
                to[columns + column + i] = db[column + i];
        }
}

static unsigned block_threads(int64_t items)
{
    unsigned threads = threads_for(items);
    return threads < MOST_THREADS ? threads : MOST_THREADS;
}

int launch_norm(void *stream, int type, void *y, float *rstd, float *mean, void *sum, const void *x, const void *w,
                const void *b, const void *residual, int64_t rows, int64_t columns, float epsilon)
{
    if (rows == 0)
        return 0;
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int V = VECTOR<T>;
        bool wide = columns % V == 0 && aligned_all(y, sum, x, w, b, residual);
        size_t shared = (size_t)columns * sizeof(float);
        auto kernel = wide ? norm_forward<T, V> : norm_forward<T, 1>;
        int failed = allow_shared(kernel, (int)shared);
        if (failed)
            return failed;
        LAUNCH(kernel, (unsigned)rows, block_threads(columns / (wide ? V : 1)), shared, (cudaStream_t)stream, (T *)y,
               rstd, mean, (T *)sum, (const T *)x, (const T *)w, (const T *)b, (const T *)residual, columns, epsilon);
        return launch_result();
    });
}

static int64_t grad_blocks(int64_t rows)
{
    int64_t blocks = divide_up(rows, ROWS_A_BLOCK);
    return blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks;
}

int64_t launch_norm_grad_scratch(int64_t rows, int64_t columns, bool layernorm)
{
    return grad_blocks(rows) * columns * (layernorm ? 2 : 1) * (int64_t)sizeof(float);
}

int launch_norm_grad(void *stream, int type, void *dx, float *dw, float *db, const void *dy, const void *s,
                     const void *w, const float *rstd, const float *mean, const void *addend, int64_t rows,
                     int64_t columns, bool accumulate, float *scratch)
{
    int64_t blocks = grad_blocks(rows), width = db ? 2 * columns : columns;
    int failed = with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int V = VECTOR<T>;
        bool wide = columns % V == 0 && aligned_all(dx, dy, s, w, addend);
        size_t shared = (size_t)width * sizeof(float);
        auto kernel = wide ? norm_backward<T, V> : norm_backward<T, 1>;
        int refused = allow_shared(kernel, (int)shared);
        if (refused)
            return refused;
        LAUNCH(kernel, (unsigned)blocks, block_threads(columns / (wide ? V : 1)), shared, (cudaStream_t)stream, (T *)dx,
               scratch, (const T *)dy, (const T *)s, (const T *)w, rstd, mean, (const T *)addend, rows, columns);
        return launch_result();
    });
    if (!failed)
        failed = reduce_partials(stream, dw, scratch, blocks, columns, width, accumulate);
    if (!failed && db)
        failed = reduce_partials(stream, db, scratch + columns, blocks, columns, width, accumulate);
    return failed;
}
