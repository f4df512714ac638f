/* The rules of the optimizer's update, each over a list of tensors in one launch, and each byte read and written once;
 * and Muon's ops on its small square matrices. Kernels read the scalars of a step from device memory.
 *
 * A rule is a type: how many states it has, whether it reads its first output (the master), whether rows may have
 * factors of their own, and its formula for one element, as in kernels/table/ops.def.
 */
#include "kernels/cuda/vector.cuh"

#include "kernels/host_device.h"
#include "kernels/rounding.h"

static constexpr int THREADS = 256, V = 4, VECTORS_A_THREAD = 4, BLOCK_ELEMENTS = THREADS * V * VECTORS_A_THREAD;

struct update_list {
    launch_update_segment at[LAUNCH_UPDATE_SEGMENTS];
    uint64_t wide; /* a bit a segment: 16-byte accesses */
    int32_t count;
};

/* Factors that all elements of a segment share; each rule fills in those it reads. */
struct update_factors {
    float gradient;     /* factor on the gradient; 0 where the step is skipped */
    float beta1, beta2; /* what the means keep of themselves */
    float rate, root, epsilon;
    double decay;    /* of the segment */
    float keep;      /* 1 - lr decay */
    float own, mean; /* the direction is own g + mean m */
};

/* rate = lr / (1 - beta1^s), root = 1 / (1 - beta2^s) */
struct adamw_rule {
    static constexpr int STATES = 2;
    static constexpr bool READS = true, SCALES = false;
    DEVICE void prepare(update_factors &f, const launch_update_segment &, const step_scalars *scalars)
    {
        f.beta1 = scalars->beta1;
        f.beta2 = scalars->beta2;
        f.rate = scalars->lr / scalars->momentum_correction;
        f.root = 1.0f / scalars->variance_correction;
        f.epsilon = scalars->epsilon;
        f.keep = (float)(1.0 - (double)scalars->lr * f.decay);
    }
    DEVICE void element(float &master, float *state, float gradient, const update_factors &f)
    {
        float g = gradient * f.gradient, &m = state[0], &v = state[1];
        m = f.beta1 * m + (1.0f - f.beta1) * g;
        v = f.beta2 * v + (1.0f - f.beta2) * g * g;
        master = f.keep * master - f.rate * m / (sqrtf(v * f.root) + f.epsilon);
    }
};

struct lion_rule {
    static constexpr int STATES = 1;
    static constexpr bool READS = true, SCALES = false;
    DEVICE void prepare(update_factors &f, const launch_update_segment &, const step_scalars *scalars)
    {
        f.beta1 = scalars->beta1;
        f.beta2 = scalars->beta2;
        f.rate = scalars->lr;
        f.keep = (float)(1.0 - (double)scalars->lr * f.decay);
    }
    DEVICE void element(float &master, float *state, float gradient, const update_factors &f)
    {
        float g = gradient * f.gradient, &m = state[0];
        float direction = f.beta1 * m + (1.0f - f.beta1) * g;
        float sign = direction > 0.0f ? 1.0f : direction < 0.0f ? -1.0f : 0.0f;
        m = f.beta2 * m + (1.0f - f.beta2) * g;
        master = f.keep * master - f.rate * sign;
    }
};

struct sgd_rule {
    static constexpr int STATES = 1;
    static constexpr bool READS = true, SCALES = false;
    DEVICE void prepare(update_factors &f, const launch_update_segment &s, const step_scalars *scalars)
    {
        f.beta1 = scalars->momentum;
        f.rate = scalars->lr;
        f.own = s.nesterov ? 1.0f : 0.0f;
        f.mean = s.nesterov ? scalars->momentum : 1.0f;
    }
    DEVICE void element(float &master, float *state, float gradient, const update_factors &f)
    {
        float g = gradient * f.gradient, &m = state[0];
        m = f.beta1 * m + g;
        master -= f.rate * (f.own * g + f.mean * m);
    }
};

/* `master` is x, which is only written. */
struct muon_momentum_rule {
    static constexpr int STATES = 1;
    static constexpr bool READS = false, SCALES = false;
    DEVICE void prepare(update_factors &f, const launch_update_segment &s, const step_scalars *scalars)
    {
        f.beta1 = scalars->momentum;
        f.own = s.nesterov ? 1.0f - scalars->momentum : 0.0f;
        f.mean = s.nesterov ? scalars->momentum : 1.0f;
    }
    DEVICE void element(float &x, float *state, float gradient, const update_factors &f)
    {
        float g = gradient * f.gradient, &m = state[0];
        m = f.beta1 * m + (1.0f - f.beta1) * g;
        x = f.own * g + f.mean * m;
    }
};

