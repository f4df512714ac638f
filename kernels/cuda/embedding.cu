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

/* Which tokens have which row, in working memory: for each row of the table how many there are (counts), `tokens` minus
 * the first of them (reach), and where its list of members begins (next; and, when all are listed, ends). The lists'
 * order and places depend on the moment, what they hold does not. All is zero before. */
struct members {
    int32_t *counts, *reach, *next, *cursor, *list;
};

DEVICE int64_t row_of(const int32_t *ids, int64_t token, int64_t tokens, int64_t first, int64_t table_rows)
{
    int64_t row = token < tokens ? ids[token] - first : -1;
    return row < table_rows ? row : -1;
}

KERNEL(THREADS, 4)
count_members(members m, const int32_t *ids, int64_t tokens, int64_t first, int64_t table_rows)
{
    int64_t token = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = row_of(ids, token, tokens, first, table_rows);
    if (row < 0)
        return;
    atomic_add(m.counts + row, 1);
    atomic_max(m.reach + row, (int32_t)(tokens - token));
}

KERNEL(THREADS, 4) place_members(members m, int64_t table_rows)
{
    int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row < table_rows && m.counts[row] > 0)
        m.next[row] = atomic_add(m.cursor, m.counts[row]);
}

KERNEL(THREADS, 4)
list_members(members m, const int32_t *ids, int64_t tokens, int64_t first, int64_t table_rows)
{
    int64_t token = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = row_of(ids, token, tokens, first, table_rows);
    if (row >= 0)
        m.list[atomic_add(m.next + row, 1)] = (int32_t)token;
}

/* dtable[row] += rows found[0 .. all) of dy, in this order */
template <typename T, int V>
DEVICE void add_found(float *row, const T *dy, const int32_t *found, int all, int64_t columns)
{
    for (int64_t column = (int64_t)threadIdx.x * V; column < columns; column += THREADS * V) {
        float sum[V], d[V];
        load(sum, row + column);
        for (int k = 0; k < all; k++) {
            load(d, dy + found[k] * columns + column);
            UNROLL for (int i = 0; i < V; i++) sum[i] += d[i];
        }
        store(row + column, sum);
    }
}

/* dtable[id] += the rows of dy whose id it is, ascending: the block of a row's first token adds them all. Few are put
 * in order by counting the smaller ones; many are looked for among all tokens, a window of THREADS at a time. */
template <typename T, int V>
KERNEL(THREADS, 4)
add_rows_by_id(float *dtable, const T *dy, const int32_t *ids, members m, int64_t tokens, int64_t columns,
               int64_t first, int64_t table_rows)
{
    SHARED(int32_t, found, THREADS); /* ascending */
    SHARED(int32_t, listed, THREADS);
    SHARED(int32_t, counts, WARPS);
    int64_t mine = blockIdx.x, row = row_of(ids, mine, tokens, first, table_rows);
    if (row < 0 || m.reach[row] != tokens - mine)
        return;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, all = m.counts[row], me = (int)threadIdx.x;
    if (all <= THREADS) {
        if (me < all)
            listed[me] = m.list[m.next[row] - all + me];
        block_barrier(); /* the list is there */
        int before = 0;
        for (int k = 0; k < all; k++)
            before += listed[k] < listed[me < all ? me : 0];
        if (me < all)
            found[before] = listed[me];
        block_barrier(); /* it is in order */
        add_found<T, V>(dtable + row * columns, dy, found, all, columns);
        return;
    }
    int32_t id = ids[mine];
    for (int64_t window = mine; all > 0 && window < tokens; window += THREADS) {
        int64_t token = window + me;
        bool has = token < tokens && ids[token] == id;
        uint32_t seen = warp_ballot(has);
        if (lane == 0)
            counts[warp] = count_bits(seen);
        block_barrier();
        int before = count_bits(seen & ((1u << lane) - 1)), here = 0;
        for (int k = 0; k < WARPS; k++) {
            before += k < warp ? counts[k] : 0;
            here += counts[k];
        }
        if (has) /* the last window's list is read: every thread has passed the barrier above since */
            found[before] = (int32_t)token;
        block_barrier(); /* the window's list is there, the counts are read */
        add_found<T, V>(dtable + row * columns, dy, found, here, columns);
        all -= here;
    }
}

template <typename T>
static int take(void *stream, void *y, const void *x, const int32_t *ids, const void *table, launch_rows of)
{
    constexpr int V = VECTOR<T>;
    bool wide = of.columns % V == 0 && aligned_all(y, x, table);
    int64_t pieces = of.columns / (wide ? V : 1), items = of.tokens * pieces;
    auto kernel = wide ? take_rows<T, V> : take_rows<T, 1>;
    LAUNCH(kernel, blocks_for(items, THREADS), THREADS, 0, (cudaStream_t)stream, (T *)y, (const T *)x, ids,
           (const T *)table, items, pieces, of.first, of.table_rows);
    return launch_result();
}

int launch_embed(void *stream, int type, void *y, const int32_t *tokens, const void *table, launch_rows of)
{
    return with_type(type, [&](auto t) { return take<decltype(t)>(stream, y, nullptr, tokens, table, of); });
}

int launch_add_rows(void *stream, int type, void *y, const void *x, const int32_t *positions, const void *table,
                    launch_rows of)
{
    return with_type(type, [&](auto t) { return take<decltype(t)>(stream, y, x, positions, table, of); });
}

int64_t launch_embed_grad_scratch(int64_t tokens, int64_t table_rows)
{
    return (3 * table_rows + 1 + tokens) * (int64_t)sizeof(int32_t);
}

static int find_members(const members &m, void *stream, const int32_t *ids, int64_t tokens, int64_t first,
                        int64_t table_rows)
{
    int failed = launch_zero(stream, m.counts, (3 * table_rows + 1) * (int64_t)sizeof(int32_t));
    if (failed)
        return failed;
    auto count = count_members, list = list_members;
    auto place = place_members;
    LAUNCH(count, blocks_for(tokens, THREADS), THREADS, 0, (cudaStream_t)stream, m, ids, tokens, first, table_rows);
    LAUNCH(place, blocks_for(table_rows, THREADS), THREADS, 0, (cudaStream_t)stream, m, table_rows);
    LAUNCH(list, blocks_for(tokens, THREADS), THREADS, 0, (cudaStream_t)stream, m, ids, tokens, first, table_rows);
    return launch_result();
}

int launch_embed_grad(void *stream, int type, float *dtable, launch_embed_grad_in in)
{
    int failed = in.accumulate ? 0 : launch_zero(stream, dtable, in.of.table_rows * in.of.columns * (int64_t)sizeof(float));
    if (failed || in.of.tokens == 0)
        return failed;
    members m = {in.scratch, in.scratch + in.of.table_rows, in.scratch + 2 * in.of.table_rows, in.scratch + 3 * in.of.table_rows,
                 in.scratch + 3 * in.of.table_rows + 1};
    failed = find_members(m, stream, in.ids, in.of.tokens, in.of.first, in.of.table_rows);
    if (failed)
        return failed;
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int V = VECTOR<T>;
        bool wide = in.of.columns % V == 0 && aligned_all(dtable, in.dy);
        auto kernel = wide ? add_rows_by_id<T, V> : add_rows_by_id<T, 1>;
        LAUNCH(kernel, (unsigned)in.of.tokens, THREADS, 0, (cudaStream_t)stream, dtable, (const T *)in.dy, in.ids, m,
               in.of.tokens, in.of.columns, in.of.first, in.of.table_rows);
        return launch_result();
    });
}
