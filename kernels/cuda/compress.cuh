/* The methods of compress.cu: a block of threads encodes or decodes a chunk of 4096 elements.
 *
 * A warp has 512 elements that follow each other: number j of a lane is element 32 j + lane of its warp's. So the
 * blocks of int8 and int4 and the runs of dct lie within a warp, every access is of 128 bytes that follow each other,
 * and each thread has all of its own under way at once, whatever the alignment. Products that the host rounds before it
 * adds are rounded here, too. A message's bytes have no alignment, and are written one by one.
 */
#pragma once

#include "kernels/compress_format.h"
#include "kernels/cuda/vector.cuh"

static constexpr int CHUNK_THREADS = 256, WARPS = CHUNK_THREADS / WARP, EACH = COMPRESS_CHUNK / CHUNK_THREADS,
                     SPAN = EACH * WARP;

DEVICE int lane_of(void)
{
    return (int)threadIdx.x % WARP;
}

DEVICE int warp_of(void)
{
    return (int)threadIdx.x / WARP;
}

/* The index in the chunk of a thread's element number j. */
DEVICE int place_of(int j)
{
    return warp_of() * SPAN + j * WARP + lane_of();
}

DEVICE bool block_any(bool mine)
{
    SHARED(uint32_t, votes, WARPS);
    uint32_t any = warp_ballot(mine);
    if (lane_of() == 0)
        votes[warp_of()] = any;
    block_barrier(); /* the votes are in */
    for (int w = 0; w < WARPS; w++)
        any |= votes[w];
    return any != 0;
}

DEVICE int warp_total(int x)
{
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2) x += warp_xor(x, mask);
    return x;
}

DEVICE int warp_count(bool mine)
{
    return count_bits(warp_ballot(mine));
}

/* Rounds to nearest, but to no infinity (kernels/compress.c says why). */
DEVICE uint16_t bf16_bits(float x)
{
    bf16 narrow = __float2bfloat16_rn(x);
    uint16_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return (bits & 0x7fff) == 0x7f80 ? (uint16_t)(bits - 1) : bits;
}

