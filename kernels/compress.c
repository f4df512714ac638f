#include "kernels/compress.h"

#include <math.h>
#include <string.h>

#include "memory/dtype.h"

typedef int64_t byte_count(const compress_method *m, int64_t n);
typedef void encoder(uint8_t *out, float *x, const compress_method *m, int64_t n);
typedef bool decoder(float *x, const uint8_t *in, const compress_method *m, int64_t n);

/* ---- none, bf16 ------------------------------------------------------------------------------------------------ */

static void none_encode(uint8_t *out, float *x, const compress_method *m, int64_t n)
{
    (void)m;
    memcpy(out, x, (size_t)(4 * n));
    memset(x, 0, (size_t)(4 * n));
}

static bool none_decode(float *x, const uint8_t *in, const compress_method *m, int64_t n)
{
    (void)m;
    memcpy(x, in, (size_t)(4 * n));
    return dtype_all_finite(DTYPE_FP32, x, n);
}

/* A change may lie where bf16 rounds to infinity: the largest finite number instead. */
static uint16_t to_bf16(float x)
{
    uint16_t bits = float_to_bf16(x);
    return (bits & 0x7fff) == 0x7f80 ? (uint16_t)(bits - 1) : bits;
}

static void bf16_encode(uint8_t *out, float *x, const compress_method *m, int64_t n)
{
    (void)m;
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits = to_bf16(x[i]);
        memcpy(out + 2 * i, &bits, sizeof bits);
        x[i] -= bf16_to_float(bits);
    }
}

static bool bf16_decode(float *x, const uint8_t *in, const compress_method *m, int64_t n)
{
    (void)m;
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, in + 2 * i, sizeof bits);
        x[i] = bf16_to_float(bits);
    }
    return dtype_all_finite(DTYPE_FP32, x, n);
}

/* ---- integers with a scale a block ------------------------------------------------------------------------------ */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Formats of int8 and int4, indexed by method. */
static const struct integers {
    int64_t block;
    int bits, top;
} integers[COMPRESS_KINDS] = {
    [COMPRESS_INT8] = {COMPRESS_BLOCK8, 8, COMPRESS_TOP8},
    [COMPRESS_INT4] = {COMPRESS_BLOCK4, 4, COMPRESS_TOP4},
};

static int64_t integers_bytes(const compress_method *m, int64_t n)
{
    const struct integers *f = &integers[m->kind];
    return compress_field_bytes(n, f->bits) + COMPRESS_SCALE * ((n + f->block - 1) / f->block);
}

static void put_integer(uint8_t *out, int64_t i, int bits, int q)
{
    if (bits == 8)
        out[i] = (uint8_t)q;
    else
        out[i / 2] = (uint8_t)(i % 2 ? (out[i / 2] & 15) | (q + 8) << 4 : (q + 8) | 8 << 4);
}

static void integers_encode(uint8_t *out, float *x, const compress_method *m, int64_t n)
{
    const struct integers *f = &integers[m->kind];
    for (int64_t first = 0; first < n; first += f->block) {
        int64_t count = least(n - first, f->block);
        float largest = 0, top = (float)f->top;
        for (int64_t i = 0; i < count; i++)
            largest = fmaxf(largest, fabsf(x[first + i]));
        float scale = largest / top;
        memcpy(out, &scale, COMPRESS_SCALE);
        out += COMPRESS_SCALE;
        for (int64_t i = 0; i < count; i++) { /* the nearest integer; x becomes the rest */
            float q = scale > 0 ? fminf(fmaxf(nearbyintf(x[first + i] / scale), -top), top) : 0;
            x[first + i] -= q * scale;
            put_integer(out, i, f->bits, (int)q);
        }
        out += compress_field_bytes(count, f->bits);
    }
}

