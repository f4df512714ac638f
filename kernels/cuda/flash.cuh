/* Flash attention (2205.14135, 2307.08691), the part that forward and backward share: tiles in shared memory and
 * products of tiles.
 *
 * Heads of q and k have D elements, heads of v and y have E. A tile is rows of D (or E) elements, each padded by 16
 * bytes: D/8 + 1 pieces of 16 bytes is odd, so eight rows of one column of pieces lie in different banks and ldmatrix
 * runs without conflicts. A block is four warps; a warp owns 16 MT rows of the block's own tile (A of the products) and
 * goes through all rows of the other tiles (B). Scores and probabilities stay in registers: the accumulator of one
 * product is the A fragment of the next.
 */
#pragma once

#include "kernels/cuda/vector.cuh"
#include "kernels/heads.h"
#include "kernels/token.h"

static constexpr int FLASH_WARPS = 4, FLASH_THREADS = FLASH_WARPS * WARP, PIECE = 8; /* elements of 16 bytes */
static constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

template <int D> constexpr int STRIDE = D + PIECE;

template <bool CAP> struct flash_capped {
    static constexpr bool value = CAP;
};

/* Heads of a matrix with its own pitch, in elements. */
template <typename T> struct flash_rows {
    T *first;
    int64_t pitch;

    __device__ T *at(int64_t token, int head, int size) const
    {
        return first + token * pitch + (int64_t)head * size;
    }
};

struct launch_heads {
    int32_t heads, kv_heads, head_size, v_head_size;
    int32_t sequence; /* tokens of a sample */
    int32_t window;   /* 0: none */
    float scale;      /* of attention scores */
    float cap;        /* a score s is cap tanh(s scale / cap); 0: s scale */
};

struct launch_attention_operands {
    launch_matrix q, k, v, y;
    float *lse;                    /* [tokens / run, heads, run] */
    const int32_t *document_start; /* [tokens] or NULL */
    const int32_t *token_positions;         /* [tokens] of the queries among the keys; NULL: they are the same tokens */
    int64_t tokens, keys;
    int32_t run; /* so many queries each have neighbouring places in one sample; without token_positions, a sample */
    launch_heads at;
    const void *sinks; /* [heads] T or NULL; its gradient does not read them */
    float *max_logit;    /* [heads, tokens], of neither sinks nor a cap; or NULL */
    int64_t max_logit_pitch;
};

struct launch_attention_gradients {
    launch_matrix dq, dk, dv, dy;
    float *scratch;
};

template <typename T> static inline flash_rows<T> flash_rows_of(const launch_matrix &of)
{
    return {(T *)of.at, of.pitch};
}

/* Consecutive queries of a sample: rows of q from `row` on; the first is at position `shift` of the sample, and the
 * sample's keys begin at row `keys`. */
struct flash_run {
    int64_t row, keys;
    int32_t shift;
};

/* Attention's operands in the kernels. */
template <typename T> struct flash_in {
    flash_rows<const T> q, k, v;
    float *lse;
    const int32_t *document_start, *token_positions;
    int64_t tokens;
    int32_t heads, kv_heads, sequence, window, run, runs;
    float scale, cap;
    const T *sinks; /* [heads] or NULL */
    float *max_logit; /* [heads, tokens] or NULL */
    int64_t max_logit_pitch;

    __device__ flash_run run_at(int32_t i) const
    {
        int64_t row = (int64_t)i * run, place = token_positions ? token_positions[row] : row;
        return {row, token_sample(place, sequence) * sequence, (int32_t)token_position(place, sequence)};
    }

    /* the logsumexps of the queries of run number i */
    __device__ float *lse_of(int32_t i, int head) const
    {
        return lse + (int64_t)(i * heads + head) * run;
    }

    /* Returns the first key that query i of a run may see; it does not fall as i grows. */
    __device__ int32_t lowest(const flash_run &of, int32_t i) const
    {
        return token_first_key(of.shift + i, window, document_start ? document_start[of.row + i] : 0);
    }

    /* Returns one past the last key that query i of a run may see. */
    __device__ int32_t keys_end(const flash_run &of, int32_t i) const
    {
        return token_last_key(of.shift + i) + 1;
    }
};

