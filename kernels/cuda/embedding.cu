/* Rows of tables: embedding, learned positions, and their gradients, summed in ascending order of tokens. */
#include "kernels/cuda/vector.cuh"

static constexpr int THREADS = 256, WARPS = THREADS / WARP;

/* y[t] = [x[t] +] table[id[t] - first], or [x[t] +] 0 where that row is not in the table; rows of `pieces` vectors */
template <typename T, int V>
KERNEL(THREADS, 4)
take_rows(T *y, const T *x, const int32_t *ids, const T *table, int64_t items, int64_t pieces, int64_t first,
          int64_t table_rows)
{
    int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (item >= items)
        return;
    int64_t row = ids[item / pieces] - first, piece = item % pieces;
    float value[V] = {}, more[V] = {};
    if (row >= 0 && row < table_rows)
        load(value, table + (row * pieces + piece) * V);
    if (x)
        load(more, x + item * V);
    UNROLL for (int i = 0; i < V; i++) value[i] += more[i];
    store(y + item * V, value);
}

/* dtable[id] += the rows of dy whose id it is. The block of a token works only if no earlier token has its id; it looks
 * through the later tokens, a window of THREADS at a time, and adds their rows in order. Integers only decide, so nothing
 * is sorted, nothing is atomic, and every sum has one order. */
template <typename T, int V>
KERNEL(THREADS, 4)
add_rows_by_id(float *dtable, const T *dy, const int32_t *ids, int64_t tokens, int64_t columns, int64_t first,
               int64_t table_rows)
{
    SHARED(int32_t, found, THREADS); /* tokens of this window with the id, ascending */
    SHARED(int32_t, counts, WARPS);
    int64_t mine = blockIdx.x;
    int32_t id = ids[mine];
    int64_t row = id - first;
    if (row < 0 || row >= table_rows)
        return;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int64_t window = mine - THREADS; window > -THREADS; window -= THREADS) {
        int64_t token = window + threadIdx.x;
        uint32_t seen = warp_ballot(token >= 0 && ids[token < 0 ? 0 : token] == id);
        if (lane == 0)
            counts[warp] = count_bits(seen);
        block_barrier();
        int earlier = 0;
        for (int k = 0; k < WARPS; k++)
            earlier += counts[k];
        block_barrier();
        if (earlier)
            return;
    }
    for (int64_t window = mine; window < tokens; window += THREADS) {
        int64_t token = window + threadIdx.x;
        bool has = token < tokens && ids[token] == id;
        uint32_t seen = warp_ballot(has);
        if (lane == 0)
            counts[warp] = count_bits(seen);
        block_barrier();
        int before = count_bits(seen & ((1u << lane) - 1)), all = 0;
        for (int k = 0; k < WARPS; k++) {
            before += k < warp ? counts[k] : 0;
            all += counts[k];
        }
        if (has) /* the last window's list is read: every thread has passed the barrier above since */
            found[before] = (int32_t)token;
        block_barrier(); /* the list is there, the counts are read */
        for (int64_t column = (int64_t)threadIdx.x * V; all && column < columns; column += THREADS * V) {
            float sum[V], d[V];
            load(sum, dtable + row * columns + column);
            for (int k = 0; k < all; k++) {
                load(d, dy + found[k] * columns + column);
                UNROLL for (int i = 0; i < V; i++) sum[i] += d[i];
            }
            store(dtable + row * columns + column, sum);
        }
    }
}

template <typename T>
static int take(void *stream, void *y, const void *x, const int32_t *ids, const void *table, int64_t tokens,
                int64_t columns, int64_t first, int64_t table_rows)
{
    constexpr int V = VECTOR<T>;
    bool wide = columns % V == 0 && aligned_all(y, x, table);
    int64_t pieces = columns / (wide ? V : 1), items = tokens * pieces;
    auto kernel = wide ? take_rows<T, V> : take_rows<T, 1>;
    LAUNCH(kernel, blocks_for(items, THREADS), THREADS, 0, (cudaStream_t)stream, (T *)y, (const T *)x, ids,
           (const T *)table, items, pieces, first, table_rows);
    return launch_result();
}

int launch_embed(void *stream, int type, void *y, const int32_t *tokens, const void *table, int64_t tokens_count,
                 int64_t columns, int64_t first, int64_t table_rows)
{
    return with_type(type, [&](auto t) {
        return take<decltype(t)>(stream, y, nullptr, tokens, table, tokens_count, columns, first, table_rows);
    });
}

int launch_add_rows(void *stream, int type, void *y, const void *x, const int32_t *positions, const void *table,
                    int64_t tokens_count, int64_t columns)
{
    return with_type(type, [&](auto t) {
        return take<decltype(t)>(stream, y, x, positions, table, tokens_count, columns, 0, INT64_MAX);
    });
}

int launch_embed_grad(void *stream, int type, float *dtable, const void *dy, const int32_t *ids, int64_t tokens_count,
                      int64_t columns, int64_t first, int64_t table_rows, bool accumulate)
{
    int failed = accumulate ? 0 : launch_zero(stream, dtable, table_rows * columns * (int64_t)sizeof(float));
    if (failed || tokens_count == 0)
        return failed;
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int V = VECTOR<T>;
        bool wide = columns % V == 0 && aligned_all(dtable, dy);
        auto kernel = wide ? add_rows_by_id<T, V> : add_rows_by_id<T, 1>;
        LAUNCH(kernel, (unsigned)tokens_count, THREADS, 0, (cudaStream_t)stream, dtable, (const T *)dy, ids,
               tokens_count, columns, first, table_rows);
        return launch_result();
    });
}