DEVICE float bf16_value(uint32_t bits)
{
    float x;
    bits <<= 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The bits of |x|, which order as magnitudes do. */
DEVICE uint32_t magnitude_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

/* Packs `count` fields one after the other, lowest bits first: every `step`-th byte from `first` on. field(i): the
 * value. */
template <int BITS, typename F> DEVICE void put_fields(unsigned char *out, int count, int first, int step, F field)
{
    for (int byte = first; byte < (count * BITS + 7) / 8; byte += step) {
        uint32_t value = 0;
        for (int i = byte * 8 / BITS; i <= (byte * 8 + 7) / BITS && i < count; i++) {
            int shift = i * BITS - byte * 8;
            value |= shift < 0 ? (uint32_t)field(i) >> -shift : (uint32_t)field(i) << shift;
        }
        out[byte] = (unsigned char)value;
    }
}

template <int BITS> DEVICE int get_field(const unsigned char *in, int i)
{
    static_assert(BITS <= 9 || BITS == 12, "a field lies in two bytes");
    int byte = i * BITS / 8, shift = i * BITS % 8;
    int value = in[byte] >> shift;
    if (shift + BITS > 8)
        value |= in[byte + 1] << (8 - shift);
    return value & ((1 << BITS) - 1);
}

/* ---- the methods --------------------------------------------------------------------------------------------------
 * A method gives the bytes of n elements, prepares a block, encodes n elements x (zeros past them), which become the
 * error to keep, and decodes; false: no such encoding. BLOCKS: blocks that fit on a multiprocessor. */

struct as_bf16 {
    static constexpr int BLOCKS = 3;

    DEVICE int bytes(int n, double)
    {
        return 2 * n;
    }
    DEVICE void prepare(void)
    {
    }
    DEVICE void encode(unsigned char *out, float (&x)[EACH], int n, double)
    {
        uint16_t *to = reinterpret_cast<uint16_t *>(out); /* parts have an even number of bytes */
        UNROLL for (int j = 0; j < EACH; j++)
        {
            uint16_t bits = bf16_bits(x[j]);
            if (place_of(j) < n)
                to[place_of(j)] = bits;
            x[j] -= bf16_value(bits);
        }
    }
    DEVICE bool decode(float (&x)[EACH], const unsigned char *in, int n, double)
    {
        const uint16_t *from = reinterpret_cast<const uint16_t *>(in);
        UNROLL for (int j = 0; j < EACH; j++) x[j] = place_of(j) < n ? bf16_value(from[place_of(j)]) : 0.0f;
        return true;
    }
};

/* BITS of 8 or 4, a scale for each BLOCK */
template <int BLOCK, int BITS, int TOP> struct as_integers {
    static constexpr int BLOCKS = 2; /* with 3, decoding 4 bits spills */
    static constexpr int STEPS = BLOCK / WARP, BLOCK_BYTES = COMPRESS_SCALE + BLOCK * BITS / 8;

    DEVICE int bytes(int n, double)
    {
        return (n * BITS + 7) / 8 + COMPRESS_SCALE * ((n + BLOCK - 1) / BLOCK);
    }
    DEVICE void prepare(void)
    {
    }
    /* Returns the nearest integer; x becomes the remainder. */
    DEVICE int quantise(float &x, float scale)
    {
        float q = scale > 0 ? fminf(fmaxf(rintf(x / scale), -(float)TOP), (float)TOP) : 0.0f;
        x -= rounded_product(q, scale);
        return (int)q;
    }
    /* Writes number i of the block's `count`: in 4 bits the even lane writes for both. */
    DEVICE void put(unsigned char *out, int i, int count, int q)
    {
        if (BITS == 8) {
            if (i < count)
                out[i] = (unsigned char)q;
        } else {
            int other = warp_xor(q, 1);
            if (i < count && i % 2 == 0)
                out[i / 2] = (unsigned char)((q + 8) | (other + 8) << 4);
        }
    }
    DEVICE int get(const unsigned char *in, int i)
    {
        return BITS == 8 ? (int)(int8_t)in[i] : (in[i / 2] >> 4 * (i % 2) & 15) - 8;
    }
    DEVICE void encode(unsigned char *out, float (&x)[EACH], int n, double)
    {
        UNROLL for (int j = 0; j < EACH; j += STEPS)
        {
            int block = (warp_of() * SPAN + j * WARP) / BLOCK, count = n - block * BLOCK;
            unsigned char *to = out + block * BLOCK_BYTES;
            if (count > 0) { /* of a whole warp */
                float largest = 0;
                UNROLL for (int s = 0; s < STEPS; s++) largest = fmaxf(largest, fabsf(x[j + s]));
                float scale = warp_largest(largest) / (float)TOP;
                uint32_t bits;
                memcpy(&bits, &scale, sizeof bits);
                if (lane_of() < COMPRESS_SCALE)
                    to[lane_of()] = (unsigned char)(bits >> 8 * lane_of());
                UNROLL for (int s = 0; s < STEPS; s++)
                    put(to + COMPRESS_SCALE, s * WARP + lane_of(), count, quantise(x[j + s], scale));
            }
        }
    }
    DEVICE bool decode(float (&x)[EACH], const unsigned char *in, int n, double)
    {
        UNROLL for (int j = 0; j < EACH; j += STEPS)
        {
            int block = (warp_of() * SPAN + j * WARP) / BLOCK, count = n - block * BLOCK;
            const unsigned char *from = in + block * BLOCK_BYTES;
            uint32_t bits = 0;
            float scale;
            for (int b = 0; b < COMPRESS_SCALE && count > 0; b++)
                bits |= (uint32_t)from[b] << 8 * b;
            memcpy(&scale, &bits, sizeof scale);
            UNROLL for (int s = 0; s < STEPS; s++)
            {
                int i = s * WARP + lane_of();
                x[j + s] = i < count ? rounded_product((float)get(from + COMPRESS_SCALE, i), scale) : 0.0f;
            }
        }
        return true;
    }
};

/* Picks the elements of a sequence to be sent, 32 at a time in the order of the lanes: those above a threshold, and the
 * first that are equal to it. */
struct picking {
    uint32_t threshold;
    int equals; /* still to be taken */
    int slot;   /* of the next */

    /* Returns the slot of this lane's element, or -1. */
    __device__ int take(uint32_t magnitude)
    {
        uint32_t before = (1u << lane_of()) - 1, equal = warp_ballot(magnitude == threshold);
        bool mine = magnitude > threshold || (magnitude == threshold && count_bits(equal & before) < equals);
        uint32_t all = warp_ballot(mine);
        int at = slot + count_bits(all & before);
        equals -= count_bits(equal);
        slot += count_bits(all);
        return mine ? at : -1;
    }
};

/* Sends the largest elements of a chunk. */
struct as_largest {
    static constexpr int BLOCKS = 3;

    DEVICE int kept(int n, double density)
    {
        return (int)compress_kept(density, n);
    }
    DEVICE int bytes(int n, double density)
    {
        return n > 0 ? (int)compress_chunk_bytes(kept(n, density)) : 0;
    }
    DEVICE void prepare(void)
    {
    }

    /* Finds the k-th largest of the block's magnitudes bit by bit. Counts of two passes are in different buffers: one
     * barrier a pass. */
    DEVICE uint32_t find_threshold(const float (&x)[EACH], int k)
    {
        SHARED(int, counts, 2 * WARPS);
        uint32_t threshold = 0;
        for (int bit = 30; bit >= 0; bit--) {
            uint32_t tried = threshold | 1u << bit;
            int there = 0, *count = counts + bit % 2 * WARPS;
            UNROLL for (int j = 0; j < EACH; j++) there += magnitude_of(x[j]) >= tried;
            there = warp_total(there);
            if (lane_of() == 0)
                count[warp_of()] = there;
            block_barrier(); /* the counts of this bit are there */
            there = 0;
            for (int w = 0; w < WARPS; w++)
                there += count[w];
            threshold = there >= k ? tried : threshold;
        }
        return threshold;
    }
    /* Begins a warp's slots: among equals earlier warps take first. */
    DEVICE picking begin(const float (&x)[EACH], uint32_t threshold, int k)
    {
        SHARED(int, above, WARPS);
        SHARED(int, equal, WARPS);
        int more = 0, same = 0;
        UNROLL for (int j = 0; j < EACH; j++)
        {
            more += magnitude_of(x[j]) > threshold;
            same += magnitude_of(x[j]) == threshold;
        }
        more = warp_total(more);
        same = warp_total(same);
        if (lane_of() == 0) {
            above[warp_of()] = more;
            equal[warp_of()] = same;
        }
        block_barrier(); /* every warp's */
        picking p = {threshold, k, 0};
        for (int w = 0; w < WARPS; w++)
            p.equals -= above[w];
        for (int w = 0; w < warp_of(); w++) {
            p.slot += above[w] + (equal[w] < p.equals ? equal[w] : p.equals);
            p.equals = equal[w] < p.equals ? p.equals - equal[w] : 0;
        }
        return p;
    }
    /* One warp finds the levels: levels[0] is the middle between least and largest, the others are the means of each
     * side, as they are sent. */
    DEVICE void find_levels(float *levels, const float *chosen, int k)
    {
        float low = INFINITY, high = 0;
        double sum[2] = {0, 0};
        int larger = 0;
        static_assert(COMPRESS_SUMS == WARP, "a lane for each sum");
        for (int i = lane_of(); i < k; i += WARP) {
            low = fminf(low, fabsf(chosen[i]));
            high = fmaxf(high, fabsf(chosen[i]));
        }
        low = -warp_largest(-low);
        high = warp_largest(high);
        float middle = low + rounded_product(high - low, 0.5f);
        for (int i = lane_of(); i < k; i += WARP) {
            bool up = fabsf(chosen[i]) > middle;
            sum[0] += up ? 0.0 : (double)fabsf(chosen[i]);
            sum[1] += up ? (double)fabsf(chosen[i]) : 0.0;
            larger += up;
        }
        UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2)
        {
            sum[0] += warp_xor(sum[0], mask);
            sum[1] += warp_xor(sum[1], mask);
        }
        larger = warp_total(larger);
        if (lane_of() == 0) {
            levels[0] = middle;
            levels[1] = bf16_value(bf16_bits(k > larger ? (float)(sum[0] / (double)(k - larger)) : 0.0f));
            levels[2] = bf16_value(bf16_bits(larger > 0 ? (float)(sum[1] / (double)larger) : 0.0f));
        }
    }
    DEVICE int code_of(float x, float middle)
    {
        return (x < 0) | (fabsf(x) > middle) << 1;
    }
    DEVICE void encode(unsigned char *out, float (&x)[EACH], int n, double density)
    {
        SHARED(uint16_t, indices, COMPRESS_CHUNK);
        SHARED(float, chosen, COMPRESS_CHUNK);
        SHARED(float, levels, 3);
        int k = kept(n, density), me = (int)threadIdx.x;
        uint32_t taken = 0; /* of this thread's */
        picking p = begin(x, find_threshold(x, k), k);
        UNROLL for (int j = 0; j < EACH; j++)
        {
            int slot = p.take(magnitude_of(x[j])); /* zeros beyond the end come last of the equals */
            if (slot >= 0) {
                indices[slot] = (uint16_t)place_of(j);
                chosen[slot] = x[j];
                taken |= 1u << j;
            }
        }
        block_barrier(); /* all are chosen */
        if (warp_of() == 0)
            find_levels(levels, chosen, k);
        block_barrier(); /* the levels are there */
        float middle = levels[0];
        if (me < COMPRESS_LEVELS)
            out[me] = (unsigned char)(magnitude_of(levels[1 + me / 2]) >> (16 + 8 * (me % 2)));
        out += COMPRESS_LEVELS;
        put_fields<COMPRESS_INDEX_BITS>(out, k, me, CHUNK_THREADS, [=](int i) { return (int)indices[i]; });
        out += compress_field_bytes(k, COMPRESS_INDEX_BITS);
        put_fields<COMPRESS_CODE_BITS>(out, k, me, CHUNK_THREADS, [=](int i) { return code_of(chosen[i], middle); });
        UNROLL for (int j = 0; j < EACH; j++) if (taken >> j & 1)
        {
            int code = code_of(x[j], middle);
            x[j] -= code & 1 ? -levels[1 + code / 2] : levels[1 + code / 2];
        }
    }
    DEVICE bool decode(float (&x)[EACH], const unsigned char *in, int n, double density)
    {
        SHARED(float, sent, COMPRESS_CHUNK);
        int k = kept(n, density);
        bool ascends = true;
        UNROLL for (int j = 0; j < EACH; j++) sent[place_of(j)] = 0;
        const unsigned char *indices = in + COMPRESS_LEVELS;
        const unsigned char *codes = indices + compress_field_bytes(k, COMPRESS_INDEX_BITS);
        for (int i = (int)threadIdx.x; i < k; i += CHUNK_THREADS) {
            int place = get_field<COMPRESS_INDEX_BITS>(indices, i);
            ascends = ascends && place < n && (i == 0 || place > get_field<COMPRESS_INDEX_BITS>(indices, i - 1));
        }
        bool sound = !block_any(!ascends); /* a barrier: zeros are there; no two threads have one place */
        for (int i = (int)threadIdx.x; i < k && sound; i += CHUNK_THREADS) {
            int code = get_field<COMPRESS_CODE_BITS>(codes, i);
            float level = bf16_value(in[code / 2 * 2] | (uint32_t)in[code / 2 * 2 + 1] << 8);
            sent[get_field<COMPRESS_INDEX_BITS>(indices, i)] = code & 1 ? -level : level;
        }
        block_barrier(); /* everything is */
        UNROLL for (int j = 0; j < EACH; j++) x[j] = sent[place_of(j)];
        return sound;
    }
};

