/* Column sums in two stages: chunks of rows into fp32 partial sums, then the partial sums. No atomics, so no bit
 * depends on which block runs first.
 */
#include "kernels/cuda/vector.cuh"

static constexpr int LANES = 32, ROWS = 8, ROWS_A_CHUNK = 128, MOST_CHUNKS = 128, PARTIAL_ROWS = 32;

/* out[chunk, columns] (+)= sum over the chunk's rows of x[rows, columns]; blockDim (LANES, ROWS) flattened */
template <typename T, int V>
KERNEL(LANES *ROWS, 4)
column_sum(float *out, const T *x, int64_t rows, int64_t columns, int64_t pitch, int64_t chunk_rows, bool accumulate)
{
    SHARED(float, part, ROWS *LANES *V);
    int lane = (int)threadIdx.x % LANES, line = (int)threadIdx.x / LANES;
    int64_t column = ((int64_t)blockIdx.x * LANES + lane) * V, first = blockIdx.y * chunk_rows;
    int64_t last = first + chunk_rows < rows ? first + chunk_rows : rows;
    float sum[V] = {};
    if (column < columns) {
        for (int64_t row = first + line; row < last; row += ROWS) {
            float a[V];
            load(a, x + row * pitch + column);
            UNROLL for (int i = 0; i < V; i++) sum[i] += a[i];
        }
    }
    UNROLL for (int i = 0; i < V; i++) part[(line * V + i) * LANES + lane] = sum[i];
    block_barrier();
    if (line || column >= columns)
        return;
    float *to = out + blockIdx.y * columns + column;
    UNROLL for (int i = 0; i < V; i++)
    {
        float total = 0;
        UNROLL for (int k = 0; k < ROWS; k++) total += part[(k * V + i) * LANES + lane];
        to[i] = accumulate ? to[i] + total : total;
    }
}

template <typename T>
static int sum_chunks(const run_context *r, float *out, const tensor *x, int64_t chunks, bool accumulate)
{
    constexpr int V = VECTOR<T>;
    const int64_t rows = x->shape[0], columns = columns_of(x);
    bool wide = columns % V == 0 && x->pitch % V == 0 && aligned(data(x, r), 16) && columns >= LANES * V * 16;
    dim3 grid(blocks_for(columns, (int64_t)LANES * (wide ? V : 1)), (unsigned)chunks, 1);
    auto kernel = wide ? column_sum<T, V> : column_sum<T, 1>;
    return launch(kernel, grid, LANES * ROWS, 0, r->stream, out, data<const T>(x, r), rows, columns, x->pitch,
                  divide_up(rows, chunks), accumulate);
}

static int64_t chunks_of(int64_t rows)
{
    int64_t chunks = divide_up(rows, ROWS_A_CHUNK);
    return chunks < 1 ? 1 : chunks > MOST_CHUNKS ? MOST_CHUNKS : chunks;
}

int64_t cuda_bias_grad_scratch(const op *o)
{
    const int64_t chunks = chunks_of(o->in[0]->shape[0]);
    return chunks > 1 ? chunks * o->in[0]->shape[1] * (int64_t)sizeof(float) : 0;
}

void cuda_bias_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0];
    float *sum = data<float>(o->out[0], r), *scratch = data<float>(o->scratch, r);
    const bool accumulate = o->at.accumulate != OP_WRITES;
    cuda_launched(o, with_type(dy->type, [&](auto t) {
                      using T = decltype(t);
                      int64_t chunks = chunks_of(dy->shape[0]), columns = columns_of(dy);
                      if (chunks == 1)
                          return sum_chunks<T>(r, sum, dy, 1, accumulate);
                      int failed = sum_chunks<T>(r, scratch, dy, chunks, false);
                      return failed ? failed
                                    : reduce_partials(r->stream, sum, scratch, chunks, columns, columns, accumulate);
                  }));
}

/* sum[columns] (+)= the sum of partials[rows, columns]: few columns and hundreds of rows, mostly in the cache. A warp's
 * lanes are neighbouring columns, one each, so that a block has as few as can be and there are many blocks;
 * PARTIAL_ROWS warps divide the rows. */
KERNEL(LANES *PARTIAL_ROWS, 2)
partial_sum(float *out, const float *partials, int64_t rows, int64_t columns, int64_t pitch, bool accumulate)
{
    SHARED(float, part, PARTIAL_ROWS *LANES);
    int lane = (int)threadIdx.x % LANES, line = (int)threadIdx.x / LANES;
    int64_t column = (int64_t)blockIdx.x * LANES + lane;
    float sum = 0;
    for (int64_t row = line; row < rows && column < columns; row += PARTIAL_ROWS)
        sum += partials[row * pitch + column];
    part[line * LANES + lane] = sum;
    block_barrier();
    if (line || column >= columns)
        return;
    float total = 0;
    UNROLL for (int k = 0; k < PARTIAL_ROWS; k++) total += part[k * LANES + lane];
    out[column] = accumulate ? out[column] + total : total;
}

int reduce_partials(void *stream, float *sum, const float *partials, int64_t rows, int64_t columns, int64_t pitch,
                    bool accumulate)
{
    return launch(partial_sum, blocks_for(columns, LANES), LANES * PARTIAL_ROWS, 0, stream, sum, partials, rows,
                  columns, pitch, accumulate);
}