/* `gradient` is x, the orthogonalised direction. */
struct muon_rule {
    static constexpr int STATES = 0;
    static constexpr bool READS = true, SCALES = true;
    DEVICE void prepare(update_factors &f, const launch_update_segment &s, const step_scalars *scalars)
    {
        f.rate = scalars->muon_lr * s.scale;
        f.keep = (float)(1.0 - (double)scalars->muon_lr * f.decay);
    }
    DEVICE void element(float &master, float *, float x, const update_factors &f)
    {
        master = f.keep * master - f.rate * x;
    }
};

template <int W> DEVICE void load_either(float (&to)[W], const void *from, int64_t i, bool narrow)
{
    if (narrow)
        load(to, (const bf16 *)from + i);
    else
        load(to, (const float *)from + i);
}

/* The random draws of an element's block, made again only for the next block. */
struct rounding_at {
    rounding how;
    uint64_t block;
    uint32_t draws[4];
};

DEVICE uint16_t round_element(float x, uint64_t element, rounding_at &at)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (element / ROUNDING_ELEMENTS != at.block) {
        at.block = element / ROUNDING_ELEMENTS;
        rounding_draws(at.draws, &at.how, at.block);
    }
    return rounding_bf16(bits, rounding_bits(at.draws, element));
}

/* `operand`: 0 for the master, then the states. */
template <int W>
DEVICE void store_either(void *to, const float (&from)[W], int64_t i, bool narrow, int operand,
                         const launch_update_segment &s, const step_scalars *scalars)
{
    if (!narrow) {
        store((float *)to + i, from);
        return;
    }
    rounding_at at = {{scalars->seed, s.stream, scalars->step, (uint32_t)(s.site + operand)}, ~0ull, {}};
    uint16_t rounded[W];
    UNROLL for (int j = 0; j < W; j++)
    {
        int64_t row = (i + j) / s.columns, column = (i + j) % s.columns;
        rounded[j] = round_element(from[j], (uint64_t)(s.first + row * s.stride + column), at);
    }
    typename word<2 * W>::type raw;
    memcpy(&raw, rounded, sizeof raw);
    *reinterpret_cast<typename word<2 * W>::type *>((uint16_t *)to + i) = raw;
}

/* Updates W elements from `i` on, in accesses of W. */
template <typename Rule, typename T, int W>
DEVICE void update_some(const launch_update_segment &s, int64_t i, const update_factors &f, const step_scalars *scalars)
{
    float gradient[W], master[W], state[2][W];
    load(gradient, s.gradient + i);
    if (Rule::READS)
        load_either(master, s.master, i, s.narrow_master);
    UNROLL for (int k = 0; k < Rule::STATES; k++) load_either(state[k], s.state[k], i, s.narrow_state);
    UNROLL for (int j = 0; j < W; j++)
    {
        float own[2] = {};
        UNROLL for (int k = 0; k < Rule::STATES; k++) own[k] = state[k][j];
        Rule::element(master[j], own, gradient[j], f);
        UNROLL for (int k = 0; k < Rule::STATES; k++) state[k][j] = own[k];
        if (Rule::SCALES && s.factors)
            master[j] *= s.factors[(i + j) / s.columns];
    }
    UNROLL for (int k = 0; k < Rule::STATES; k++)
        store_either(s.state[k], state[k], i, s.narrow_state, 1 + k, s, scalars);
    store_either(s.master, master, i, s.narrow_master, 0, s, scalars);
    if (s.weight)
        store((T *)s.weight + i, master);
}

/* A skipped step leaves everything as it is, but sets an output that is only written to 0. */
template <typename Rule, int W> DEVICE void skip_some(const launch_update_segment &s, int64_t i)
{
    float nothing[W] = {};
    if (!Rule::READS)
        store((float *)s.master + i, nothing);
}

template <typename Rule, typename T>
KERNEL(THREADS, 4)
update(update_list list, const step_scalars *scalars, const float *control)
{
    bool skip = control[CONTROL_SKIP] != 0;
    if (skip && Rule::READS)
        return;
    int32_t which = 0;
    while (which + 1 < list.count && (int32_t)blockIdx.x >= list.at[which + 1].block)
        which++;
    const launch_update_segment &s = list.at[which];
    update_factors f = {};
    f.gradient = control[CONTROL_FACTOR];
    f.decay = s.decay ? (double)scalars->weight_decay : 0.0;
    Rule::prepare(f, s, scalars);
    int64_t base = ((int64_t)blockIdx.x - s.block) * BLOCK_ELEMENTS;
    for (int k = 0; k < VECTORS_A_THREAD; k++) {
        int64_t i = base + ((int64_t)k * THREADS + threadIdx.x) * V;
        bool wide = (list.wide >> which & 1) && i + V <= s.count;
        if (wide && skip)
            skip_some<Rule, V>(s, i);
        else if (wide)
            update_some<Rule, T, V>(s, i, f, scalars);
        for (int j = 0; !wide && j < V && i + j < s.count; j++)
            if (skip)
                skip_some<Rule, 1>(s, i + j);
            else
                update_some<Rule, T, 1>(s, i + j, f, scalars);
    }
}

