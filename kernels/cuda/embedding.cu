/* Rows of tables: embedding, learned positions, and their gradients, summed in ascending order of tokens. */
#include "kernels/cuda/vector.cuh"

static constexpr int THREADS = 256, WARPS = THREADS / WARP;

/* y[t] = [x[t] +] table[id[t] - first], or [x[t] +] 0 for rows outside the table; rows of `pieces` vectors */
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

/* Lists the tokens of each row of the table, in working memory: their number (counts), `tokens` minus the first of them
 * (reach), and where its list of members begins (next; and, when all are listed, ends). The lists' order and positions
 * vary from run to run, their contents do not. All is zero before. */
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

/* dtable[id] += the rows of dy with that id, ascending: the block of a row's first token adds them all. It sorts few by
 * counting the smaller ones, and searches for many among all tokens, a window of THREADS at a time. */
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

/* y[t] = [x[t] +] table[ids[t] - first] */
static void take(const op *o, const run_context *r, const tensor *x, const tensor *ids, const tensor *from,
                 int64_t first)
{
    const tensor *to = o->out[0];
    void *y = whole(o, to, r), *more = whole(o, x, r), *table = whole(o, from, r);
    const int64_t columns = to->shape[1];
    auto is_wide = [&](int vector) { return columns % vector == 0 && aligned_all(y, more, table); };
    cuda_launched(o, with_access(to->type, is_wide, [&](auto t, auto v) {
                      using T = decltype(t);
                      int64_t pieces = columns / v(), items = to->shape[0] * pieces;
                      return launch(take_rows<T, v()>, blocks_for(items, THREADS), THREADS, 0, r->stream, (T *)y,
                                    (const T *)more, data<const int32_t>(ids, r), (const T *)table, items, pieces,
                                    first, from->shape[0]);
                  }));
}

CUDA_OP(embed, take(o, r, nullptr, o->in[0], o->in[1], o->at.vocabulary.first))
CUDA_OP(add_positions, take(o, r, o->in[0], o->in[1], o->in[2], 0))

CUDA_SCRATCH(cuda_embed_grad_scratch, (3 * o->out[0]->shape[0] + 1 + o->in[0]->shape[0]) * (int64_t)sizeof(int32_t))

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
    return launch(list, blocks_for(tokens, THREADS), THREADS, 0, stream, m, ids, tokens, first, table_rows);
}

/* dtable[rows, columns] fp32 (+)= rows of dy summed by id - first, ascending; ids outside are ignored */
static int add_by_id(const op *o, const run_context *r)
{
    const tensor *in = o->in[0], *out = o->out[0];
    const int64_t tokens = in->shape[0], columns = in->shape[1], rows = out->shape[0], first = o->at.vocabulary.first;
    const void *dy = whole(o, in, r);
    const int32_t *ids = data<const int32_t>(o->in[1], r);
    float *dtable = whole<float>(o, out, r);
    int32_t *scratch = data<int32_t>(o->scratch, r);
    int failed = o->at.accumulate ? 0 : launch_zero(r->stream, dtable, rows * columns * (int64_t)sizeof(float));
    if (failed || tokens == 0)
        return failed;
    members m = {scratch, scratch + rows, scratch + 2 * rows, scratch + 3 * rows, scratch + 3 * rows + 1};
    failed = find_members(m, r->stream, ids, tokens, first, rows);
    if (failed)
        return failed;
    auto is_wide = [&](int vector) { return columns % vector == 0 && aligned_all(dtable, dy); };
    return with_access(in->type, is_wide, [&](auto t, auto v) {
        using T = decltype(t);
        return launch(add_rows_by_id<T, v()>, (unsigned)tokens, THREADS, 0, r->stream, dtable, (const T *)dy, ids, m,
                      tokens, columns, first, rows);
    });
}

CUDA_OP(embed_grad, cuda_launched(o, add_by_id(o, r)))
CUDA_OP(add_positions_grad, cuda_embed_grad(o, r))
