/* The sum of several arrays in their order, for reductions: ((a0 + a1) + a2) + ...
 *
 * fp32 adds in fp32; bf16 and fp16 are widened to fp32, summed, and rounded once; fp64 adds in fp64; integers wrap.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"

bool comm_sum_takes(dtype type);
/* out[count] = in[0][count] + ... + in[arrays - 1][count]; out may be one of them. */
void comm_sum(void *out, const void *const *in, int arrays, int64_t count, dtype type);
