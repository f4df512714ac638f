/* Grouped GEMM: C = A B for each expert; rows offsets[e] to offsets[e + 1] are expert e's. Only the device knows the
 * counts: the grid has a block for every possible tile, and a block finds its tile from the offsets, or ends.
 *
 * In bf16 and fp16 a block is eight warps, two down and four across, of 64 by 32 elements of C each: three stages of
 * tiles of A and B, DEPTH along k, are on their way at a time. An operand lies as [.., k], or turned as [k, ..]; then
 * ldmatrix turns its fragments. Where sizes or pitches are no multiples of 16 bytes, and in fp32, a block computes 64
 * by 64 elements by plain multiply-adds.
 */
#include "kernels/cuda/vector.cuh"

static constexpr int GROUPED_THREADS = 256, SIDE = 128, DEPTH = 32, STAGES = 3, PIECE = 8;
static constexpr int WARP_ROWS = 64, WARP_COLUMNS = 32, MT = WARP_ROWS / 16, NT = WARP_COLUMNS / 8;
/* elements of a row of a tile [SIDE, DEPTH], and of one that is turned, [DEPTH, SIDE]: an odd number of pieces */
static constexpr int STRIDE = DEPTH + PIECE, TRANSPOSED_STRIDE = SIDE + PIECE, TILE = SIDE * STRIDE;
static_assert(DEPTH * TRANSPOSED_STRIDE <= TILE, "a turned tile has room, too");

struct launch_grouped {
    launch_matrix a, b, c;
    const int32_t *offsets; /* [experts + 1] */
    int32_t experts;
    int64_t rows;     /* of all experts and of nobody */
    int64_t m, n, k;  /* of one expert, the side that is its rows 0 */
    const void *bias; /* [experts n] T or NULL, for rows */
};

/* C[m, n] of one expert; for the rows past the last expert's, the depth is 0. */
template <typename T> struct grouped_part {
    const T *a, *b, *bias; /* bias of the block's first column; NULL: none is added */
    int32_t m, n;          /* what is left of C from the block's first element on */
    int32_t depth;
};

/* Finds tile number `tile` of `high` rows; each expert begins with a tile of its own, the rows past the last expert
 * come last. Gives the expert (-1: none), the first row and the end of the expert's rows; false: no such tile. All
 * lanes look, 32 experts at a time. */
DEVICE bool find_rows(int32_t &expert, int32_t &first, int32_t &end, const launch_grouped &in, int32_t tile, int high)
{
    int lane = (int)threadIdx.x % WARP;
    for (int32_t e = 0; e < in.experts; e += WARP) {
        int32_t own = e + lane < in.experts ? e + lane : in.experts - 1;
        int32_t from = in.offsets[own], to = in.offsets[own + 1];
        int32_t tiles = e + lane < in.experts ? (to - from + high - 1) / high : 0, before = tiles;
        UNROLL for (int step = 1; step < WARP; step *= 2)
        {
            int32_t sum = warp_from(before, lane - step);
            before += lane >= step ? sum : 0;
        }
        int32_t all = warp_from(before, WARP - 1);
        if (tile < all) {
            int32_t who = count_bits(warp_ballot(tile >= before));
            expert = e + who;
            first = warp_from(from, who) + (tile - warp_from(before - tiles, who)) * high;
            end = warp_from(to, who);
            return true;
        }
        tile -= all;
    }
    expert = -1;
    first = in.offsets[in.experts] + tile * high;
    end = (int32_t)in.rows;
    return first < end;
}

/* Gives the block's operands of SIDE_OF rows and columns, and its output; false: no tile is left. grid: tiles of rows
 * times `across` tiles of columns */
template <typename T, bool B_TRANSPOSED, int SIDE_OF>
DEVICE bool rows_of(grouped_part<T> &of, T *&to, const launch_grouped &in, int32_t across)
{
    int32_t tile = (int32_t)blockIdx.x / across, column = ((int32_t)blockIdx.x - tile * across) * SIDE_OF;
    int32_t expert, first, end;
    if (!find_rows(expert, first, end, in, tile, SIDE_OF))
        return false;
    int64_t weight = B_TRANSPOSED ? expert * in.k * in.b.pitch + column : (expert * in.n + column) * in.b.pitch;
    of.a = (const T *)in.a.at + first * in.a.pitch;
    of.b = (const T *)in.b.at + (expert < 0 ? 0 : weight);
    of.bias = !B_TRANSPOSED && in.bias && expert >= 0 ? (const T *)in.bias + expert * in.n + column : nullptr;
    of.m = end - first < SIDE_OF ? end - first : SIDE_OF;
    of.n = (int32_t)in.n - column;
    of.depth = expert < 0 ? 0 : (int32_t)in.k;
    to = (T *)in.c.at + first * in.c.pitch + column;
    return true;
}