/* Calls f with an integral constant: true if scores are capped. */
template <typename F> static inline int with_cap(float cap, F f)
{
    return cap > 0 ? f(flash_capped<true>()) : f(flash_capped<false>());
}

/* The factor on scores in the exponent: the scale, or with a cap (their tanh is taken first) the cap. */
template <bool CAP, typename T> DEVICE float exponent_of(const flash_in<T> &in)
{
    return CAP ? in.cap : in.scale;
}

/* A head's sink, a score ahead of all keys' scores; -INFINITY without sinks. */
template <typename T> DEVICE float sink_of(const T *sinks, int head)
{
    return sinks ? to_float(sinks[head]) : -INFINITY;
}

/* tanh(x) = 1 - 2 / (exp(2 x) + 1), to an absolute error of 3e-7, for scores that are sums of 16-bit products */
DEVICE float short_tanh(float x)
{
    return 1.0f - fast_quotient(2.0f, fast_exp2(2.0f * LOG2_E * x) + 1.0f);
}

/* A walk through the queries that see keys [first, end) of a sample, M at a time: head after head, run after run, from
 * the first query that sees one of the keys until the window or the document ends. */
struct query_walk {
    int32_t head, run, query; /* query -1: the run has not been begun */
    flash_run of;
};

/* Returns the walk itself, or moved on past empty ranges; its head is `last_head` at the end. */
template <int M, typename T>
DEVICE query_walk walk_on(query_walk at, const flash_in<T> &in, int64_t keys, int32_t first, int32_t end,
                          int32_t last_head)
{
    for (; at.head < last_head; at.head++, at.run = 0)
        for (; at.run < in.runs; at.run++, at.query = -1) {
            at.of = in.run_at(at.run);
            if (at.of.keys != keys)
                continue;
            if (at.query < 0) {
                int32_t before = token_first_query(first) - at.of.shift;
                at.query = before > 0 ? before / M * M : 0;
            }
            if (at.query < in.run && in.lowest(at.of, at.query) < end)
                return at;
        }
    return at;
}

/* Copies rows [first, first + ROWS) of `from` into a tile, asynchronously; rows from `end` on become zeros. */
template <int D, int ROWS, typename T>
DEVICE void fetch_tile(T *tile, const T *from, int64_t pitch, int32_t first, int32_t end)
{
    for (int i = (int)threadIdx.x; i < ROWS * (D / PIECE); i += FLASH_THREADS) {
        int row = i / (D / PIECE), column = i % (D / PIECE) * PIECE;
        bool valid = first + row < end;
        copy_async(tile + row * STRIDE<D> + column, valid ? from + (first + row) * pitch + column : from, valid);
    }
}

/* c[MT][N/8] += a b^T over D: rows a_row.. of tile a against N rows of tile b */
template <int D, int N, int MT, typename T>
DEVICE void multiply_rows(float (&c)[MT][N / 8][4], const T *a, int a_row, const T *b)
{
    int lane = (int)threadIdx.x % WARP;
    const T *a_at = a + (a_row + lane % 16) * STRIDE<D> + lane / 16 * 8;
    const T *b_at = b + (lane % 8 + lane / 16 * 8) * STRIDE<D> + lane / 8 % 2 * 8;
    UNROLL for (int k = 0; k < D; k += 16)
    {
        uint32_t left[MT][4];
        UNROLL for (int m = 0; m < MT; m++) load_matrix(left[m], a_at + m * 16 * STRIDE<D> + k);
        UNROLL for (int n = 0; n < N; n += 16)
        {
            uint32_t right[4];
            load_matrix(right, b_at + n * STRIDE<D> + k);
            UNROLL for (int m = 0; m < MT; m++)
            {
                multiply_add(c[m][n / 8], left[m], right[0], right[1], T());
                multiply_add(c[m][n / 8 + 1], left[m], right[2], right[3], T());
            }
        }
    }
}

