/* What dtype.h promises: exact widening, narrowing to the nearest value with ties to even, NaN kept. */
#include <math.h>
#include <string.h>

#include "memory/dtype.h"
#include "tests/test.h"

typedef struct small {
    dtype type;
    int bits, infinity; /* infinity: bits of +infinity, or -1 */
} small;

static const small smalls[] = {
    {DTYPE_BF16, 16, 0x7f80}, {DTYPE_FP16, 16, 0x7c00}, {DTYPE_FP8_E4M3, 8, -1}, {DTYPE_FP8_E5M2, 8, 0x7c}};

static double decode(const small *s, uint32_t bits)
{
    double value;
    dtype_convert(&value, DTYPE_FP64, &bits, s->type, 1); /* little-endian: the low bytes come first */
    return value;
}

static uint32_t encode(const small *s, double value)
{
    uint32_t bits = 0;
    dtype_convert(&bits, s->type, &value, DTYPE_FP64, 1);
    return bits;
}

TEST(every_small_float_survives_a_round_trip)
{
    for (size_t k = 0; k < sizeof smalls / sizeof *smalls; k++) {
        const small *s = &smalls[k];
        for (uint32_t bits = 0; bits < 1u << s->bits; bits++) {
            double value = decode(s, bits);
            if (isnan(value))
                assert_true(isnan(decode(s, encode(s, value))));
            else
                assert_int_equal(encode(s, value), bits);
        }
    }
}

/* Between two neighbours a < b: just below the middle goes to a, just above to b, the middle to the even one. The
 * offsets are far below fp32's resolution, so that rounding twice would be seen. */
TEST(narrowing_is_to_nearest_even_and_rounds_once)
{
    for (size_t k = 0; k < sizeof smalls / sizeof *smalls; k++) {
        const small *s = &smalls[k];
        for (uint32_t bits = 0; bits < 1u << (s->bits - 1); bits++) {
            double a = decode(s, bits), b = decode(s, bits + 1);
            if (!isfinite(a) || !isfinite(b) || b < a)
                continue;
            double middle = a + (b - a) / 2;
            assert_int_equal(encode(s, nextafter(middle, 0)), bits);
            assert_int_equal(encode(s, nextafter(middle, INFINITY)), bits + 1);
            assert_int_equal(encode(s, middle), bits & 1 ? bits + 1 : bits);
            assert_int_equal(encode(s, -middle), (bits & 1 ? bits + 1 : bits) | 1u << (s->bits - 1));
        }
    }
}

TEST(overflow_becomes_infinity_or_nan)
{
    for (size_t k = 0; k < sizeof smalls / sizeof *smalls; k++) {
        const small *s = &smalls[k];
        if (s->infinity >= 0) {
            assert_int_equal(encode(s, 1e300), s->infinity);
            assert_int_equal(encode(s, INFINITY), s->infinity);
        } else
            assert_true(isnan(decode(s, encode(s, 1e300))));
    }
    assert_int_equal(encode(&smalls[1], 65519.99), 0x7bff); /* fp16: largest 65504, half a step further is 65520 */
    assert_int_equal(encode(&smalls[1], 65520), 0x7c00);
}

TEST(nan_with_a_low_payload_stays_nan)
{
    uint32_t bits = 0x7f800001;
    float value;
    memcpy(&value, &bits, 4);
    assert_true(isnan(bf16_to_float(float_to_bf16(value))));
    assert_true(isnan(fp16_to_float(float_to_fp16(value))));
    uint16_t out[3];
    float in[3] = {value, value, value};
    dtype_convert(out, DTYPE_BF16, in, DTYPE_FP32, 3);
    assert_true(isnan(bf16_to_float(out[2])));
}

TEST(known_values)
{
    assert_int_equal(float_to_bf16(1.0f), 0x3f80);
    assert_int_equal(float_to_fp16(1.0f), 0x3c00);
    assert_int_equal(float_to_fp16(-2.0f), 0xc000);
    assert_int_equal(float_to_fp16(0x1p-24f), 1);
    static const struct {
        dtype type;
        float value;
        uint8_t bits;
    } known[] = {{DTYPE_FP8_E4M3, 448, 0x7e},
                 {DTYPE_FP8_E4M3, 1, 0x38},
                 {DTYPE_FP8_E5M2, 1, 0x3c},
                 {DTYPE_FP8_E5M2, 57344, 0x7b}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint8_t bits;
        float value;
        dtype_convert(&bits, known[i].type, &known[i].value, DTYPE_FP32, 1);
        dtype_convert(&value, DTYPE_FP32, &known[i].bits, known[i].type, 1);
        assert_int_equal(bits, known[i].bits);
        assert_true(value == known[i].value);
    }
}

TEST(integers_are_clamped)
{
    const double in[] = {-1e30, -129, -1.9, 0, 300, 1e30, NAN};
    int8_t i8[7];
    uint16_t u16[7];
    int64_t i64[7];
    uint64_t u64[7];
    dtype_convert(i8, DTYPE_INT8, in, DTYPE_FP64, 7);
    dtype_convert(u16, DTYPE_UINT16, in, DTYPE_FP64, 7);
    dtype_convert(i64, DTYPE_INT64, in, DTYPE_FP64, 7);
    dtype_convert(u64, DTYPE_UINT64, in, DTYPE_FP64, 7);
    assert_int_equal(i8[0], -128);
    assert_int_equal(i8[1], -128);
    assert_int_equal(i8[2], -1);
    assert_int_equal(i8[4], 127);
    assert_int_equal(i8[6], 0);
    assert_int_equal(u16[0], 0);
    assert_int_equal(u16[4], 300);
    assert_int_equal(u16[5], 65535);
    assert_true(i64[0] == INT64_MIN && i64[5] == INT64_MAX && u64[5] == UINT64_MAX && u64[0] == 0);
}

TEST(names_and_sizes)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        dtype found = DTYPE_COUNT;
        assert_true(dtype_find(&found, dtype_name((dtype)i)));
        assert_int_equal(found, i);
        assert_true(dtype_bytes((dtype)i) >= 1 && dtype_bytes((dtype)i) <= 8);
    }
    dtype untouched = DTYPE_FP64;
    assert_false(dtype_find(&untouched, "float"));
    assert_int_equal(untouched, DTYPE_FP64);
}

/* At every place, so that no tail of a vector is passed over. */
TEST(one_value_that_is_not_finite_is_found)
{
    static const dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16, DTYPE_FP64, DTYPE_FP8_E5M2, DTYPE_FP8_E4M3};
    double values[67], wild[] = {NAN, -NAN, INFINITY, -INFINITY};
    char stored[1 + sizeof values];
    for (int t = 0; t < 6; t++)
        for (int at = -1; at < 67; at++)
            for (int k = 0; k < 4; k++) {
                for (int i = 0; i < 67; i++)
                    values[i] = i == at ? wild[k] : (i % 2 ? 1 : -1) * 448.0 / (i + 1);
                dtype_convert(stored + 1, types[t], values, DTYPE_FP64, 67);
                assert_int_equal(dtype_all_finite(types[t], stored + 1, 67), at < 0);
            }
    memset(stored, 0xff, sizeof stored);
    assert_true(dtype_all_finite(DTYPE_INT32, stored, 67));
}

TEST_MAIN(NULL, NULL)
