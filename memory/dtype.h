/* The element types of tensors and files: names, sizes, and conversion between them.
 *
 * A dtype is a plain number, the index into one table; these functions own no memory. Arithmetic types of the engine
 * come first; the others occur in files and in inputs. Every narrowing rounds to nearest, ties to even, and keeps NaN.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum dtype {
    DTYPE_FP32,
    DTYPE_BF16,
    DTYPE_FP16,
    DTYPE_FP64,
    DTYPE_INT32,
    DTYPE_INT64,
    DTYPE_UINT8,
    DTYPE_INT8,
    DTYPE_INT16,
    DTYPE_UINT16,
    DTYPE_UINT32,
    DTYPE_UINT64,
    DTYPE_BOOL,     /* one byte, 0 or 1 */
    DTYPE_FP8_E4M3, /* finite: no infinity, one NaN (also for larger values), largest value 448 */
    DTYPE_FP8_E5M2,
    DTYPE_COUNT,
} dtype;

int dtype_bytes(dtype type);
/* "fp32", "bf16", ... */
const char *dtype_name(dtype type);
/* Returns false, and leaves *type unchanged, if `name` names no dtype. */
bool dtype_find(dtype *type, const char *name);
/* Returns true for the floating-point types. */
bool dtype_is_float(dtype type);

float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);
float fp16_to_float(uint16_t bits);
uint16_t float_to_fp16(float value);

/* Sets to[i] = from[i] for i < count, correctly rounded to a floating-point `to_type` (int64 and uint64 pass through
 * fp64); to an integer type: towards zero, clamped to its range, NaN becomes 0. Between equal types the bits are
 * copied. The two arrays must not overlap; they need no alignment. */
void dtype_convert(void *to, dtype to_type, const void *from, dtype from_type, int64_t count);

/* True if all values are finite: no NaN and no infinity. Integers are. The array needs no alignment. */
bool dtype_all_finite(dtype type, const void *values, int64_t count);