/* Gives the block's operands of a sum over rows. grid: (tiles of columns, tiles of rows, experts) */
template <typename T, int SIDE_OF> DEVICE grouped_part<T> sums_of(float *&to, const launch_grouped &in)
{
    int32_t column = (int32_t)blockIdx.x * SIDE_OF, row = (int32_t)blockIdx.y * SIDE_OF, expert = (int32_t)blockIdx.z;
    int32_t first = in.offsets[expert];
    to = (float *)in.c.at + (expert * in.m + row) * in.c.pitch + column;
    return {(const T *)in.a.at + first * in.a.pitch + row,
            (const T *)in.b.at + first * in.b.pitch + column,
            nullptr,
            (int32_t)in.m - row,
            (int32_t)in.n - column,
            in.offsets[expert + 1] - first};
}

/* ---- tiles of 16 bits -------------------------------------------------------------------------------------------- */

/* Copies [SIDE, DEPTH] of an operand into a tile, or turned [DEPTH, SIDE]; zeros beyond `across` and `depth`. */
template <bool TRANSPOSED, typename T>
DEVICE void fetch(T *tile, const T *from, int64_t pitch, int32_t across, int32_t depth)
{
    constexpr int PIECES = (TRANSPOSED ? SIDE : DEPTH) / PIECE, STEP = TRANSPOSED ? TRANSPOSED_STRIDE : STRIDE;
    for (int i = (int)threadIdx.x; i < SIDE * DEPTH / PIECE; i += GROUPED_THREADS) {
        int row = i / PIECES, column = i % PIECES * PIECE;
        bool valid = TRANSPOSED ? row < depth && column < across : row < across && column < depth;
        copy_async(tile + row * STEP + column, valid ? from + row * pitch + column : from, valid);
    }
}

/* Loads the fragment of A of rows [row, row + 16) and steps [k, k + 16), and B's of columns [column, column + 16). */
template <bool TRANSPOSED, typename T> DEVICE void load_left(uint32_t (&to)[4], const T *tile, int row, int k)
{
    int lane = (int)threadIdx.x % WARP;
    if constexpr (TRANSPOSED)
        load_matrix_transposed(to, tile + (k + lane % 8 + lane / 16 * 8) * TRANSPOSED_STRIDE + row + lane / 8 % 2 * 8);
    else
        load_matrix(to, tile + (row + lane % 16) * STRIDE + k + lane / 16 * 8);
}

template <bool TRANSPOSED, typename T> DEVICE void load_right(uint32_t (&to)[4], const T *tile, int column, int k)
{
    int lane = (int)threadIdx.x % WARP;
    if constexpr (TRANSPOSED)
        load_matrix_transposed(to, tile + (k + lane % 16) * TRANSPOSED_STRIDE + column + lane / 16 * 8);
    else
        load_matrix(to, tile + (column + lane % 8 + lane / 16 * 8) * STRIDE + k + lane / 8 % 2 * 8);
}

/* c += A B of the block's part, this warp's rows and columns of it; shared: STAGES times two tiles */
template <bool A_TRANSPOSED, bool B_TRANSPOSED, typename T>
DEVICE void multiply(float (&c)[MT][NT][4], const grouped_part<T> &of, int64_t a_pitch, int64_t b_pitch, T *shared)
{
    int warp = (int)threadIdx.x / WARP, row = warp / 4 * WARP_ROWS, column = warp % 4 * WARP_COLUMNS;
    auto fetch_step = [&](int32_t k) {
        T *a = shared + k / DEPTH % STAGES * 2 * TILE;
        if (k < of.depth) {
            fetch<A_TRANSPOSED>(a, of.a + (A_TRANSPOSED ? k * a_pitch : k), a_pitch, of.m, of.depth - k);
            fetch<B_TRANSPOSED>(a + TILE, of.b + (B_TRANSPOSED ? k * b_pitch : k), b_pitch, of.n, of.depth - k);
        }
        copy_commit();
    };
    UNROLL for (int k = 0; k < STAGES - 1; k++) fetch_step(k * DEPTH);
    for (int32_t k = 0; k < of.depth; k += DEPTH) {
        copy_wait<STAGES - 2>();
        block_barrier(); /* this step is there; no thread reads the tiles of the last one any more */
        fetch_step(k + (STAGES - 1) * DEPTH);
        const T *a = shared + k / DEPTH % STAGES * 2 * TILE, *b = a + TILE;
        UNROLL for (int i = 0; i < DEPTH; i += 16)
        {
            uint32_t left[MT][4];
            UNROLL for (int m = 0; m < MT; m++) load_left<A_TRANSPOSED>(left[m], a, row + m * 16, i);
            UNROLL for (int n = 0; n < NT; n += 2)
            {
                uint32_t right[4];
                load_right<B_TRANSPOSED>(right, b, column + n * 8, i);
                UNROLL for (int m = 0; m < MT; m++)
                {
                    multiply_add(c[m][n], left[m], right[0], right[1], T());
                    multiply_add(c[m][n + 1], left[m], right[2], right[3], T());
                }
            }
        }
    }
    copy_wait<0>();
}