static bool integers_decode(float *x, const uint8_t *in, const compress_method *m, int64_t n)
{
    const struct integers *f = &integers[m->kind];
    for (int64_t first = 0; first < n; first += f->block) {
        int64_t count = least(n - first, f->block);
        float scale;
        memcpy(&scale, in, COMPRESS_SCALE);
        in += COMPRESS_SCALE;
        for (int64_t i = 0; i < count; i++)
            x[first + i] = (float)(f->bits == 8 ? (int8_t)in[i] : (in[i / 2] >> 4 * (i % 2) & 15) - 8) * scale;
        in += compress_field_bytes(count, f->bits);
    }
    return dtype_all_finite(DTYPE_FP32, x, n);
}

/* ---- the largest of a chunk ------------------------------------------------------------------------------------- */

_Static_assert(1 << COMPRESS_INDEX_BITS == COMPRESS_CHUNK, "a place in a chunk");
_Static_assert(1 << COMPRESS_RUN_PLACE_BITS == COMPRESS_RUN, "a place in a run");

static int64_t kept(const compress_method *m, int64_t n)
{
    return compress_kept(m->density, n);
}

static int64_t topk_bytes(const compress_method *m, int64_t n)
{
    int64_t rest = n % COMPRESS_CHUNK;
    return n / COMPRESS_CHUNK * compress_chunk_bytes(kept(m, COMPRESS_CHUNK)) +
           (rest ? compress_chunk_bytes(kept(m, rest)) : 0);
}

static uint32_t magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff; /* ordered as the magnitudes are */
}

/* The k-th largest magnitude, found bit by bit; *above: how many are larger. */
static uint32_t find_threshold(int64_t *above, const float *x, int64_t n, int64_t k)
{
    uint32_t threshold = 0;
    for (uint32_t bit = 1u << 30; bit; bit >>= 1) {
        int64_t there = 0;
        for (int64_t i = 0; i < n; i++)
            there += magnitude(x[i]) >= (threshold | bit);
        if (there >= k)
            threshold |= bit;
    }
    *above = 0;
    for (int64_t i = 0; i < n; i++)
        *above += magnitude(x[i]) > threshold;
    return threshold;
}

/* indices[k], ascending; of equals the first. */
static void pick(uint16_t *indices, const float *x, int64_t n, int64_t k)
{
    int64_t above, taken = 0;
    uint32_t threshold = find_threshold(&above, x, n, k);
    int64_t equals = k - above;
    for (int64_t i = 0; i < n; i++) {
        uint32_t at = magnitude(x[i]);
        if (at > threshold || (at == threshold && equals-- > 0))
            indices[taken++] = (uint16_t)i;
    }
}

