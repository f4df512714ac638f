/* The compressors' formats: sizes, and the cosines of dct. Plain C that is also C++ and CUDA, so that host and device
 * share one definition and write the same bytes. kernels/compress.h states the functions' promises.
 */
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/host_device.h"

typedef enum compress_kind {
#define METHOD(name, word) COMPRESS_##name,
#include "kernels/compress.def"
#undef METHOD
    COMPRESS_KINDS
} compress_kind;

typedef struct compress_method {
    compress_kind kind;
    double density; /* topk and dct: the share that is sent, at least one element of a chunk or run */
} compress_method;

/* Elements of a chunk of topk and of a run of dct. Every method encodes each chunk by itself: the encoding of many is
 * theirs, one after another. */
enum { COMPRESS_CHUNK = 4096, COMPRESS_RUN = 64 };

/* int8 and int4: elements that share a scale, an fp32 in front of them; the largest integer. int4: two to a byte, the
 * first in the low half, each plus 8; the unused half after an odd last one is 8. */
enum { COMPRESS_BLOCK8 = 256, COMPRESS_BLOCK4 = 64, COMPRESS_TOP8 = 127, COMPRESS_TOP4 = 7, COMPRESS_SCALE = 4 };

/* topk: a chunk is two levels, magnitudes in bf16; k places, ascending, without a gap between their bits, lowest first;
 * from the next byte on k codes (bit 0: negative, bit 1: the second, larger level). A level is the mean of its side,
 * and its fp64 sum is made of COMPRESS_SUMS: number i of the k goes to sum i mod COMPRESS_SUMS, then the upper half of
 * the sums is added to the lower, until one is left. dct: a run is k places, and from the next byte on k coefficients
 * in bf16. */
enum {
    COMPRESS_LEVELS = 4,
    COMPRESS_INDEX_BITS = 12,
    COMPRESS_CODE_BITS = 2,
    COMPRESS_RUN_PLACE_BITS = 6,
    COMPRESS_SUMS = 32
};

/* Elements of n that are sent. */
HOST_DEVICE_INLINE int64_t compress_kept(double density, int64_t n)
{
    int64_t k = (int64_t)ceil(density * (double)n);
    return k < 1 ? 1 : k < n ? k : n;
}

/* Bytes that hold `fields` fields of `bits` bits, rounded up. */
HOST_DEVICE_INLINE int64_t compress_field_bytes(int64_t fields, int bits)
{
    return (fields * bits + 7) / 8;
}

/* Bytes of a chunk of topk that sends k, and of a run of dct. */
HOST_DEVICE_INLINE int64_t compress_chunk_bytes(int64_t k)
{
    return COMPRESS_LEVELS + compress_field_bytes(k, COMPRESS_INDEX_BITS) + compress_field_bytes(k, COMPRESS_CODE_BITS);
}

HOST_DEVICE_INLINE int64_t compress_run_bytes(int64_t k)
{
    return compress_field_bytes(k, COMPRESS_RUN_PLACE_BITS) + 2 * k;
}

/* cos(pi j / 128): literals, since libraries differ in a cosine's last bit. */
HOST_DEVICE_INLINE double compress_cosine(int j)
{
    static const double quarter_wave[COMPRESS_RUN + 1] = {
        1.0,
        0.9996988186962042,
        0.9987954562051724,
        0.9972904566786902,
        0.9951847266721969,
        0.99247953459871,
        0.989176509964781,
        0.9852776423889412,
        0.9807852804032304,
        0.9757021300385286,
        0.970031253194544,
        0.9637760657954398,
        0.9569403357322088,
        0.9495281805930367,
        0.9415440651830208,
        0.932992798834739,
        0.9238795325112867,
        0.9142097557035307,
        0.9039892931234433,
        0.8932243011955153,
        0.881921264348355,
        0.8700869911087115,
        0.8577286100002721,
        0.8448535652497071,
        0.8314696123025452,
        0.8175848131515837,
        0.8032075314806449,
        0.7883464276266063,
        0.773010453362737,
        0.7572088465064846,
        0.7409511253549591,
        0.724247082951467,
        0.7071067811865476,
        0.6895405447370669,
        0.6715589548470183,
        0.6531728429537768,
        0.6343932841636455,
        0.6152315905806268,
        0.5956993044924335,
        0.5758081914178453,
        0.5555702330196023,
        0.5349976198870973,
        0.5141027441932217,
        0.4928981922297841,
        0.4713967368259978,
        0.4496113296546066,
        0.4275550934302822,
        0.40524131400498986,
        0.38268343236508984,
        0.3598950365349883,
        0.33688985339222005,
        0.3136817403988916,
        0.29028467725446233,
        0.2667127574748984,
        0.24298017990326398,
        0.21910124015686977,
        0.19509032201612833,
        0.17096188876030136,
        0.14673047445536175,
        0.12241067519921628,
        0.09801714032956077,
        0.07356456359966745,
        0.049067674327418126,
        0.024541228522912264,
        0.0,
    };
    j &= 4 * COMPRESS_RUN - 1;
    j = j > 2 * COMPRESS_RUN ? 4 * COMPRESS_RUN - j : j;
    return j > COMPRESS_RUN ? -quarter_wave[2 * COMPRESS_RUN - j] : quarter_wave[j];
}

/* How much of frequency k is in element i: an orthonormal basis. */
HOST_DEVICE_INLINE double compress_basis(int i, int k)
{
    const double root = 0.1767766952966369; /* sqrt(2) / 8 */
    return compress_cosine((2 * i + 1) * k) * (k ? root : 0.125);
}