/* Calls f(row, column, c, c of the next column) for this thread's elements of the block. */
template <typename F> DEVICE void each_pair(const float (&c)[MT][NT][4], F f)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int row = warp / 4 * WARP_ROWS + lane / 4, column = warp % 4 * WARP_COLUMNS + lane % 4 * 2;
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int n = 0; n < NT; n++) UNROLL for (int half = 0; half < 2; half++)
        f(row + m * 16 + half * 8, column + n * 8, c[m][n][half * 2], c[m][n][half * 2 + 1]);
}

/* y = x w_e^T, or B_TRANSPOSED dx = dy w_e */
template <typename T, bool B_TRANSPOSED> KERNEL(GROUPED_THREADS, 2) grouped_rows_kernel(launch_grouped in, int32_t across)
{
    SHARED_DYNAMIC(dynamic);
    grouped_part<T> of;
    T *to;
    if (!rows_of<T, B_TRANSPOSED, SIDE>(of, to, in, across))
        return;
    float c[MT][NT][4] = {};
    multiply<false, B_TRANSPOSED>(c, of, in.a.pitch, in.b.pitch, reinterpret_cast<T *>(dynamic));
    each_pair(c, [&](int i, int j, float one, float other) {
        if (i >= of.m || j >= of.n)
            return;
        if (!B_TRANSPOSED && of.bias) { /* dx has none: its registers would not suffice */
            one += to_float(of.bias[j]);
            other += to_float(of.bias[j + 1]);
        }
        *reinterpret_cast<uint32_t *>(to + i * in.c.pitch + j) = pack_two<T>(one, other);
    });
}

/* dw_e (+)= dy^T x over the rows of expert e */
template <typename T> KERNEL(GROUPED_THREADS, 2) grouped_sums_kernel(launch_grouped in, bool accumulate)
{
    SHARED_DYNAMIC(dynamic);
    float *to;
    grouped_part<T> of = sums_of<T, SIDE>(to, in);
    float c[MT][NT][4] = {};
    multiply<true, true>(c, of, in.a.pitch, in.b.pitch, reinterpret_cast<T *>(dynamic));
    each_pair(c, [&](int i, int j, float one, float other) {
        if (i >= of.m || j >= of.n)
            return;
        float2 *at = reinterpret_cast<float2 *>(to + i * in.c.pitch + j), was = {0.0f, 0.0f};
        if (accumulate)
            was = *at;
        *at = {was.x + one, was.y + other};
    });
}

/* ---- any type, any size ------------------------------------------------------------------------------------------ */

static constexpr int PLAIN = 64, PLAIN_DEPTH = 16, EACH = 4; /* a thread has 4 by 4 elements, 16 apart */

/* Copies [PLAIN, PLAIN_DEPTH] of an operand as fp32, k first. */
template <bool TRANSPOSED, typename T>
DEVICE void load_plain(float *tile, const T *from, int64_t pitch, int32_t across, int32_t depth)
{
    for (int i = (int)threadIdx.x; i < PLAIN * PLAIN_DEPTH; i += GROUPED_THREADS) {
        int row = TRANSPOSED ? i % PLAIN : i / PLAIN_DEPTH, k = TRANSPOSED ? i / PLAIN : i % PLAIN_DEPTH;
        bool valid = row < across && k < depth;
        tile[k * (PLAIN + 1) + row] = valid ? to_float(from[TRANSPOSED ? k * pitch + row : row * pitch + k]) : 0.0f;
    }
}