static double fold(double sum[COMPRESS_SUMS])
{
    for (int half = COMPRESS_SUMS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            sum[i] += sum[i + half];
    return sum[0];
}

/* Magnitudes on both sides of the middle between least and largest, each side's mean. */
static void find_levels(uint16_t level[2], float *middle, const float *x, const uint16_t *indices, int64_t k)
{
    float low = INFINITY, high = 0;
    for (int64_t i = 0; i < k; i++) {
        low = fminf(low, fabsf(x[indices[i]]));
        high = fmaxf(high, fabsf(x[indices[i]]));
    }
    *middle = low + (high - low) / 2;
    double sum[2][COMPRESS_SUMS] = {{0}};
    int64_t count[2] = {0, 0};
    for (int64_t i = 0; i < k; i++) {
        float at = fabsf(x[indices[i]]);
        sum[at > *middle][i % COMPRESS_SUMS] += (double)at;
        count[at > *middle]++;
    }
    for (int i = 0; i < 2; i++)
        level[i] = to_bf16(count[i] ? (float)(fold(sum[i]) / (double)count[i]) : 0);
}

static void put_bits(uint8_t *out, int64_t at, int bits, unsigned value)
{
    for (int b = 0; b < bits; b++)
        out[(at + b) / 8] |= (uint8_t)((value >> b & 1) << (at + b) % 8);
}

static unsigned get_bits(const uint8_t *in, int64_t at, int bits)
{
    unsigned value = 0;
    for (int b = 0; b < bits; b++)
        value |= (unsigned)(in[(at + b) / 8] >> (at + b) % 8 & 1) << b;
    return value;
}

static void topk_encode(uint8_t *out, float *x, const compress_method *m, int64_t n)
{
    uint16_t indices[COMPRESS_CHUNK] = {0}, level[2];
    memset(out, 0, (size_t)topk_bytes(m, n));
    for (int64_t first = 0; first < n; first += COMPRESS_CHUNK) {
        int64_t count = least(n - first, COMPRESS_CHUNK), k = kept(m, count);
        float *chunk = x + first, middle;
        pick(indices, chunk, count, k);
        find_levels(level, &middle, chunk, indices, k);
        memcpy(out, level, sizeof level);
        uint8_t *codes = out + COMPRESS_LEVELS + compress_field_bytes(k, COMPRESS_INDEX_BITS);
        for (int64_t i = 0; i < k; i++) {
            float *at = &chunk[indices[i]];
            unsigned code = (unsigned)(*at < 0) | (unsigned)(fabsf(*at) > middle) << 1;
            put_bits(out + COMPRESS_LEVELS, COMPRESS_INDEX_BITS * i, COMPRESS_INDEX_BITS, indices[i]);
            put_bits(codes, COMPRESS_CODE_BITS * i, COMPRESS_CODE_BITS, code);
            float sent = bf16_to_float(level[code >> 1]);
            *at -= code & 1 ? -sent : sent;
        }
        out += compress_chunk_bytes(k);
    }
}

static bool topk_decode(float *x, const uint8_t *in, const compress_method *m, int64_t n)
{
    bool sound = true;
    memset(x, 0, (size_t)n * sizeof *x);
    for (int64_t first = 0; first < n; first += COMPRESS_CHUNK) {
        int64_t count = least(n - first, COMPRESS_CHUNK), k = kept(m, count), last = -1;
        uint16_t level[2];
        memcpy(level, in, sizeof level);
        const uint8_t *codes = in + COMPRESS_LEVELS + compress_field_bytes(k, COMPRESS_INDEX_BITS);
        for (int64_t i = 0; i < k; i++) {
            int64_t place = get_bits(in + COMPRESS_LEVELS, COMPRESS_INDEX_BITS * i, COMPRESS_INDEX_BITS);
            unsigned code = get_bits(codes, COMPRESS_CODE_BITS * i, COMPRESS_CODE_BITS);
            sound &= place > last && place < count;
            last = place;
            float sent = bf16_to_float(level[code >> 1]);
            if (place < count)
                x[first + place] = code & 1 ? -sent : sent;
        }
        in += compress_chunk_bytes(k);
    }
    return dtype_all_finite(DTYPE_FP32, x, n) && sound;
}

/* ---- the largest frequencies of a run of 64 ---------------------------------------------------------------------
 * DeMo's (2411.19870): the orthonormal DCT-II, c[k] = s[k] sum_i x[i] cos(pi (2 i + 1) k / 128), s[0] = 1/8, else s[k]
 * = sqrt(2)/8. A run: k places of 6 bits, k coefficients as bf16 (the paper sends fp32; error feedback keeps bf16's
 * rounding error). The last run is filled up with zeros. Sums are fp64 in ascending order, so that every machine
 * decodes the same bits. */

enum { RUN = COMPRESS_RUN };

typedef double basis[RUN][RUN]; /* [element][frequency] */

static void make_basis(basis b)
{
    for (int i = 0; i < RUN; i++)
        for (int k = 0; k < RUN; k++)
            b[i][k] = compress_basis(i, k);
}

static int64_t dct_bytes(const compress_method *m, int64_t n)
{
    return (n + RUN - 1) / RUN * compress_run_bytes(kept(m, RUN));
}

static void transform(float *c, const float *x, int64_t count, basis b)
{
    double sum[RUN] = {0};
    for (int64_t i = 0; i < count; i++)
        for (int k = 0; k < RUN; k++)
            sum[k] += (double)x[i] * b[i][k];
    for (int k = 0; k < RUN; k++)
        c[k] = (float)sum[k];
}

/* y[count] = the inverse transform of the coefficients at these places, in ascending order */
static void transform_back(float *y, const uint16_t *indices, const uint16_t *values, int64_t k, int64_t count, basis b)
{
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int64_t f = 0; f < k; f++)
            sum += (double)bf16_to_float(values[f]) * b[i][indices[f]];
        y[i] = (float)sum;
    }
}

