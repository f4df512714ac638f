#include "memory/dtype.h"

#include <math.h>
#include <string.h>

#include "memory/log.h"

/* A float of less than 32 bits: 1 sign bit, `exponent` bits, `mantissa` bits; smallest normal number 2^lowest. */
typedef struct format {
    int exponent, mantissa, lowest;
    uint32_t largest;  /* bits of the largest finite value */
    uint32_t overflow; /* bits that a larger value becomes */
    uint32_t nan; /* bits of the NaN that is written; whatever lies above `largest` and is not infinity reads as NaN */
} format;

static const format fp16_format = {5, 10, -14, 0x7bff, 0x7c00, 0x7e00};
static const format fp8_e4m3_format = {4, 3, -6, 0x7e, 0x7f, 0x7f};
static const format fp8_e5m2_format = {5, 2, -14, 0x7b, 0x7c, 0x7e};

static inline uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to nearest even. The mantissa with its leading one is added to the exponent field, so that a carry out of the
 * mantissa raises the exponent, and a subnormal that rounds up becomes the smallest normal number, by itself. */
static inline uint32_t narrow(float value, const format *f)
{
    uint32_t bits = float_bits(value), magnitude = bits & 0x7fffffff;
    uint32_t sign = (bits >> 31) << (f->exponent + f->mantissa);
    if (magnitude > 0x7f800000)
        return sign | f->nan;
    int exponent = (int)(magnitude >> 23) - 127;
    uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000; /* fp32 subnormals are far below every format's range */
    int below = exponent < f->lowest ? f->lowest - exponent : 0, shift = 23 - f->mantissa + below;
    if (shift > 25)
        return sign;
    uint32_t half = 1u << (shift - 1), rest = mantissa & ((1u << shift) - 1), result = mantissa >> shift;
    result += rest > half || (rest == half && (result & 1));
    if (!below)
        result += (uint32_t)(exponent - f->lowest) << f->mantissa;
    return sign | (result > f->largest ? f->overflow : result);
}

static inline float widen(uint32_t bits, const format *f)
{
    uint32_t magnitude = bits & ((1u << (f->exponent + f->mantissa)) - 1);
    uint32_t sign = bits >> (f->exponent + f->mantissa) << 31;
    if (magnitude > f->largest)
        return bits_float(sign | (magnitude == f->overflow && f->overflow != f->nan ? 0x7f800000 : 0x7fc00000));
    if (magnitude >> f->mantissa == 0) /* subnormal: 2^(lowest - mantissa) times the magnitude, exact */
        return bits_float(sign | float_bits((float)magnitude * ldexpf(1, f->lowest - f->mantissa)));
    return bits_float(sign | ((magnitude << (23 - f->mantissa)) + ((uint32_t)(f->lowest - 1 + 127) << 23)));
}

float bf16_to_float(uint16_t bits)
{
    return bits_float((uint32_t)bits << 16);
}