/* Sends the largest frequencies of each run of 64; coefficients and sums are fp64. */
struct as_frequencies {
    static constexpr int BLOCKS = 2;
    static constexpr int RUNS = SPAN / COMPRESS_RUN; /* of a warp */
    static constexpr int PITCH = COMPRESS_RUN + 1;   /* lanes read rows, and columns, from banks of their own */

    DEVICE int kept(double density)
    {
        return (int)compress_kept(density, COMPRESS_RUN);
    }
    DEVICE int bytes(int n, double density)
    {
        return (n + COMPRESS_RUN - 1) / COMPRESS_RUN * (int)compress_run_bytes(kept(density));
    }
    /* basis()[element PITCH + frequency] */
    DEVICE double *basis(void)
    {
        SHARED(double, room, COMPRESS_RUN *PITCH);
        return room;
    }
    DEVICE void prepare(void)
    {
        for (int i = (int)threadIdx.x; i < COMPRESS_RUN * COMPRESS_RUN; i += CHUNK_THREADS)
            basis()[i / COMPRESS_RUN * PITCH + i % COMPRESS_RUN] = compress_basis(i / COMPRESS_RUN, i % COMPRESS_RUN);
        block_barrier(); /* the basis is there */
    }
    /* Inverts the transform of k coefficients for a lane's two elements, lane and 32 + lane; place(f), value(f):
     * position and bits of coefficient f. */
    template <typename P, typename V> DEVICE void transform_back(float (&y)[2], int k, P place, V value)
    {
        double sum[2] = {0, 0};
        for (int f = 0; f < k; f++) {
            const double *b = basis() + lane_of() * PITCH + place(f);
            double c = (double)bf16_value(value(f));
            sum[0] += rounded_product(c, b[0]);
            sum[1] += rounded_product(c, b[WARP * PITCH]);
        }
        y[0] = (float)sum[0];
        y[1] = (float)sum[1];
    }
    /* Encodes a run; c: its coefficients of frequencies lane and 32 + lane; back: its elements as decoded. */
    DEVICE void put_run(unsigned char *out, float (&back)[2], const float (&c)[2], int k)
    {
        SHARED(uint16_t, room, WARPS * 2 * COMPRESS_RUN);
        uint16_t *indices = room + warp_of() * 2 * COMPRESS_RUN, *values = indices + COMPRESS_RUN;
        uint32_t low = magnitude_of(c[0]), high = magnitude_of(c[1]), threshold = 0;
        for (int bit = 30; bit >= 0; bit--) {
            uint32_t tried = threshold | 1u << bit;
            threshold = warp_count(low >= tried) + warp_count(high >= tried) >= k ? tried : threshold;
        }
        picking p = {threshold, k - warp_count(low > threshold) - warp_count(high > threshold), 0};
        warp_barrier(); /* the last run has been read */
        UNROLL for (int half = 0; half < 2; half++)
        {
            int slot = p.take(half ? high : low);
            if (slot >= 0) {
                indices[slot] = (uint16_t)(half * WARP + lane_of());
                values[slot] = bf16_bits(c[half]);
            }
        }
        warp_barrier(); /* this one is there */
        put_fields<COMPRESS_RUN_PLACE_BITS>(out, k, lane_of(), WARP, [=](int i) { return (int)indices[i]; });
        put_fields<8>(out + compress_field_bytes(k, COMPRESS_RUN_PLACE_BITS), 2 * k, lane_of(), WARP,
                      [=](int i) { return values[i / 2] >> 8 * (i % 2) & 255; });
        transform_back(
            back, k, [=](int f) { return (int)indices[f]; }, [=](int f) { return (uint32_t)values[f]; });
    }
    DEVICE void encode(unsigned char *out, float (&x)[EACH], int n, double density)
    {
        int k = kept(density), run_bytes = (int)compress_run_bytes(k);
        double sum[RUNS][2] = {};
        UNROLL for (int half = 0; half < 2; half++) for (int i = 0; i < WARP; i++)
        {
            const double *b = basis() + (half * WARP + i) * PITCH + lane_of();
            UNROLL for (int r = 0; r < RUNS; r++)
            {
                double element = (double)warp_from(x[2 * r + half], i);
                sum[r][0] += rounded_product(element, b[0]);
                sum[r][1] += rounded_product(element, b[WARP]);
            }
        }
        UNROLL for (int r = 0; r < RUNS; r++)
        {
            int run = warp_of() * RUNS + r;
            float c[2] = {(float)sum[r][0], (float)sum[r][1]}, back[2];
            if (run * COMPRESS_RUN < n) { /* of a whole warp */
                put_run(out + run * run_bytes, back, c, k);
                x[2 * r] -= back[0];
                x[2 * r + 1] -= back[1];
            }
        }
    }
    DEVICE bool decode(float (&x)[EACH], const unsigned char *in, int n, double density)
    {
        int k = kept(density), run_bytes = (int)compress_run_bytes(k);
        bool sound = true;
        UNROLL for (int r = 0; r < RUNS; r++)
        {
            int run = warp_of() * RUNS + r;
            const unsigned char *indices = in + run * run_bytes;
            const unsigned char *values = indices + compress_field_bytes(k, COMPRESS_RUN_PLACE_BITS);
            float y[2] = {0, 0};
            if (run * COMPRESS_RUN < n)
                transform_back(
                    y, k,
                    [&](int f) {
                        int place = get_field<COMPRESS_RUN_PLACE_BITS>(indices, f);
                        sound = sound && (f == 0 || place > get_field<COMPRESS_RUN_PLACE_BITS>(indices, f - 1));
                        return place;
                    },
                    [=](int f) { return values[2 * f] | (uint32_t)values[2 * f + 1] << 8; });
            x[2 * r] = y[0];
            x[2 * r + 1] = y[1];
        }
        return sound;
    }
};
