/* Helpers of most kernels: element types as floats, 16-byte accesses, reductions over a warp and over a block.
 *
 * A kernel is a template over the element type T and the elements V of one access: 16 bytes where sizes, pitches and
 * addresses allow it (`vectors`), else 1. All sums are fp32 in an order that sizes alone decide.
 */
#pragma once

#include <type_traits>

#include "kernels/cuda/bind.cuh"
#include "kernels/cuda/device.cuh"

using bf16 = __nv_bfloat16;
using fp16 = __half;

DEVICE float to_float(float x)
{
    return x;
}

DEVICE float to_float(bf16 x)
{
    return __bfloat162float(x);
}

DEVICE float to_float(fp16 x)
{
    return __half2float(x);
}

DEVICE void from_float(float &to, float x)
{
    to = x;
}

DEVICE void from_float(bf16 &to, float x)
{
    to = __float2bfloat16_rn(x);
}

DEVICE void from_float(fp16 &to, float x)
{
    to = __float2half_rn(x);
}

/* x rounded as a reader of T will see it */
template <typename T> DEVICE float rounded(float x)
{
    T narrow;
    from_float(narrow, x);
    return to_float(narrow);
}

/* two neighbours in one register, the first in the low half */
template <typename T> DEVICE uint32_t pack_two(float low, float high)
{
    T both[2];
    from_float(both[0], low);
    from_float(both[1], high);
    uint32_t bits;
    memcpy(&bits, both, sizeof bits);
    return bits;
}

template <typename T> constexpr int VECTOR = 16 / (int)sizeof(T);

template <int bytes> struct word;
template <> struct word<16> {
    using type = uint4;
};
template <> struct word<8> {
    using type = uint2;
};
template <> struct word<4> {
    using type = uint32_t;
};
template <> struct word<2> {
    using type = uint16_t;
};

/* Loads V elements as floats, in one access of up to 16 bytes, or several of 16 (8 floats beside 8 halves). */
template <int V, typename T> DEVICE void load(float (&to)[V], const T *from)
{
    constexpr int bytes = V * (int)sizeof(T) < 16 ? V * (int)sizeof(T) : 16, each = bytes / (int)sizeof(T);
    UNROLL for (int i = 0; i < V; i += each)
    {
        typename word<bytes>::type raw = *reinterpret_cast<const typename word<bytes>::type *>(from + i);
        T narrow[each];
        memcpy(static_cast<void *>(narrow), &raw, bytes);
        UNROLL for (int j = 0; j < each; j++) to[i + j] = to_float(narrow[j]);
    }
}

template <int V, typename T> DEVICE void store(T *to, const float (&from)[V])
{
    constexpr int bytes = V * (int)sizeof(T) < 16 ? V * (int)sizeof(T) : 16, each = bytes / (int)sizeof(T);
    UNROLL for (int i = 0; i < V; i += each)
    {
        T narrow[each];
        UNROLL for (int j = 0; j < each; j++) from_float(narrow[j], from[i + j]);
        typename word<bytes>::type raw;
        memcpy(&raw, narrow, bytes);
        *reinterpret_cast<typename word<bytes>::type *>(to + i) = raw;
    }
}

/* A row of floats that a block keeps, of which each thread has V at every `column` it visits, a multiple of V: in
 * shared memory if HELD, else in device memory, which the compiler must know to use its own instructions for either. In
 * shared memory eight lanes' pieces of 16 bytes go at once: where a thread has two of them, they change places in every
 * other group of four threads, so that eight lanes have eight different places of four banks. Only these two functions
 * know the order. */
template <bool HELD, int V> DEVICE int piece_at(int64_t column, int piece)
{
    return HELD && V == 8 ? piece ^ (int)(column >> 3 & 4) : piece;
}

template <bool HELD, int V> DEVICE void load_kept(float (&to)[V], const float *row, int64_t column)
{
    constexpr int each = V < 4 ? V : 4;
    static_assert(V <= 8, "more than two pieces of 16 bytes");
    UNROLL for (int i = 0; i < V; i += each)
    {
        float piece[each];
        load(piece, row + column + piece_at<HELD, V>(column, i));
        UNROLL for (int j = 0; j < each; j++) to[i + j] = piece[j];
    }
}