template <bool A_TRANSPOSED, bool B_TRANSPOSED, typename T>
DEVICE void multiply_plain(float (&c)[EACH][EACH], const grouped_part<T> &of, int64_t a_pitch, int64_t b_pitch)
{
    SHARED(float, a, PLAIN_DEPTH *(PLAIN + 1));
    SHARED(float, b, PLAIN_DEPTH *(PLAIN + 1));
    int row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16;
    for (int32_t k = 0; k < of.depth; k += PLAIN_DEPTH) {
        block_barrier(); /* the last step has been read */
        load_plain<A_TRANSPOSED>(a, of.a + (A_TRANSPOSED ? k * a_pitch : k), a_pitch, of.m, of.depth - k);
        load_plain<B_TRANSPOSED>(b, of.b + (B_TRANSPOSED ? k * b_pitch : k), b_pitch, of.n, of.depth - k);
        block_barrier(); /* this step is there */
        UNROLL for (int i = 0; i < PLAIN_DEPTH; i++)
        {
            float left[EACH], right[EACH];
            UNROLL for (int j = 0; j < EACH; j++)
            {
                left[j] = a[i * (PLAIN + 1) + row + j * 16];
                right[j] = b[i * (PLAIN + 1) + column + j * 16];
            }
            UNROLL for (int m = 0; m < EACH; m++) UNROLL for (int n = 0; n < EACH; n++) c[m][n] =
                fmaf(left[m], right[n], c[m][n]);
        }
    }
}

template <typename T, bool B_TRANSPOSED> KERNEL(GROUPED_THREADS, 2) grouped_rows_plain(launch_grouped in, int32_t across)
{
    grouped_part<T> of;
    T *to;
    if (!rows_of<T, B_TRANSPOSED, PLAIN>(of, to, in, across))
        return;
    float c[EACH][EACH] = {};
    multiply_plain<false, B_TRANSPOSED>(c, of, in.a.pitch, in.b.pitch);
    UNROLL for (int m = 0; m < EACH; m++) UNROLL for (int n = 0; n < EACH; n++)
    {
        int i = (int)threadIdx.x / 16 + m * 16, j = (int)threadIdx.x % 16 + n * 16;
        if (i < of.m && j < of.n)
            from_float(to[i * in.c.pitch + j], c[m][n] + (of.bias ? to_float(of.bias[j]) : 0.0f));
    }
}

template <typename T> KERNEL(GROUPED_THREADS, 2) grouped_sums_plain(launch_grouped in, bool accumulate)
{
    float *to;
    grouped_part<T> of = sums_of<T, PLAIN>(to, in);
    float c[EACH][EACH] = {};
    multiply_plain<true, true>(c, of, in.a.pitch, in.b.pitch);
    UNROLL for (int m = 0; m < EACH; m++) UNROLL for (int n = 0; n < EACH; n++)
    {
        int i = (int)threadIdx.x / 16 + m * 16, j = (int)threadIdx.x % 16 + n * 16;
        if (i < of.m && j < of.n)
            to[i * in.c.pitch + j] = (accumulate ? to[i * in.c.pitch + j] : 0.0f) + c[m][n];
    }
}

/* db_e (+)= the sum of the rows of expert e: 32 columns a block; its warps share the rows. grid (blocks of columns,
 * experts) */
template <typename T>
KERNEL(GROUPED_THREADS, 2)
grouped_column_sums(float *db, const T *x, int64_t pitch, const int32_t *offsets, int64_t columns, bool accumulate)
{
    constexpr int WARPS = GROUPED_THREADS / WARP;
    SHARED(float, part, WARPS *WARP);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * WARP + lane;
    float sum = 0;
    for (int64_t row = offsets[blockIdx.y] + warp; row < offsets[blockIdx.y + 1] && column < columns; row += WARPS)
        sum += to_float(x[row * pitch + column]);
    part[warp * WARP + lane] = sum;
    block_barrier();
    if (warp || column >= columns)
        return;
    float total = 0;
    UNROLL for (int i = 0; i < WARPS; i++) total += part[i * WARP + lane];
    float *to = db + blockIdx.y * columns + column;
    *to = accumulate ? *to + total : total;
}

/* ---- host side --------------------------------------------------------------------------------------------------- */

/* Checks that pieces of 16 bytes divide every row of 16-bit operands, and pairs the rows of C. */
static bool in_pieces(const launch_grouped *of)
{
    return aligned_all(of->a.at, of->b.at, of->c.at) && of->a.pitch % PIECE == 0 && of->b.pitch % PIECE == 0 &&
           of->c.pitch % PIECE == 0 && of->m % PIECE == 0 && of->n % PIECE == 0 && of->k % PIECE == 0;
}

