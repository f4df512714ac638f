#include "kernels/compress.h"

#include <math.h>
#include <string.h>

#include "memory/dtype.h"

typedef int64_t byte_count(const compress_method *m, int64_t n);
typedef void encoder(uint8_t *out, float *x, const compress_method *m, int64_t n);
typedef bool decoder(float *x, const uint8_t *in, const compress_method *m, int64_t n);

static bool all_finite(const float *x, int64_t n)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++)
        finite &= isfinite(x[i]) != 0;
    return finite;
}

/* ---- none, bf16 ------------------------------------------------------------------------------------------------ */

static int64_t none_bytes(const compress_method *m, int64_t n)
{
    (void)m;
    return 4 * n;
}

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
    return all_finite(x, n);
}

static int64_t bf16_bytes(const compress_method *m, int64_t n)
{
    (void)m;
    return 2 * n;
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
    return all_finite(x, n);
}

/* ---- integers with a scale a block ------------------------------------------------------------------------------ */

enum { BLOCK8 = 256, BLOCK4 = 64 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t int8_bytes(const compress_method *m, int64_t n)
{
    (void)m;
    return n + 4 * ((n + BLOCK8 - 1) / BLOCK8);
}

static int64_t int4_bytes(const compress_method *m, int64_t n)
{
    (void)m;
    return (n + 1) / 2 + 4 * ((n + BLOCK4 - 1) / BLOCK4);
}

/* The scale of a block whose numbers become integers of at most `top`. */
static float scale_of(const float *x, int64_t n, float top)
{
    float largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    return largest / top;
}

/* The nearest integer; *x becomes the rest. */
static int quantise(float *x, float scale, float top)
{
    float q = scale > 0 ? fminf(fmaxf(nearbyintf(*x / scale), -top), top) : 0;
    *x -= q * scale;
    return (int)q;
}

static void int8_encode(uint8_t *out, float *x, const compress_method *m, int64_t n)
{
    (void)m;
    for (int64_t first = 0; first < n; first += BLOCK8) {
        int64_t count = least(n - first, BLOCK8);
        float scale = scale_of(x + first, count, 127);
        memcpy(out, &scale, sizeof scale);
        out += sizeof scale;
        for (int64_t i = 0; i < count; i++)
            *out++ = (uint8_t)quantise(&x[first + i], scale, 127);
    }
}

static bool int8_decode(float *x, const uint8_t *in, const compress_method *m, int64_t n)
{
    (void)m;
    for (int64_t first = 0; first < n; first += BLOCK8) {
        int64_t count = least(n - first, BLOCK8);
        float scale;
        memcpy(&scale, in, sizeof scale);
        in += sizeof scale;
        for (int64_t i = 0; i < count; i++)
            x[first + i] = (float)(int8_t)*in++ * scale;
    }
    return all_finite(x, n);
}

/* Two to a byte, the first in the low half, each plus 8. */
static void int4_encode(uint8_t *out, float *x, const compress_method *m, int64_t n)
{
    (void)m;
    for (int64_t first = 0; first < n; first += BLOCK4) {
        int64_t count = least(n - first, BLOCK4);
        float scale = scale_of(x + first, count, 7);
        memcpy(out, &scale, sizeof scale);
        out += sizeof scale;
        for (int64_t i = 0; i < count; i += 2) {
            int low = quantise(&x[first + i], scale, 7) + 8;
            int high = i + 1 < count ? quantise(&x[first + i + 1], scale, 7) + 8 : 8;
            *out++ = (uint8_t)(low | high << 4);
        }
    }
}

static bool int4_decode(float *x, const uint8_t *in, const compress_method *m, int64_t n)
{
    (void)m;
    for (int64_t first = 0; first < n; first += BLOCK4) {
        int64_t count = least(n - first, BLOCK4);
        float scale;
        memcpy(&scale, in, sizeof scale);
        in += sizeof scale;
        for (int64_t i = 0; i < count; i += 2, in++) {
            x[first + i] = (float)((*in & 15) - 8) * scale;
            if (i + 1 < count)
                x[first + i + 1] = (float)((*in >> 4) - 8) * scale;
        }
    }
    return all_finite(x, n);
}

/* ---- the largest of a chunk -------------------------------------------------------------------------------------
 * A chunk: two magnitudes as bf16, k places of 12 bits, k codes of 2 bits (bit 0: negative, bit 1: the larger magnitude). */

enum { PLACE_BITS = 12 };
_Static_assert(1 << PLACE_BITS == COMPRESS_CHUNK, "a place in a chunk");

static int64_t kept(const compress_method *m, int64_t n)
{
    int64_t k = (int64_t)ceil(m->density * (double)n);
    return k < 1 ? 1 : least(k, n);
}

static int64_t chunk_bytes(int64_t k)
{
    return 4 + (PLACE_BITS * k + 7) / 8 + (2 * k + 7) / 8;
}

static int64_t topk_bytes(const compress_method *m, int64_t n)
{
    int64_t rest = n % COMPRESS_CHUNK;
    return n / COMPRESS_CHUNK * chunk_bytes(kept(m, COMPRESS_CHUNK)) + (rest ? chunk_bytes(kept(m, rest)) : 0);
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

/* places[k], ascending; of equals the first. */
static void pick(uint16_t *places, const float *x, int64_t n, int64_t k)
{
    int64_t above, taken = 0;
    uint32_t threshold = find_threshold(&above, x, n, k);
    int64_t equals = k - above;
    for (int64_t i = 0; i < n; i++) {
        uint32_t at = magnitude(x[i]);
        if (at > threshold || (at == threshold && equals-- > 0))
            places[taken++] = (uint16_t)i;
    }
}

/* Magnitudes on both sides of the middle between least and largest, each side's mean. */
static void find_levels(uint16_t level[2], float *middle, const float *x, const uint16_t *places, int64_t k)
{
    float low = INFINITY, high = 0;
    for (int64_t i = 0; i < k; i++) {
        low = fminf(low, fabsf(x[places[i]]));
        high = fmaxf(high, fabsf(x[places[i]]));
    }
    *middle = low + (high - low) / 2;
    double sum[2] = {0, 0};
    int64_t count[2] = {0, 0};
    for (int64_t i = 0; i < k; i++) {
        float at = fabsf(x[places[i]]);
        sum[at > *middle] += (double)at;
        count[at > *middle]++;
    }
    for (int i = 0; i < 2; i++)
        level[i] = to_bf16(count[i] ? (float)(sum[i] / (double)count[i]) : 0);
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
    uint16_t places[COMPRESS_CHUNK] = {0}, level[2];
    memset(out, 0, (size_t)topk_bytes(m, n));
    for (int64_t first = 0; first < n; first += COMPRESS_CHUNK) {
        int64_t count = least(n - first, COMPRESS_CHUNK), k = kept(m, count);
        float *chunk = x + first, middle;
        pick(places, chunk, count, k);
        find_levels(level, &middle, chunk, places, k);
        memcpy(out, level, sizeof level);
        uint8_t *codes = out + sizeof level + (PLACE_BITS * k + 7) / 8;
        for (int64_t i = 0; i < k; i++) {
            float *at = &chunk[places[i]];
            unsigned code = (unsigned)(*at < 0) | (unsigned)(fabsf(*at) > middle) << 1;
            put_bits(out + sizeof level, PLACE_BITS * i, PLACE_BITS, places[i]);
            put_bits(codes, 2 * i, 2, code);
            float sent = bf16_to_float(level[code >> 1]);
            *at -= code & 1 ? -sent : sent;
        }
        out += chunk_bytes(k);
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
        const uint8_t *codes = in + sizeof level + (PLACE_BITS * k + 7) / 8;
        for (int64_t i = 0; i < k; i++) {
            int64_t place = get_bits(in + sizeof level, PLACE_BITS * i, PLACE_BITS);
            unsigned code = get_bits(codes, 2 * i, 2);
            sound &= place > last && place < count;
            last = place;
            float sent = bf16_to_float(level[code >> 1]);
            if (place < count)
                x[first + place] = code & 1 ? -sent : sent;
        }
        in += chunk_bytes(k);
    }
    return all_finite(x, n) && sound;
}

/* ---- the largest frequencies of a run of 64 ---------------------------------------------------------------------
 * DeMo's (2411.19870): the orthonormal DCT-II, c[k] = s[k] sum_i x[i] cos(pi (2 i + 1) k / 128), s[0] = 1/8, else s[k] = sqrt(2)/8.
 * A run: k places of 6 bits, k coefficients as bf16 (the paper sends fp32; error feedback keeps what bf16 loses). The last run
 * is filled up with zeros. Sums are fp64 in ascending order, so that every machine decodes the same bits. */

enum { RUN = COMPRESS_RUN, RUN_PLACE_BITS = 6 };

/* cos(pi j / 128): literals, since libraries differ in a cosine's last bit. */
static const double quarter_wave[] = {
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

static double cosine(int j)
{
    j &= 255;
    j = j > 128 ? 256 - j : j;
    return j > 64 ? -quarter_wave[128 - j] : quarter_wave[j];
}

typedef double basis[RUN][RUN]; /* [element][frequency] */

static void make_basis(basis b)
{
    const double root = 0.1767766952966369; /* sqrt(2) / 8 */
    for (int i = 0; i < RUN; i++)
        for (int k = 0; k < RUN; k++)
            b[i][k] = cosine((2 * i + 1) * k) * (k ? root : 0.125);
}

static int64_t run_bytes(int64_t k)
{
    return (RUN_PLACE_BITS * k + 7) / 8 + 2 * k;
}

static int64_t dct_bytes(const compress_method *m, int64_t n)
{
    return (n + RUN - 1) / RUN * run_bytes(kept(m, RUN));
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

/* y[count] = what the coefficients at some places mean, ascending */
static void transform_back(float *y, const uint16_t *places, const uint16_t *values, int64_t k, int64_t count, basis b)
{
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int64_t f = 0; f < k; f++)
            sum += (double)bf16_to_float(values[f]) * b[i][places[f]];
        y[i] = (float)sum;
    }
}

static void dct_encode(uint8_t *out, float *x, const compress_method *m, int64_t n)
{
    basis b;
    int64_t k = kept(m, RUN);
    make_basis(b);
    memset(out, 0, (size_t)dct_bytes(m, n));
    for (int64_t first = 0; first < n; first += RUN, out += run_bytes(k)) {
        uint16_t places[RUN] = {0}, values[RUN];
        float c[RUN], sent[RUN];
        int64_t count = least(n - first, RUN);
        transform(c, x + first, count, b);
        pick(places, c, RUN, k);
        for (int64_t f = 0; f < k; f++) {
            values[f] = to_bf16(c[places[f]]);
            put_bits(out, RUN_PLACE_BITS * f, RUN_PLACE_BITS, places[f]);
        }
        memcpy(out + (RUN_PLACE_BITS * k + 7) / 8, values, (size_t)(2 * k));
        transform_back(sent, places, values, k, count, b);
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
    for (int64_t first = 0; first < n; first += RUN, in += run_bytes(k)) {
        uint16_t places[RUN], values[RUN];
        int64_t last = -1;
        for (int64_t f = 0; f < k; f++) {
            places[f] = (uint16_t)get_bits(in, RUN_PLACE_BITS * f, RUN_PLACE_BITS);
            sound &= places[f] > last;
            last = places[f];
        }
        memcpy(values, in + (RUN_PLACE_BITS * k + 7) / 8, (size_t)(2 * k));
        transform_back(x + first, places, values, k, least(n - first, RUN), b);
    }
    return all_finite(x, n) && sound;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static const struct {
    byte_count *bytes;
    encoder *encode;
    decoder *decode;
} methods[COMPRESS_KINDS] = {
    [COMPRESS_NONE] = {none_bytes, none_encode, none_decode}, [COMPRESS_BF16] = {bf16_bytes, bf16_encode, bf16_decode},
    [COMPRESS_INT8] = {int8_bytes, int8_encode, int8_decode}, [COMPRESS_INT4] = {int4_bytes, int4_encode, int4_decode},
    [COMPRESS_TOPK] = {topk_bytes, topk_encode, topk_decode}, [COMPRESS_DCT] = {dct_bytes, dct_encode, dct_decode},
};

const char *const compress_words[] = {
#define METHOD(name, word) #word,
#include "kernels/compress.def"
#undef METHOD
    NULL};

int64_t compress_bytes(const compress_method *m, int64_t elements)
{
    return methods[m->kind].bytes(m, elements);
}

void compress_encode(void *out, float *values, const compress_method *m, int64_t elements)
{
    methods[m->kind].encode(out, values, m, elements);
}

bool compress_decode(float *values, const void *in, const compress_method *m, int64_t elements)
{
    return methods[m->kind].decode(values, in, m, elements);
}
