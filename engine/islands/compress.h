/* How an island's change of a unit is written for the others: smaller than fp32, with what is lost kept for the next time.
 *
 * A row of a table for each method: the bytes of so many elements (known beforehand: buffers are planned), encoding, decoding.
 * Encoding leaves in the values what was not sent (error feedback): sent + kept = given, exactly for none, bf16, int8 and int4, to
 * one rounding of fp32 for topk. Given values must be finite. Pure functions; the same bytes on every machine.
 */
#ifndef PHALANX_ENGINE_ISLANDS_COMPRESS_H
#define PHALANX_ENGINE_ISLANDS_COMPRESS_H

#include <stdbool.h>
#include <stdint.h>

/* In the order of outer.compress's words. */
typedef enum compress_kind {
    COMPRESS_NONE,
    COMPRESS_BF16,
    COMPRESS_INT8, /* blocks of 256 share a scale: largest magnitude / 127 */
    COMPRESS_INT4, /* blocks of 64: / 7 */
    COMPRESS_TOPK, /* of chunks of 4096 the largest, in 2 bits: sign, and one of two magnitudes (SparseLoCo, 2508.15706) */
    COMPRESS_KINDS
} compress_kind;

typedef struct compress_method {
    compress_kind kind;
    double density; /* of COMPRESS_TOPK: the share that is sent, at least one element a chunk */
} compress_method;

enum { COMPRESS_CHUNK = 4096 };

int64_t compress_bytes(const compress_method *m, int64_t elements);
/* out[compress_bytes] from values[elements], which become what is kept */
void compress_encode(void *out, float *values, const compress_method *m, int64_t elements);
/* values[elements] = what was sent. False: it is not finite, or no encoding at all. */
bool compress_decode(float *values, const void *in, const compress_method *m, int64_t elements);

#endif