static constexpr int GROUPED_SHARED = STAGES * 2 * TILE * 2;

/* The most tiles that `rows` can need: each expert's last may be partial, and so may that of the remaining rows. */
static unsigned row_blocks(const launch_grouped *of, int high, int64_t across)
{
    return (unsigned)((of->rows / high + of->experts + 1) * across);
}

template <typename T, bool B_TRANSPOSED> static int run_rows(cudaStream_t stream, const launch_grouped *of)
{
    if constexpr (sizeof(T) == 2)
        if (in_pieces(of)) {
            int64_t across = divide_up(of->n, SIDE);
            return launch(grouped_rows_kernel<T, B_TRANSPOSED>, row_blocks(of, SIDE, across), GROUPED_THREADS,
                          GROUPED_SHARED, stream, *of, (int32_t)across);
        }
    int64_t across = divide_up(of->n, PLAIN);
    return launch(grouped_rows_plain<T, B_TRANSPOSED>, row_blocks(of, PLAIN, across), GROUPED_THREADS, 0, stream, *of,
                  (int32_t)across);
}

static dim3 sum_blocks(const launch_grouped *of, int side)
{
    return dim3((unsigned)divide_up(of->n, side), (unsigned)divide_up(of->m, side), (unsigned)of->experts);
}

template <typename T> static int run_sums(cudaStream_t stream, const launch_grouped *of, bool accumulate)
{
    if constexpr (sizeof(T) == 2)
        if (in_pieces(of)) {
            return launch(grouped_sums_kernel<T>, sum_blocks(of, SIDE), GROUPED_THREADS, GROUPED_SHARED, stream, *of,
                          accumulate);
        }
    return launch(grouped_sums_plain<T>, sum_blocks(of, PLAIN), GROUPED_THREADS, 0, stream, *of, accumulate);
}

/* The op's operands as kernels/grouped.h names them, without sizes. */
static launch_grouped grouped_operands(const op *o, const run_context *r)
{
    return {matrix(o->in[0], r),
            matrix(o->in[1], r),
            matrix(o->out[0], r),
            data<const int32_t>(o->in[2], r),
            (int32_t)(o->in[2]->shape[0] - 1),
            o->in[0]->shape[0],
            0,
            o->out[0]->shape[1],
            0,
            data(o->in[3], r)};
}

/* c[rows, n] T, row by row: a[rows, k] T times the expert's b_e[n, k] T transposed, or b_e[k, n], plus its bias; b
 * stacks the experts' matrices. Rows without an expert become zeros. */
template <bool B_TRANSPOSED> static void multiply_rows(const op *o, const run_context *r)
{
    launch_grouped of = grouped_operands(o, r);
    of.k = o->in[0]->shape[1];
    cuda_launched(o, with_type(o->in[0]->type,
                               [&](auto t) { return run_rows<decltype(t), B_TRANSPOSED>((cudaStream_t)r->stream, &of); }));
}

CUDA_OP(grouped_linear, multiply_rows<false>(o, r))
CUDA_OP(grouped_linear_grad_input, multiply_rows<true>(o, r))

/* c_e[m, n] fp32 (+)= a^T b over each expert's rows of a[rows, m] T and b[rows, n] T */
void cuda_grouped_linear_grad_weight(const op *o, const run_context *r)
{
    launch_grouped of = grouped_operands(o, r);
    of.m = o->in[0]->shape[1];
    cuda_launched(o, with_type(o->in[0]->type, [&](auto t) {
                      return run_sums<decltype(t)>((cudaStream_t)r->stream, &of, o->at.accumulate != OP_WRITES);
                  }));
}

/* db[experts n] fp32 (+)= the sum of x[.., n] T over each expert's rows */
void cuda_grouped_bias_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *offsets = o->in[1];
    cuda_launched(o, with_type(dy->type, [&](auto t) {
                      using T = decltype(t);
                      dim3 grid(blocks_for(dy->shape[1], WARP), (unsigned)(offsets->shape[0] - 1), 1);
                      return launch(grouped_column_sums<T>, grid, GROUPED_THREADS, 0, r->stream,
                                    data<float>(o->out[0], r), data<const T>(dy, r), dy->pitch,
                                    data<const int32_t>(offsets, r), dy->shape[1], o->at.accumulate != OP_WRITES);
                  }));
}
