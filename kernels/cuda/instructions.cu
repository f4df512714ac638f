/* A self-check runs the instructions of device.cuh one by one, each by one warp on a small case. Only a GPU reads the
 * PTX strings; the shim's twins of them would pass whatever they say.
 *
 * An input and an output have LAUNCH_CHECK_BYTES. The host computes the expected output from the input.
 */
#include <string.h>

#include "kernels/cuda/vector.cuh"

enum { SIDE = 16, PAIRS = SIDE * SIDE / 2, UNREAD = 7 }; /* the lane that reads nothing */

/* ---- kernels ---------------------------------------------------------------------------------------------------- */

/* out: the vectors that the lanes copied, [32] of 16 bytes; zeros from the lane that does not read */
KERNEL(WARP, 1) check_copies(uint32_t *out, const uint32_t *in)
{
    SHARED(uint32_t, tile, WARP * 4);
    int lane = (int)threadIdx.x;
    copy_async(tile + lane * 4, in + lane * 4, lane != UNREAD);
    copy_commit();
    copy_wait<0>();
    warp_barrier();
    for (int i = 0; i < 4; i++) /* of another lane */
        out[lane * 4 + i] = tile[(lane ^ 1) * 4 + i];
}

/* in: 16-bit [16, 16]; out: [lane][4] registers, of two neighbours each */
KERNEL(WARP, 1) check_matrices(uint32_t *out, const uint32_t *in, bool transposed)
{
    SHARED(uint32_t, tile, PAIRS);
    int lane = (int)threadIdx.x;
    for (int i = lane; i < PAIRS; i += WARP)
        tile[i] = in[i];
    warp_barrier();
    uint32_t got[4];
    const uint32_t *row = tile + (lane % 8 + lane / 8 % 2 * 8) * (SIDE / 2) + lane / 16 * 4;
    if (transposed)
        load_matrix_transposed(got, row);
    else
        load_matrix(got, row);
    for (int i = 0; i < 4; i++)
        out[lane * 4 + i] = got[i];
}

/* in: A 16-bit [16, 16], B turned [8, 16], C fp32 [16, 8]; out: A B + C */
template <typename T> KERNEL(WARP, 1) check_product(float *out, const uint32_t *in)
{
    int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
    const uint32_t *b = in + PAIRS;
    const float *from = (const float *)(in + PAIRS + PAIRS / 2);
    uint32_t a[4];
    float c[4];
    for (int i = 0; i < 4; i++) {
        int row = g + i % 2 * 8;
        a[i] = in[row * (SIDE / 2) + t + i / 2 * 4];
        c[i] = from[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
    }
    multiply_add(c, a, b[g * (SIDE / 2) + t], b[g * (SIDE / 2) + t + 4], T());
    for (int i = 0; i < 4; i++)
        out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}

/* out: [32] 2^x | x of the lane with three bits flipped | x of the next lane | the number of lanes with x > 0 */
KERNEL(WARP, 1) check_lanes(float *out, const float *in)
{
    int lane = (int)threadIdx.x;
    float x = in[lane];
    out[lane] = fast_exp2(x);
    out[WARP + lane] = warp_xor(x, 21);
    out[2 * WARP + lane] = warp_from(x, (lane + 1) % WARP);
    out[3 * WARP + lane] = (float)count_bits(warp_ballot(x > 0));
}

/* out: a 64-bit sum, a 32-bit sum and a 32-bit maximum, by atomics of all lanes */
KERNEL(WARP, 1) check_atomics(unsigned long long *out, const uint32_t *in)
{
    int lane = (int)threadIdx.x;
    int32_t *narrow = (int32_t *)(out + 1);
    if (lane == 0) {
        out[0] = 0;
        narrow[0] = 0;
        narrow[1] = -1;
    }
    block_barrier();
    atomic_add(out, (unsigned long long)in[lane] << 20);
    atomic_add(narrow, (int32_t)(in[lane] % 1000));
    atomic_max(narrow + 1, (int32_t)(in[lane] % 100000));
}

/* ---- expected outputs ------------------------------------------------------------------------------------------- */

/* A NaN counts as infinitely wrong. */
static double relative(double got, double want)
{
    double size = fabs(want), error = fabs(got - want) / (size > 1 ? size : 1);
    return error <= 1e30 ? error : 1e30;
}

static double words_differ(const uint32_t *got, const uint32_t *want, int count)
{
    return memcmp(got, want, (size_t)count * 4) ? 1 : 0;
}

static double copies_error(const void *out, const void *in)
{
    uint32_t want[WARP * 4];
    for (int i = 0; i < WARP * 4; i++) {
        int lane = i / 4 ^ 1;
        want[i] = lane == UNREAD ? 0 : ((const uint32_t *)in)[lane * 4 + i % 4];
    }
    return words_differ((const uint32_t *)out, want, WARP * 4);
}

template <bool TRANSPOSED> static double matrices_error(const void *out, const void *in)
{
    const uint16_t *from = (const uint16_t *)in;
    uint16_t want[WARP * 4 * 2];
    for (int i = 0; i < WARP * 4 * 2; i++) {
        int lane = i / 8, matrix = i / 2 % 4, row = lane / 4, column = 2 * (lane % 4) + i % 2;
        int r = TRANSPOSED ? column : row, c = TRANSPOSED ? row : column;
        want[i] = from[(r + matrix % 2 * 8) * SIDE + c + matrix / 2 * 8];
    }
    uint32_t words[WARP * 4];
    memcpy(words, want, sizeof words);
    return words_differ((const uint32_t *)out, words, WARP * 4);
}

static float read_as(bf16, const void *from, int i)
{
    bf16 x;
    memcpy(&x, (const char *)from + i * 2, 2);
    return __bfloat162float(x);
}

static float read_as(fp16, const void *from, int i)
{
    fp16 x;
    memcpy(&x, (const char *)from + i * 2, 2);
    return __half2float(x);
}

template <typename T> static double product_error(const void *out, const void *in)
{
    double worst = 0;
    const char *b = (const char *)in + PAIRS * 4, *c = b + PAIRS * 2;
    for (int i = 0; i < SIDE * 8; i++) {
        float added, got;
        memcpy(&added, c + i * 4, 4);
        memcpy(&got, (const char *)out + i * 4, 4);
        double want = added;
        for (int k = 0; k < SIDE; k++)
            want += (double)read_as(T(), in, i / 8 * SIDE + k) * (double)read_as(T(), b, i % 8 * SIDE + k);
        double error = relative(got, want);
        worst = error <= worst ? worst : error;
    }
    return worst;
}

static double lanes_error(const void *out, const void *in)
{
    const float *x = (const float *)in, *got = (const float *)out;
    double worst = 0;
    int positive = 0;
    for (int i = 0; i < WARP; i++)
        positive += x[i] > 0;
    for (int i = 0; i < WARP; i++) {
        double want[] = {exp2((double)x[i]), (double)x[i ^ 21], (double)x[(i + 1) % WARP], (double)positive};
        for (int k = 0; k < 4; k++) {
            double error = relative(got[k * WARP + i], want[k]);
            worst = error <= worst ? worst : error;
        }
    }
    return worst;
}

static double atomics_error(const void *out, const void *in)
{
    unsigned long long wide = 0, got;
    int32_t sum = 0, most = -1, narrow[2];
    for (int i = 0; i < WARP; i++) {
        uint32_t x = ((const uint32_t *)in)[i];
        wide += (unsigned long long)x << 20;
        sum += (int32_t)(x % 1000);
        most = (int32_t)(x % 100000) > most ? (int32_t)(x % 100000) : most;
    }
    memcpy(&got, out, 8);
    memcpy(narrow, (const char *)out + 8, 8);
    return got == wide && narrow[0] == sum && narrow[1] == most ? 0 : 1;
}

/* ---- inputs
 * --------------------------------------------------------------------------------------------------------- */

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 4;
}