static void dct_encode(uint8_t *out, float *x, const compress_method *m, int64_t n)
{
    basis b;
    int64_t k = kept(m, RUN);
    make_basis(b);
    memset(out, 0, (size_t)dct_bytes(m, n));
    for (int64_t first = 0; first < n; first += RUN, out += compress_run_bytes(k)) {
        uint16_t indices[RUN] = {0}, values[RUN];
        float c[RUN], sent[RUN];
        int64_t count = least(n - first, RUN);
        transform(c, x + first, count, b);
        pick(indices, c, RUN, k);
        for (int64_t f = 0; f < k; f++) {
            values[f] = to_bf16(c[indices[f]]);
            put_bits(out, COMPRESS_RUN_PLACE_BITS * f, COMPRESS_RUN_PLACE_BITS, indices[f]);
        }
        memcpy(out + compress_field_bytes(k, COMPRESS_RUN_PLACE_BITS), values, (size_t)(2 * k));
        transform_back(sent, indices, values, k, count, b);
        for (int64_t i = 0; i < count; i++)
            x[first + i] -= sent[i];
    }
}

static bool dct_decode(float *x, const uint8_t *in, const compress_method *m, int64_t n)
{
    basis b;
    bool sound = true;
    int64_t k = kept(m, RUN);
    make_basis(b);
    for (int64_t first = 0; first < n; first += RUN, in += compress_run_bytes(k)) {
        uint16_t indices[RUN], values[RUN];
        int64_t last = -1;
        for (int64_t f = 0; f < k; f++) {
            indices[f] = (uint16_t)get_bits(in, COMPRESS_RUN_PLACE_BITS * f, COMPRESS_RUN_PLACE_BITS);
            sound &= indices[f] > last;
            last = indices[f];
        }
        memcpy(values, in + compress_field_bytes(k, COMPRESS_RUN_PLACE_BITS), (size_t)(2 * k));
        transform_back(x + first, indices, values, k, least(n - first, RUN), b);
    }
    return dtype_all_finite(DTYPE_FP32, x, n) && sound;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static const struct {
    int each; /* bytes of an element, where all have as many; else 0 */
    byte_count *bytes;
    encoder *encode;
    decoder *decode;
} methods[COMPRESS_KINDS] = {
    [COMPRESS_NONE] = {4, NULL, none_encode, none_decode},
    [COMPRESS_BF16] = {2, NULL, bf16_encode, bf16_decode},
    [COMPRESS_INT8] = {0, integers_bytes, integers_encode, integers_decode},
    [COMPRESS_INT4] = {0, integers_bytes, integers_encode, integers_decode},
    [COMPRESS_TOPK] = {0, topk_bytes, topk_encode, topk_decode},
    [COMPRESS_DCT] = {0, dct_bytes, dct_encode, dct_decode},
};

const char *const compress_words[] = {
#define METHOD(name, word) #word,
#include "kernels/compress.def"
#undef METHOD
    NULL};

int64_t compress_bytes(const compress_method *m, int64_t elements)
{
    return methods[m->kind].each ? methods[m->kind].each * elements : methods[m->kind].bytes(m, elements);
}

void compress_encode(void *out, float *values, const compress_method *m, int64_t elements)
{
    methods[m->kind].encode(out, values, m, elements);
}

bool compress_decode(float *values, const void *in, const compress_method *m, int64_t elements)
{
    return methods[m->kind].decode(values, in, m, elements);
}