uint16_t float_to_bf16(float value)
{
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* quiet: a payload in the low half must not turn it into infinity */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float fp16_to_float(uint16_t bits)
{
    return widen(bits, &fp16_format);
}

uint16_t float_to_fp16(float value)
{
    return (uint16_t)narrow(value, &fp16_format);
}

/* Returns the fp32 number next to `value` towards zero, with its last bit set if anything was cut off ("round to odd"):
 * rounded again to a type of at most 22 significant bits it equals `value` rounded directly. */
static float odd_float(double value)
{
    float nearest = (float)value;
    if (!(fabs(value) < INFINITY) || (double)nearest == value)
        return nearest;
    uint32_t bits = float_bits(nearest);
    if (fabs((double)nearest) > fabs(value))
        bits--; /* rounds towards zero; from infinity to the largest finite number */
    return bits_float(bits | 1);
}

/* Reads and writes one element through a double: `reads` is the value of `from`, `writes` the element of `value`. */
#define ELEMENT(name, type, reads, writes)                                                                             \
    static double load_##name(const void *at)                                                                          \
    {                                                                                                                  \
        type from;                                                                                                     \
        memcpy(&from, at, sizeof from);                                                                                \
        return reads;                                                                                                  \
    }                                                                                                                  \
    static void store_##name(void *at, double value)                                                                   \
    {                                                                                                                  \
        type to = writes;                                                                                              \
        memcpy(at, &to, sizeof to);                                                                                    \
    }
/* `high` is one beyond the range, which a double holds exactly. */
#define WHOLE(name, type, low, high, most)                                                                             \
    ELEMENT(name, type, (double)from, isnan(value) ? 0 : value <= low ? (type)low : value >= high ? most : (type)value)
#define SMALL(name, type)                                                                                              \
    ELEMENT(name, type, (double)widen(from, &name##_format), (type)narrow(odd_float(value), &name##_format))
WHOLE(int8, int8_t, -0x1p7, 0x1p7, INT8_MAX)
WHOLE(int16, int16_t, -0x1p15, 0x1p15, INT16_MAX)
WHOLE(int32, int32_t, -0x1p31, 0x1p31, INT32_MAX)
WHOLE(int64, int64_t, -0x1p63, 0x1p63, INT64_MAX)
WHOLE(uint8, uint8_t, 0.0, 0x1p8, UINT8_MAX)
WHOLE(uint16, uint16_t, 0.0, 0x1p16, UINT16_MAX)
WHOLE(uint32, uint32_t, 0.0, 0x1p32, UINT32_MAX)
WHOLE(uint64, uint64_t, 0.0, 0x1p64, UINT64_MAX)
ELEMENT(bf16, uint16_t, (double)bf16_to_float(from), float_to_bf16(odd_float(value)))
SMALL(fp16, uint16_t)
SMALL(fp8_e4m3, uint8_t)
SMALL(fp8_e5m2, uint8_t)
ELEMENT(fp32, float, (double)from, (float)value)
ELEMENT(fp64, double, from, value)
ELEMENT(bool, uint8_t, from != 0, !isnan(value) && value != 0)

static const struct {
    const char *name;
    int bytes;
    bool is_float;
    double (*load)(const void *from);
    void (*store)(void *to, double value);
} table[DTYPE_COUNT] = {
    [DTYPE_FP32] = {"fp32", 4, true, load_fp32, store_fp32},
    [DTYPE_BF16] = {"bf16", 2, true, load_bf16, store_bf16},
    [DTYPE_FP16] = {"fp16", 2, true, load_fp16, store_fp16},
    [DTYPE_FP64] = {"fp64", 8, true, load_fp64, store_fp64},
    [DTYPE_INT32] = {"int32", 4, false, load_int32, store_int32},
    [DTYPE_INT64] = {"int64", 8, false, load_int64, store_int64},
    [DTYPE_UINT8] = {"uint8", 1, false, load_uint8, store_uint8},
    [DTYPE_INT8] = {"int8", 1, false, load_int8, store_int8},
    [DTYPE_INT16] = {"int16", 2, false, load_int16, store_int16},
    [DTYPE_UINT16] = {"uint16", 2, false, load_uint16, store_uint16},
    [DTYPE_UINT32] = {"uint32", 4, false, load_uint32, store_uint32},
    [DTYPE_UINT64] = {"uint64", 8, false, load_uint64, store_uint64},
    [DTYPE_BOOL] = {"bool", 1, false, load_bool, store_bool},
    [DTYPE_FP8_E4M3] = {"fp8_e4m3", 1, true, load_fp8_e4m3, store_fp8_e4m3},
    [DTYPE_FP8_E5M2] = {"fp8_e5m2", 1, true, load_fp8_e5m2, store_fp8_e5m2},
};

int dtype_bytes(dtype type)
{
    return table[type].bytes;
}

const char *dtype_name(dtype type)
{
    return table[type].name;
}

bool dtype_is_float(dtype type)
{
    return table[type].is_float;
}

bool dtype_find(dtype *type, const char *name)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (!strcmp(table[i].name, name)) {
            *type = (dtype)i;
            return true;
        }
    return false;
}

/* The pairs that a training run converts by the gigabyte have their own loops; memcpy since arrays may be unaligned. */
static void fp32_to_bf16(char *to, const char *from, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, from + 4 * i, 4);
        uint16_t bits = float_to_bf16(value);
        memcpy(to + 2 * i, &bits, 2);
    }
}

static void bf16_to_fp32(char *to, const char *from, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, from + 2 * i, 2);
        uint32_t value = (uint32_t)bits << 16;
        memcpy(to + 4 * i, &value, 4);
    }
}

void dtype_convert(void *to, dtype to_type, const void *from, dtype from_type, int64_t count)
{
    MUST(to_type < DTYPE_COUNT && from_type < DTYPE_COUNT && count >= 0, "conversion of %lld elements, dtype %d to %d",
         (long long)count, (int)from_type, (int)to_type);
    int to_bytes = table[to_type].bytes, from_bytes = table[from_type].bytes;
    if (count == 0)
        return;
    if (to_type == from_type)
        memcpy(to, from, (size_t)(count * to_bytes));
    else if (to_type == DTYPE_BF16 && from_type == DTYPE_FP32)
        fp32_to_bf16(to, from, count);
    else if (to_type == DTYPE_FP32 && from_type == DTYPE_BF16)
        bf16_to_fp32(to, from, count);
    else
        for (int64_t i = 0; i < count; i++)
            table[to_type].store((char *)to + i * to_bytes, table[from_type].load((const char *)from + i * from_bytes));
}

bool dtype_all_finite(dtype type, const void *values, int64_t count)
{
    MUST(type < DTYPE_COUNT && count >= 0, "%lld values of dtype %d", (long long)count, (int)type);
    const char *from = values;
    const uint16_t exponent = type == DTYPE_BF16 ? 0x7f80 : 0x7c00;
    uint32_t beyond = 0; /* a value is finite unless all bits of its exponent are set */
    uint16_t beyond_16 = 0;
    if (type == DTYPE_FP32) {
#pragma omp simd reduction(| : beyond)
        for (int64_t i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, from + 4 * i, 4);
            beyond |= (bits & 0x7f800000) == 0x7f800000;
        }
    } else if (type == DTYPE_BF16 || type == DTYPE_FP16) {
#pragma omp simd reduction(| : beyond_16)
        for (int64_t i = 0; i < count; i++) {
            uint16_t bits;
            memcpy(&bits, from + 2 * i, 2);
            beyond_16 |= (uint16_t)((bits & exponent) == exponent);
        }
    } else if (table[type].is_float) {
        for (int64_t i = 0; i < count; i++)
            beyond |= !isfinite(table[type].load(from + i * table[type].bytes));
    }
    return !beyond && !beyond_16;
}