template <bool HELD, int V> DEVICE void store_kept(float *row, int64_t column, const float (&from)[V])
{
    constexpr int each = V < 4 ? V : 4;
    UNROLL for (int i = 0; i < V; i += each)
    {
        float piece[each];
        UNROLL for (int j = 0; j < each; j++) piece[j] = from[i + j];
        store(row + column + piece_at<HELD, V>(column, i), piece);
    }
}

/* Sums floats or doubles over a warp. */
template <typename T> DEVICE T warp_sum(T x)
{
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2) x += warp_xor(x, mask);
    return x;
}

DEVICE float warp_largest(float x)
{
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2) x = fmaxf(x, warp_xor(x, mask));
    return x;
}

struct two_sums {
    float a, b;
};

/* The block's sums of a and b, in every thread. Blocks are one-dimensional, of whole warps. */
DEVICE two_sums block_sum(float a, float b)
{
    SHARED(float, part, 64);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    a = warp_sum(a);
    b = warp_sum(b);
    block_barrier(); /* the last sum's readers are done */
    if (lane == 0) {
        part[warp] = a;
        part[32 + warp] = b;
    }
    block_barrier();
    a = lane < warps ? part[lane] : 0.0f;
    b = lane < warps ? part[32 + lane] : 0.0f;
    return {warp_sum(a), warp_sum(b)};
}

/* ---- host side ----------------------------------------------------------------------------------------------- */

static inline int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline unsigned blocks_for(int64_t items, int64_t each)
{
    int64_t blocks = divide_up(items, each);
    return (unsigned)(blocks < 1 ? 1 : blocks > (1 << 30) ? 1 << 30 : blocks);
}

/* The threads of a block with `items` pieces of work, about two a thread, 32 to 512. */
static inline unsigned threads_for(int64_t items)
{
    int64_t threads = divide_up(items, 2 * WARP) * WARP;
    return (unsigned)(threads < WARP ? WARP : threads > 512 ? 512 : threads);
}

/* True if `at`, NULL included, may be read in pieces of `bytes`. */
static inline bool aligned(const void *at, int bytes)
{
    return (uintptr_t)at % (uintptr_t)bytes == 0;
}

static inline bool aligned_all(void)
{
    return true;
}

template <typename... More> static inline bool aligned_all(const void *at, More... more)
{
    return aligned(at, 16) && aligned_all(more...);
}

/* Bytes of dynamic shared memory for a row of floats, 0 if the device does not have that many. */
static inline int held_bytes(int64_t floats)
{
    int64_t bytes = floats * (int64_t)sizeof(float);
    return bytes <= max_dynamic_shared() ? (int)bytes : 0;
}

/* Calls f(T()) with the type that `type` names; an unknown one is an error of the caller. */
template <typename F> static inline int with_type(int type, F f)
{
    switch (type) {
    case DTYPE_FP32:
        return f(float());
    case DTYPE_BF16:
        return f(bf16());
    case DTYPE_FP16:
        return f(fp16());
    default:
        return (int)cudaErrorInvalidValue;
    }
}

/* Calls f(T(), V()) with the elements of one access: a vector where is_wide(elements of a vector), else one. */
template <typename W, typename F> static inline int with_access(int type, W is_wide, F f)
{
    return with_type(type, [&](auto t) {
        constexpr int V = VECTOR<decltype(t)>;
        return is_wide(V) ? f(t, std::integral_constant<int, V>()) : f(t, std::integral_constant<int, 1>());
    });
}

/* ---- reduce.cu: the second stage of every deterministic gradient sum, rows of partial sums added in order ---- */

/* sum[columns] (+)= the sum of the rows of partials[rows, columns], row r at partials + r pitch */
int reduce_partials(void *stream, float *sum, const float *partials, int64_t rows, int64_t columns, int64_t pitch,
                    bool accumulate);
