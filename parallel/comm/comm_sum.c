#include "parallel/comm/comm_sum.h"

#include <string.h>

#include "memory/log.h"

/* Elements summed at a time: the accumulators stay in the first-level cache, and `out` may be one of the inputs. */
enum { TILE = 1024 };

/* The types whose own arithmetic is the accumulator's. Unsigned, because signed overflow is undefined. */
#define DIRECT(name, T)                                                                                                \
    static void name(void *out, const void *const *in, int arrays, int64_t first, int64_t count)                       \
    {                                                                                                                  \
        T sum[TILE];                                                                                                   \
        memcpy(sum, (const T *)in[0] + first, (size_t)count * sizeof(T));                                              \
        for (int a = 1; a < arrays; a++) {                                                                             \
            const T *term = (const T *)in[a] + first;                                                                  \
            _Pragma("omp simd") for (int64_t i = 0; i < count; i++) sum[i] += term[i];                                 \
        }                                                                                                              \
        memcpy((T *)out + first, sum, (size_t)count * sizeof(T));                                                      \
    }

DIRECT(sum_fp32, float)
DIRECT(sum_fp64, double)
DIRECT(sum_int32, uint32_t)
DIRECT(sum_int64, uint64_t)

static void sum_narrow(void *out, const void *const *in, int arrays, int64_t first, int64_t count, dtype type)
{
    float sum[TILE], term[TILE];
    dtype_convert(sum, DTYPE_FP32, (const uint16_t *)in[0] + first, type, count);
    for (int a = 1; a < arrays; a++) {
        dtype_convert(term, DTYPE_FP32, (const uint16_t *)in[a] + first, type, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            sum[i] += term[i];
    }
    dtype_convert((uint16_t *)out + first, type, sum, DTYPE_FP32, count);
}

static void sum_bf16(void *out, const void *const *in, int arrays, int64_t first, int64_t count)
{
    sum_narrow(out, in, arrays, first, count, DTYPE_BF16);
}

static void sum_fp16(void *out, const void *const *in, int arrays, int64_t first, int64_t count)
{
    sum_narrow(out, in, arrays, first, count, DTYPE_FP16);
}

typedef void (*tile_sum)(void *out, const void *const *in, int arrays, int64_t first, int64_t count);

static const tile_sum sums[DTYPE_COUNT] = {
    [DTYPE_FP32] = sum_fp32, [DTYPE_BF16] = sum_bf16,   [DTYPE_FP16] = sum_fp16,
    [DTYPE_FP64] = sum_fp64, [DTYPE_INT32] = sum_int32, [DTYPE_INT64] = sum_int64,
};

bool comm_sum_takes(dtype type)
{
    return sums[type] != NULL;
}

void comm_sum(void *out, const void *const *in, int arrays, int64_t count, dtype type)
{
    MUST(sums[type] && arrays > 0, "no sum of %d arrays of %s", arrays, dtype_name(type));
    for (int64_t first = 0; first < count; first += TILE)
        sums[type](out, in, arrays, first, count - first < TILE ? count - first : TILE);
}