static void any_words(void *in)
{
    uint32_t state = 5, *to = (uint32_t *)in;
    for (int i = 0; i < LAUNCH_CHECK_BYTES / 4; i++)
        to[i] = draw(&state);
}

/* Draws from [-2, 2), multiples of 1/64: exact in every type. */
static float small(uint32_t *state)
{
    return (float)(draw(state) >> 8 & 255) / 64 - 2;
}

static void floats(void *in)
{
    uint32_t state = 6;
    for (int i = 0; i < LAUNCH_CHECK_BYTES / 4; i++)
        ((float *)in)[i] = small(&state);
}

static void write_as(bf16, void *to, float x)
{
    bf16 narrow = __float2bfloat16_rn(x);
    memcpy(to, &narrow, 2);
}

static void write_as(fp16, void *to, float x)
{
    fp16 narrow = __float2half_rn(x);
    memcpy(to, &narrow, 2);
}

template <typename T> static void product_input(void *in)
{
    uint32_t state = 7;
    char *to = (char *)in;
    for (int i = 0; i < PAIRS * 3; i++) /* A and B */
        write_as(T(), to + i * 2, small(&state));
    for (int i = 0; i < SIDE * 8; i++)
        ((float *)(to + PAIRS * 6))[i] = small(&state);
}

/* ---- the table
 * -------------------------------------------------------------------------------------------------------- */

template <bool TRANSPOSED> static int launch_matrices(void *stream, void *out, const void *in)
{
    return launch(check_matrices, 1, WARP, 0, stream, (uint32_t *)out, (const uint32_t *)in, TRANSPOSED);
}

template <typename Out, typename In, void (*CHECK)(Out *, const In *)>
static int launch_one(void *stream, void *out, const void *in)
{
    return launch(CHECK, 1, WARP, 0, stream, (Out *)out, (const In *)in);
}

const launch_check launch_checks[LAUNCH_CHECKS] = {
    {"cp.async of 16 bytes, and of none", any_words, launch_one<uint32_t, uint32_t, check_copies>, copies_error},
    {"ldmatrix", any_words, launch_matrices<false>, matrices_error<false>},
    {"ldmatrix, transposed", any_words, launch_matrices<true>, matrices_error<true>},
    {"mma m16n8k16 in bf16", product_input<bf16>, launch_one<float, uint32_t, check_product<bf16>>, product_error<bf16>},
    {"mma m16n8k16 in fp16", product_input<fp16>, launch_one<float, uint32_t, check_product<fp16>>, product_error<fp16>},
    {"ex2.approx, shuffles and votes of a warp", floats, launch_one<float, float, check_lanes>, lanes_error},
    {"atomics on integers", any_words, launch_one<unsigned long long, uint32_t, check_atomics>, atomics_error},
};
