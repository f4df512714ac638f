/* Compresses an update or a gradient for sending: an encoding smaller than fp32; its error is kept for the next time.
 *
 * A row of a table (compress.def) for each method: the bytes of n elements (known beforehand: buffers are planned),
 * encoding, decoding. Encoding leaves the unsent remainder in the values (error feedback): sent + kept = given, exactly
 * for none, bf16, int8 and int4, to one rounding of fp32 for topk and dct. Given values must be finite. Pure functions;
 * the same bytes on every machine.
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
/* Encodes values[elements] into out[compress_bytes]; the values become the kept remainder. */
void compress_encode(void *out, float *values, const compress_method *m, int64_t elements);
/* Decodes the sent values into values[elements]. False: a chunk is not finite, or the bytes are no encoding. */
bool compress_decode(float *values, const void *in, const compress_method *m, int64_t elements);

#ifdef __cplusplus
}
#endif
