/* Normal deviates as a function of (seed, name, index): Philox and Box-Muller in plain arithmetic, the same bits on
 * every machine. */
#pragma once

#include <stdint.h>

/* out[i] = deviation x normal number first + i of the stream, which is that of a name: philox_stream() */
void normal_fill(float *out, uint64_t seed, uint64_t stream, int64_t first, int64_t count, float deviation);