/* c[MT][D/8] += p b: accumulators p[16 MT, N], narrowed to T, against N rows of tile b */
template <int D, int N, int MT, typename T>
DEVICE void multiply_columns(float (&c)[MT][D / 8][4], const float (&p)[MT][N / 8][4], const T *b)
{
    int lane = (int)threadIdx.x % WARP;
    const T *b_at = b + lane % 16 * STRIDE<D> + lane / 16 * 8;
    UNROLL for (int n = 0; n < N; n += 16)
    {
        uint32_t left[MT][4];
        UNROLL for (int m = 0; m < MT; m++) UNROLL for (int i = 0; i < 4; i++) left[m][i] =
            pack_two<T>(p[m][n / 8 + i / 2][i % 2 * 2], p[m][n / 8 + i / 2][i % 2 * 2 + 1]);
        UNROLL for (int d = 0; d < D; d += 16)
        {
            uint32_t right[4];
            load_matrix_transposed(right, b_at + n * STRIDE<D> + d);
            UNROLL for (int m = 0; m < MT; m++)
            {
                multiply_add(c[m][d / 8], left[m], right[0], right[1], T());
                multiply_add(c[m][d / 8 + 1], left[m], right[2], right[3], T());
            }
        }
    }
}

/* Writes this warp's accumulators, times factor[m][half], through its own rows of a tile (which only it reads) to rows
 * [first + a_row, ...) of `to`, in pieces of 16 bytes; skips rows from `end` on. */
template <int D, int MT, typename T>
DEVICE void write_rows(T *to, int64_t pitch, int32_t first, int32_t end, T *tile, int a_row,
                       const float (&c)[MT][D / 8][4], const float (&factor)[MT][2])
{
    int lane = (int)threadIdx.x % WARP;
    warp_barrier();
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int d = 0; d < D / 8; d++)
        UNROLL for (int half = 0; half < 2; half++)
    {
        uint32_t two = pack_two<T>(c[m][d][half * 2] * factor[m][half], c[m][d][half * 2 + 1] * factor[m][half]);
        int row = a_row + m * 16 + half * 8 + lane / 4;
        memcpy(static_cast<void *>(tile + row * STRIDE<D> + d * 8 + lane % 4 * 2), &two, sizeof two);
    }
    warp_barrier();
    for (int i = lane; i < 16 * MT * (D / PIECE); i += WARP) {
        int row = a_row + i / (D / PIECE), column = i % (D / PIECE) * PIECE;
        if (first + row < end)
            *reinterpret_cast<uint4 *>(to + (first + row) * pitch + column) =
                *reinterpret_cast<const uint4 *>(tile + row * STRIDE<D> + column);
    }
}

/* True if a flash kernel has these sizes and all rows begin at multiples of a piece. */
template <typename... M> static inline bool flash_takes(int type, const launch_heads &at, const M &...matrices)
{
    return type != DTYPE_FP32 && heads_are_fused(at.head_size, at.v_head_size) &&
           ((matrices.pitch % PIECE == 0) && ...) && aligned_all(matrices.at...);
}

int flash_forward(void *stream, int type, const launch_attention_operands *of);
int flash_backward(void *stream, int type, const launch_attention_gradients *to, const launch_attention_operands *of);

template <typename T> static inline flash_in<T> flash_of(const launch_attention_operands *of)
{
    return {flash_rows_of<const T>(of->q),
            flash_rows_of<const T>(of->k),
            flash_rows_of<const T>(of->v),
            of->lse,
            of->document_start,
            of->token_positions,
            of->tokens,
            of->at.heads,
            of->at.kv_heads,
            of->at.sequence,
            of->at.window,
            of->run,
            (int32_t)(of->tokens / of->run),
            of->at.scale,
            of->at.cap,
            (const T *)of->sinks,
            of->max_logit,
            of->max_logit_pitch};
}
