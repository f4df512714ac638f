/* How a change or a gradient is written for others: smaller than fp32, with what is lost kept for the next time.
 *
 * A row of a table (compress.def) for each method: the bytes of so many elements (known beforehand: buffers are
 * planned), encoding, decoding. Encoding leaves in the values what was not sent (error feedback): sent + kept = given,
 * exactly for none, bf16, int8 and int4, to one rounding of fp32 for topk and dct. Given values must be finite. Pure
 * functions; the same bytes on every machine.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/compress_format.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The words of the methods, ended by NULL. */
extern const char *const compress_words[COMPRESS_KINDS + 1];

int64_t compress_bytes(const compress_method *m, int64_t elements);
/* out[compress_bytes] from values[elements], which become what is kept */
void compress_encode(void *out, float *values, const compress_method *m, int64_t elements);
/* values[elements] = what was sent. False: it is not finite, or no encoding at all. */
bool compress_decode(float *values, const void *in, const compress_method *m, int64_t elements);

#ifdef __cplusplus
}
#endif
