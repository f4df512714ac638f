/* RMSNorm (1910.07467) and LayerNorm (1607.06450), with the residual addition before them fused in.
 *
 * Forward: a block a row. The sum s = x + residual is rounded to T, kept in shared memory as floats, and read again
 * from there: x and the residual are read once, y and s written once. Backward: a block walks over several rows and
 * sums its share of dw and db in shared memory, where each column belongs to one thread; the blocks' shares are added
 * afterwards. A row too wide for the device's shared memory is read again from device memory, and its sums are made
 * there.
 */
#include "kernels/cuda/vector.cuh"

/* Backward: as many blocks as three a multiprocessor of an H100, so that all are under way at once, and their shares of
 * dw are small beside the rows read. */
static constexpr int MOST_THREADS = 512, GRAD_THREADS = 256, ROWS_A_BLOCK = 8, MOST_BLOCKS = 384;

/* Loads s of the row again, by the thread that saw it before: from shared memory, or, if it did not fit there, from
 * device memory. */
template <bool HELD, typename T, int V>
DEVICE void load_again(float (&s)[V], const float *row, const T *from, int64_t column)
{
    if constexpr (HELD)
        load_kept<HELD>(s, row, column);
    else
        load(s, from + column);
}

/* y = (s - mean) rstd w + b; without mean: y = s rstd (w + offset). Dynamic shared memory: float row[columns] if
 * HELD. */
template <typename T, int V, bool HELD>
KERNEL(MOST_THREADS, 2)
norm_forward(T *y, float *rstd, float *mean, T *sum, const T *x, const T *w, const T *b, const T *residual,
             int64_t columns, float epsilon, float offset)
{
    SHARED_DYNAMIC(dynamic);
    float *row = reinterpret_cast<float *>(dynamic);
    const T *from = (residual ? sum : x) + blockIdx.x * columns;
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
        if constexpr (HELD)
            store_kept<HELD>(row, column, s);
    }
    two_sums sums = block_sum(total, squares);
    float center = 0, variance = sums.b / (float)columns;
    if (mean) { /* about the mean, in a second pass: squares minus the squared mean would cancel */
        center = sums.a / (float)columns;
        squares = 0;
        for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += step) {
            float s[V];
            load_again<HELD>(s, row, from, column);
            UNROLL for (int i = 0; i < V; i++) squares += (s[i] - center) * (s[i] - center);
        }
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
        load_again<HELD>(s, row, from, column);
        load(weight, w + column);
        if (b)
            load(bias, b + column);
        UNROLL for (int i = 0; i < V; i++) s[i] = (s[i] - center) * scale * (weight[i] + offset) + bias[i];
        store(y + base + column, s);
    }
}

/* n = (s - mean) rstd, g = dy w: dx = addend + rstd (g - [mean(g)] - n mean(g n)), the bracket for LayerNorm; dw = sum
 * dy n, db = sum dy. partials[block, dw | db]; dynamic shared memory: the same row of floats if HELD. */
template <typename T, int V, bool HELD>
KERNEL(GRAD_THREADS, 3)
norm_backward(T *dx, float *partials, const T *dy, const T *s, const T *w, const float *rstd, const float *mean,
              const T *addend, int64_t rows, int64_t columns, float offset)
{
    SHARED_DYNAMIC(dynamic);
    int64_t step = (int64_t)blockDim.x * V, width = mean ? 2 * columns : columns;
    float *to = partials + blockIdx.x * width, *dw = HELD ? reinterpret_cast<float *>(dynamic) : to;
    float *db = dw + columns; /* with a mean */
    /* A column's sums belong to the thread that visits it: no barrier. */
    const float zeros[V] = {};
    for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += step) {
        store_kept<HELD>(dw, column, zeros);
        if (mean)
            store_kept<HELD>(db, column, zeros);
    }
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float center = mean ? mean[row] : 0.0f, scale = rstd[row], sum_g = 0, sum_gn = 0;
        for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += step) {
            float d[V], n[V], weight[V], sum[V];
            load(d, dy + row * columns + column);
            load(n, s + row * columns + column);
            load(weight, w + column);
            load_kept<HELD>(sum, dw, column);
            UNROLL for (int i = 0; i < V; i++)
            {
                n[i] = (n[i] - center) * scale;
                weight[i] += offset;
                sum_g += d[i] * weight[i];
                sum_gn += d[i] * weight[i] * n[i];
                sum[i] += d[i] * n[i];
            }
            store_kept<HELD>(dw, column, sum);
            if (mean) {
                load_kept<HELD>(sum, db, column);
                UNROLL for (int i = 0; i < V; i++) sum[i] += d[i];
                store_kept<HELD>(db, column, sum);
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
                d[i] = more[i] + scale * (d[i] * (weight[i] + offset) - mean_g - n[i] * mean_gn);
            }
            store(dx + row * columns + column, d);
        }
    }
    for (int64_t column = (int64_t)threadIdx.x * V; HELD && column < columns; column += step) {
        float sum[V];
        load_kept<HELD>(sum, dw, column);
        store(to + column, sum);
        if (mean) {
            load_kept<HELD>(sum, db, column);
            store(to + columns + column, sum);
        }
    }
}