template <typename Rule>
static int launch_rule(cudaStream_t stream, int type, const update_list &list, unsigned blocks, const void *scalars,
                       const float *control)
{
    return with_type(type, [&](auto t) {
        return launch(update<Rule, decltype(t)>, blocks, THREADS, 0, stream, list, (const step_scalars *)scalars,
                      control);
    });
}

int launch_update(void *stream, int rule, int type, const launch_update_segment *segments, int count,
                  const void *scalars, const float *control)
{
    static int (*const rules[])(cudaStream_t, int, const update_list &, unsigned, const void *, const float *) = {
#define UPDATE(name) launch_rule<name##_rule>,
#include "kernels/table/updates.def"
    };
    for (int first = 0; first < count; first += LAUNCH_UPDATE_SEGMENTS) {
        update_list list = {};
        int64_t blocks = 0;
        list.count = count - first < LAUNCH_UPDATE_SEGMENTS ? count - first : LAUNCH_UPDATE_SEGMENTS;
        for (int i = 0; i < list.count; i++) {
            launch_update_segment &s = list.at[i];
            s = segments[first + i];
            s.block = (int32_t)blocks;
            blocks += divide_up(s.count, BLOCK_ELEMENTS);
            int state_bytes = s.narrow_state ? 8 : 16;
            bool wide = aligned(s.gradient, 16) && aligned(s.weight, type == DTYPE_FP32 ? 16 : 8) &&
                        aligned(s.master, s.narrow_master ? 8 : 16) && aligned(s.state[0], state_bytes) &&
                        aligned(s.state[1], state_bytes);
            list.wide |= (uint64_t)wide << i;
        }
        if (blocks > INT32_MAX)
            return (int)cudaErrorInvalidValue;
        if (blocks == 0)
            continue;
        if (int failed = rules[rule]((cudaStream_t)stream, type, list, (unsigned)blocks, scalars, control))
            return failed;
    }
    return 0;
}

/* ---- Muon's square matrices ------------------------------------------------------------------------------------ */

/* scale = 1 / max(sqrt(trace), epsilon): one block, a fixed order */
KERNEL(THREADS, 1) muon_norm(float *scale, const float *gram, int64_t n, int64_t pitch, float epsilon)
{
    float trace = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        trace += gram[i * (pitch + 1)];
    trace = block_sum(trace, 0).a;
    if (threadIdx.x == 0)
        *scale = 1.0f / fmaxf(sqrtf(trace), epsilon);
}

/* y = scale^2 x */
KERNEL(THREADS, 4)
muon_scaled(float *y, int64_t y_pitch, const float *x, int64_t x_pitch, const float *scale, int64_t n)
{
    float square = *scale * *scale;
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (column < n)
        for (int64_t row = blockIdx.y; row < n; row += gridDim.y)
            y[row * y_pitch + column] = square * x[row * x_pitch + column];
}

/* p = scale (a I + b gram + c square); a scale that is absent is 1 */
KERNEL(THREADS, 4)
muon_sum(float *p, int64_t p_pitch, const float *gram, int64_t gram_pitch, const float *square, int64_t square_pitch,
         const float *scale, int64_t n)
{
    float factor = scale ? *scale : 1.0f;
    float a = factor * (float)MUON_A, b = factor * (float)MUON_B, c = factor * (float)MUON_C;
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (column < n)
        for (int64_t row = blockIdx.y; row < n; row += gridDim.y)
            p[row * p_pitch + column] = b * gram[row * gram_pitch + column] + c * square[row * square_pitch + column] +
                                        (row == column ? a : 0.0f);
}

static dim3 square_grid(int64_t n)
{
    return dim3((unsigned)divide_up(n, THREADS), (unsigned)(n < 65535 ? n : 65535));
}

void cuda_muon_scale(const op *o, const run_context *r)
{
    const tensor *gram = o->in[0], *scaled = o->out[0];
    const int64_t n = gram->shape[0];
    float *scale = data<float>(o->out[1], r);
    cuda_launched(o, launch(muon_norm, 1, THREADS, 0, r->stream, scale, data<const float>(gram, r), n, gram->pitch,
                            o->at.update.epsilon));
    cuda_launched(o, launch(muon_scaled, square_grid(n), THREADS, 0, r->stream, data<float>(scaled, r), scaled->pitch,
                            data<const float>(gram, r), gram->pitch, (const float *)scale, n));
}

void cuda_muon_polynomial(const op *o, const run_context *r)
{
    const tensor *gram = o->in[0], *square = o->in[1], *p = o->out[0];
    const int64_t n = gram->shape[0];
    cuda_launched(o, launch(muon_sum, square_grid(n), THREADS, 0, r->stream, data<float>(p, r), p->pitch,
                            data<const float>(gram, r), gram->pitch, data<const float>(square, r), square->pitch,
                            data<const float>(o->in[2], r), n));
}