static unsigned block_threads(int64_t items, unsigned most)
{
    unsigned threads = threads_for(items);
    return threads < most ? threads : most;
}

/* The operands at the same indices in both norms: `out` of a norm, `in` of its gradient. mean NULL: RMSNorm. */
struct norm_operands {
    const tensor *mean, *b, *residual, *sum;
};

static void normalise(const op *o, const run_context *r, const norm_operands &of, float offset)
{
    const tensor *in = o->in[0];
    const int64_t columns = columns_of(in);
    void *y = whole(o, o->out[0], r), *sum = whole(o, of.sum, r), *x = whole(o, in, r), *w = data(o->in[1], r),
         *b = data(of.b, r), *residual = whole(o, of.residual, r);
    if (in->shape[0] == 0)
        return;
    auto is_wide = [&](int vector) { return columns % vector == 0 && aligned_all(y, sum, x, w, b, residual); };
    cuda_launched(o, with_access(in->type, is_wide, [&](auto t, auto v) {
                      using T = decltype(t);
                      int shared = held_bytes(columns);
                      auto kernel = shared ? norm_forward<T, v(), true> : norm_forward<T, v(), false>;
                      return launch(kernel, (unsigned)in->shape[0], block_threads(columns / v(), MOST_THREADS), shared,
                                    r->stream, (T *)y, data<float>(o->out[1], r), data<float>(of.mean, r), (T *)sum,
                                    (const T *)x, (const T *)w, (const T *)b, (const T *)residual, columns,
                                    o->at.norm.epsilon, offset);
                  }));
}

CUDA_OP(rmsnorm, normalise(o, r, {nullptr, nullptr, o->in[2], o->out[2]}, o->at.norm.offset))
CUDA_OP(layernorm, normalise(o, r, {o->out[2], o->in[2], o->in[3], o->out[3]}, 0))

static int64_t grad_blocks(int64_t rows)
{
    int64_t blocks = divide_up(rows, ROWS_A_BLOCK);
    return blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks;
}

int64_t cuda_norm_grad_scratch(const op *o)
{
    const tensor *s = o->in[1];
    return grad_blocks(s->shape[0]) * s->shape[1] * (o->out[2] ? 2 : 1) * (int64_t)sizeof(float);
}

static void norm_grad(const op *o, const run_context *r, const tensor *mean, const tensor *more)
{
    const tensor *in = o->in[1];
    const int64_t columns = columns_of(in), blocks = grad_blocks(in->shape[0]);
    void *dx = whole(o, o->out[0], r), *dy = whole(o, o->in[0], r), *s = whole(o, in, r), *w = data(o->in[2], r),
         *addend = whole(o, more, r);
    float *sums[] = {data<float>(o->out[1], r), data<float>(o->out[2], r)}, *scratch = data<float>(o->scratch, r);
    const int64_t width = sums[1] ? 2 * columns : columns;
    auto is_wide = [&](int vector) { return columns % vector == 0 && aligned_all(dx, dy, s, w, addend, scratch); };
    int failed = with_access(in->type, is_wide, [&](auto t, auto v) {
        using T = decltype(t);
        int shared = held_bytes(width);
        auto kernel = shared ? norm_backward<T, v(), true> : norm_backward<T, v(), false>;
        return launch(kernel, (unsigned)blocks, block_threads(columns / v(), GRAD_THREADS), shared, r->stream, (T *)dx,
                      scratch, (const T *)dy, (const T *)s, (const T *)w, data<const float>(o->in[3], r),
                      data<const float>(mean, r), (const T *)addend, in->shape[0], columns, o->at.norm.offset);
    });
    for (int i = 0; i < 2 && !failed && sums[i]; i++)
        failed = reduce_partials(r->stream, sums[i], scratch + i * columns, blocks, columns, width,
                                 o->at.accumulate != OP_WRITES);
    cuda_launched(o, failed);
}

CUDA_OP(rmsnorm_grad, norm_grad(o, r, nullptr, o->in[4]))
CUDA_OP(layernorm_grad, norm_grad(o, r, o->in[4], o->in[5]))
