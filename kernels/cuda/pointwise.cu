/* Element-wise ops over [rows, columns]: one kernel per number of operands, a function object per formula.
 *
 * Contiguous operands are one long row. Otherwise blockIdx.y strides over the rows. Each thread makes 16-byte accesses.
 */
#include "kernels/cuda/vector.cuh"

#include "kernels/host_device.h"
#include "kernels/philox.h"
#include "kernels/token.h"

static constexpr int THREADS = 256, MOST_ROWS = 65535;

/* (1 + tanh(u))/2 = 1/(1 + exp(-2u)), which keeps its precision where tanh is nearly -1. */
struct gelu_forward {
    DEVICE float gate(float x)
    {
        return 1.0f / (1.0f + expf(-2.0f * GELU_ROOT * (x + GELU_CUBIC * x * x * x)));
    }
    __device__ float operator()(float x) const
    {
        return x * gate(x);
    }
};

/* gelu'(x) = g + 2 x g (1 - g) sqrt(2/pi) (1 + 3 0.044715 x^2), g the gate above */
struct gelu_backward {
    __device__ float operator()(float dy, float x) const
    {
        float g = gelu_forward::gate(x);
        float slope = GELU_ROOT * (1.0f + 3.0f * GELU_CUBIC * x * x);
        return dy * (g + 2.0f * x * g * (1.0f - g) * slope);
    }
};

/* x Phi(x), Phi(x) = erfc(-x / sqrt(2)) / 2 */
struct gelu_exact_forward {
    DEVICE float integral(float x)
    {
        return 0.5f * erfcf(-0.7071067811865476f * x);
    }
    __device__ float operator()(float x) const
    {
        return x * integral(x);
    }
};

/* Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi) */
struct gelu_exact_backward {
    __device__ float operator()(float dy, float x) const
    {
        return dy * (gelu_exact_forward::integral(x) + 0.3989422804014327f * x * expf(-0.5f * x * x));
    }
};

/* x sigmoid(x), and dy up f'(x) with f' = s (1 + x (1 - s)) */
struct silu_gate {
    __device__ float operator()(float x) const
    {
        return x / (1.0f + expf(-x));
    }
    __device__ float of_both(float dy, float x, float up) const
    {
        float s = 1.0f / (1.0f + expf(-x));
        return dy * up * s * (1.0f + x * (1.0f - s));
    }
};

struct gelu_gate : gelu_forward {
    __device__ float of_both(float dy, float x, float up) const
    {
        return gelu_backward()(dy * up, x);
    }
};

/* A gate g = min(x, limit) and an up u between -limit and limit: g sigmoid(slope g) (1 + u), and its two slopes, which
 * are 0 beyond the limits. Comparisons keep NaN. */
struct clamped_gate {
    float limit, slope;
    __device__ float clamped(float up) const
    {
        return up > limit ? limit : up < -limit ? -limit : up;
    }
    __device__ float operator()(float gate, float up) const
    {
        float g = gate > limit ? limit : gate;
        return g / (1.0f + expf(-slope * g)) * (1.0f + clamped(up));
    }
    __device__ float of_gate(float gate, float up) const
    {
        float s = 1.0f / (1.0f + expf(-slope * gate));
        return gate > limit ? 0.0f : s * (1.0f + slope * gate * (1.0f - s)) * (1.0f + clamped(up));
    }
    __device__ float of_up(float gate, float up) const
    {
        float g = gate > limit ? limit : gate;
        return up > limit || up < -limit ? 0.0f : g / (1.0f + expf(-slope * g));
    }
};

struct sum_of_two {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

struct multiple {
    float factor;
    __device__ float operator()(float x) const
    {
        return factor * x;
    }
};

/* cap tanh(x / cap), and dy (1 - tanh(x / cap)^2) = dy 4 s (1 - s), s = sigmoid(-2 |x / cap|) */
struct soft_cap_forward {
    float cap;
    __device__ float operator()(float x) const
    {
        return cap * tanhf(x / cap);
    }
};

struct soft_cap_backward {
    float cap;
    __device__ float operator()(float dy, float x) const
    {
        float s = 1.0f / (1.0f + expf(2.0f * fabsf(x / cap)));
        return dy * 4.0f * s * (1.0f - s);
    }
};

struct identity {
    __device__ float operator()(float x) const
    {
        return x;
    }
};

/* y = f(x) */
template <typename To, typename From, int V, typename F>
KERNEL(THREADS, 4)
map_one(To *y, int64_t y_pitch, const From *x, int64_t x_pitch, int64_t rows, int64_t columns, F f)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (column >= columns)
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        float a[V];
        load(a, x + row * x_pitch + column);
        UNROLL for (int i = 0; i < V; i++) a[i] = f(a[i]);
        store(y + row * y_pitch + column, a);
    }
}

/* y = f(a, b) */
template <typename T, int V, typename F>
KERNEL(THREADS, 4)
map_two(T *y, int64_t y_pitch, const T *a, int64_t a_pitch, const T *b, int64_t b_pitch, int64_t rows, int64_t columns,
        F f)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (column >= columns)
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        float left[V], right[V];
        load(left, a + row * a_pitch + column);
        load(right, b + row * b_pitch + column);
        UNROLL for (int i = 0; i < V; i++) left[i] = f(left[i], right[i]);
        store(y + row * y_pitch + column, left);
    }
}

/* y = silu(gate) up, x = gate | up */
template <typename T, int V, typename Gate>
KERNEL(THREADS, 4)
gated_forward(T *y, int64_t y_pitch, const T *x, int64_t x_pitch, int64_t rows, int64_t columns, Gate f)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (column >= columns)
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        float gate[V], up[V];
        load(gate, x + row * x_pitch + column);
        load(up, x + row * x_pitch + columns + column);
        UNROLL for (int i = 0; i < V; i++) gate[i] = f(gate[i]) * up[i];
        store(y + row * y_pitch + column, gate);
    }
}

/* dgate = dy up f'(gate), dup = dy f(gate) */
template <typename T, int V, typename Gate>
KERNEL(THREADS, 4)
gated_backward(T *dx, int64_t dx_pitch, const T *dy, int64_t dy_pitch, const T *x, int64_t x_pitch, int64_t rows,
               int64_t columns, Gate f)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (column >= columns)
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        float gate[V], up[V], d[V];
        load(gate, x + row * x_pitch + column);
        load(up, x + row * x_pitch + columns + column);
        load(d, dy + row * dy_pitch + column);
        UNROLL for (int i = 0; i < V; i++)
        {
            float of = f.of_both(d[i], gate[i], up[i]);
            up[i] = d[i] * f(gate[i]);
            gate[i] = of;
        }
        store(dx + row * dx_pitch + column, gate);
        store(dx + row * dx_pitch + columns + column, up);
    }
}

/* Loads V pairs, which begin at any element. */
template <int V, typename T> DEVICE void load_pairs(float (&to)[2 * V], const T *from)
{
    if constexpr (V == 1)
        to[0] = to_float(from[0]), to[1] = to_float(from[1]);
    else
        load(to, from);
}

template <int V, typename T> DEVICE void store_pairs(T *to, const float (&from)[2 * V])
{
    if constexpr (V == 1)
        from_float(to[0], from[0]), from_float(to[1], from[1]);
    else
        store(to, from);
}

/* y = f(gate, up), x = pairs of a gate and an up */
template <typename T, int V>
KERNEL(THREADS, 4)
pairs_forward(T *y, int64_t y_pitch, const T *x, int64_t x_pitch, int64_t rows, int64_t columns, clamped_gate f)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (column >= columns)
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        float pairs[2 * V], out[V];
        load_pairs<V>(pairs, x + row * x_pitch + 2 * column);
        UNROLL for (int i = 0; i < V; i++) out[i] = f(pairs[2 * i], pairs[2 * i + 1]);
        store(y + row * y_pitch + column, out);
    }
}

template <typename T, int V>
KERNEL(THREADS, 4)
pairs_backward(T *dx, int64_t dx_pitch, const T *dy, int64_t dy_pitch, const T *x, int64_t x_pitch, int64_t rows,
               int64_t columns, clamped_gate f)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (column >= columns)
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        float pairs[2 * V], d[V];
        load_pairs<V>(pairs, x + row * x_pitch + 2 * column);
        load(d, dy + row * dy_pitch + column);
        UNROLL for (int i = 0; i < V; i++)
        {
            float gate = pairs[2 * i], up = pairs[2 * i + 1];
            pairs[2 * i] = d[i] * f.of_gate(gate, up);
            pairs[2 * i + 1] = d[i] * f.of_up(gate, up);
        }
        store_pairs<V>(dx + row * dx_pitch + 2 * column, pairs);
    }
}

/* rows of 16-byte words, or of bytes; control, if any, says whether the step is skipped */
template <typename Word>
KERNEL(THREADS, 4)
copy_words(Word *y, int64_t y_pitch, const Word *x, int64_t x_pitch, const float *control, int64_t rows, int64_t words)
{
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (column >= words || (control && control[CONTROL_SKIP] != 0))
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y)
        y[row * y_pitch + column] = x[row * x_pitch + column];
}

template <typename Word> KERNEL(THREADS, 4) zero_words(Word *y, int64_t words)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at < words)
        y[at] = Word();
}

template <typename T, int V>
KERNEL(THREADS, 4)
dropout_mask(T *y, int64_t y_pitch, const T *x, int64_t x_pitch, const step_scalars *scalars, int64_t rows,
             int64_t columns, const int32_t *token_positions, int32_t sample, int32_t sequence, int32_t site, float probability)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (column >= columns)
        return;
    float keep = 1.0f / (1.0f - probability);
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        int64_t token = token_positions[row];
        uint64_t global_sample = (uint64_t)(scalars->first_sample + sample + token_sample(token, sequence));
        uint64_t element = (uint64_t)(token_position(token, sequence) * columns + column);
        float a[V];
        load(a, x + row * x_pitch + column);
        UNROLL for (int i = 0; i < V; i += 4)
        {
            uint32_t draw[4];
            philox_draws(draw, scalars->seed, (uint32_t)site, (uint64_t)scalars->step, global_sample,
                         (element + (uint64_t)i) / 4);
            if constexpr (V == 1) /* a chain of choices: an index would put the draws in memory */
                draw[0] =
                    element % 4 < 2 ? (element % 4 == 0 ? draw[0] : draw[1]) : (element % 4 == 2 ? draw[2] : draw[3]);
            UNROLL for (int j = 0; j < 4 && j < V; j++) a[i + j] =
                philox_uniform(draw[j]) >= probability ? a[i + j] * keep : 0.0f;
        }
        store(y + row * y_pitch + column, a);
    }
}

/* rows of `words` words, a thread a word of some rows */
template <typename W>
KERNEL(THREADS, 4)
arrange_rows(W *y, const W *x, const int32_t *token_positions, int64_t rows, int64_t words, bool inverse)
{
    int64_t word = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (word >= words)
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        int64_t place = token_positions[row], to = inverse ? row : place, from = inverse ? place : row;
        y[to * words + word] = x[from * words + word];
    }
}

/* ---- host side ----------------------------------------------------------------------------------------------- */

struct shape {
    int64_t rows, columns;
    bool wide; /* 16-byte accesses */

    /* Operands without gaps between their rows are one long row. */
    template <typename... M> void flatten(M &...m)
    {
        bool whole = true;
        ((whole = whole && m.pitch == columns), ...);
        if (whole) {
            columns *= rows;
            rows = 1;
        }
    }
    template <typename... M> bool widen(int vector, const M &...m)
    {
        wide = columns % vector == 0;
        ((wide = wide && aligned(m.at, 16) && (rows == 1 || m.pitch % vector == 0)), ...);
        return wide;
    }
    dim3 grid(int vector) const
    {
        return dim3(blocks_for(columns, (int64_t)THREADS * (wide ? vector : 1)),
                    (unsigned)(rows < 1           ? 1
                               : rows > MOST_ROWS ? MOST_ROWS
                                                  : rows),
                    1);
    }
};

template <typename To, typename From, typename F>
static int run_one(const run_context *r, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns, F f)
{
    constexpr int V = VECTOR < To >> VECTOR<From> ? VECTOR<To> : VECTOR<From>;
    shape s = {rows, columns, false};
    s.flatten(y, x);
    s.widen(V, y, x);
    auto kernel = s.wide ? map_one<To, From, V, F> : map_one<To, From, 1, F>;
    return launch(kernel, s.grid(V), THREADS, 0, r->stream, (To *)y.at, y.pitch, (const From *)x.at, x.pitch, s.rows,
                  s.columns, f);
}

template <typename T, typename F>
static int run_two(const run_context *r, launch_matrix y, launch_matrix a, launch_matrix b, int64_t rows,
                   int64_t columns, F f)
{
    constexpr int V = VECTOR<T>;
    shape s = {rows, columns, false};
    s.flatten(y, a, b);
    s.widen(V, y, a, b);
    auto kernel = s.wide ? map_two<T, V, F> : map_two<T, 1, F>;
    return launch(kernel, s.grid(V), THREADS, 0, r->stream, (T *)y.at, y.pitch, (const T *)a.at, a.pitch,
                  (const T *)b.at, b.pitch, s.rows, s.columns, f);
}

/* y = f(x) */
template <typename F> static void one(const op *o, const run_context *r, F f)
{
    const tensor *y = o->out[0];
    cuda_launched(o, with_type(y->type, [&](auto t) {
                      using T = decltype(t);
                      return run_one<T, T>(r, matrix(y, r), matrix(o->in[0], r), y->shape[0], columns_of(y), f);
                  }));
}

/* y = f(a, b) */
template <typename F> static void two(const op *o, const run_context *r, F f)
{
    const tensor *y = o->out[0];
    cuda_launched(o, with_type(y->type, [&](auto t) {
                      return run_two<decltype(t)>(r, matrix(y, r), matrix(o->in[0], r), matrix(o->in[1], r),
                                                  y->shape[0], columns_of(y), f);
                  }));
}

template <typename T, int V, typename Gate> static auto forward_of(const Gate &)
{
    return gated_forward<T, V, Gate>;
}

template <typename T, int V> static auto forward_of(const clamped_gate &)
{
    return pairs_forward<T, V>;
}

template <typename T, int V, typename Gate> static auto backward_of(const Gate &)
{
    return gated_backward<T, V, Gate>;
}

template <typename T, int V> static auto backward_of(const clamped_gate &)
{
    return pairs_backward<T, V>;
}

/* y [rows, columns] of x [rows, 2 columns], which holds gate | up, or pairs of them */
template <typename Gate> static void gated(const op *o, const run_context *r, Gate f)
{
    const tensor *out = o->out[0];
    launch_matrix y = matrix(out, r), x = matrix(o->in[0], r);
    shape s = {out->shape[0], out->shape[1], false};
    auto is_wide = [&](int vector) { return s.widen(vector, y, x); };
    cuda_launched(o, with_access(out->type, is_wide, [&](auto t, auto v) {
                      using T = decltype(t);
                      return launch(forward_of<T, v()>(f), s.grid(v()), THREADS, 0, r->stream, (T *)y.at, y.pitch,
                                    (const T *)x.at, x.pitch, s.rows, s.columns, f);
                  }));
}

template <typename Gate> static void gated_grad(const op *o, const run_context *r, Gate f)
{
    launch_matrix dx = matrix(o->out[0], r), dy = matrix(o->in[0], r), x = matrix(o->in[1], r);
    shape s = {o->in[0]->shape[0], o->in[0]->shape[1], false};
    auto is_wide = [&](int vector) { return s.widen(vector, dx, dy, x); };
    cuda_launched(o, with_access(o->out[0]->type, is_wide, [&](auto t, auto v) {
                      using T = decltype(t);
                      return launch(backward_of<T, v()>(f), s.grid(v()), THREADS, 0, r->stream, (T *)dx.at, dx.pitch,
                                    (const T *)dy.at, dy.pitch, (const T *)x.at, x.pitch, s.rows, s.columns, f);
                  }));
}

CUDA_OP(gelu, one(o, r, gelu_forward()))
CUDA_OP(gelu_grad, two(o, r, gelu_backward()))
CUDA_OP(gelu_exact, one(o, r, gelu_exact_forward()))
CUDA_OP(gelu_exact_grad, two(o, r, gelu_exact_backward()))
CUDA_OP(scale, one(o, r, multiple{o->at.constants.scale}))
CUDA_OP(soft_cap, one(o, r, soft_cap_forward{o->at.constants.cap}))
CUDA_OP(soft_cap_grad, two(o, r, soft_cap_backward{o->at.constants.cap}))
CUDA_OP(add, two(o, r, sum_of_two()))
CUDA_OP(swiglu, gated(o, r, silu_gate()))
CUDA_OP(swiglu_grad, gated_grad(o, r, silu_gate()))
CUDA_OP(geglu, gated(o, r, gelu_gate()))
CUDA_OP(geglu_grad, gated_grad(o, r, gelu_gate()))
CUDA_OP(swiglu_clamped, gated(o, r, clamped_gate{o->at.constants.cap, o->at.constants.scale}))
CUDA_OP(swiglu_clamped_grad, gated_grad(o, r, clamped_gate{o->at.constants.cap, o->at.constants.scale}))

void cuda_accumulate(const op *o, const run_context *r)
{
    const tensor *total = o->out[0];
    launch_matrix to = matrix(total, r), part = matrix(o->in[0], r);
    int64_t rows = total->shape[0], columns = columns_of(total);
    cuda_launched(o, o->at.accumulate ? run_two<float>(r, to, to, part, rows, columns, sum_of_two())
                                      : run_one<float, float>(r, to, part, rows, columns, identity()));
}

void cuda_cast(const op *o, const run_context *r)
{
    const tensor *y = o->out[0], *x = o->in[0];
    cuda_launched(o, with_type(y->type, [&](auto to) {
                      return with_type(x->type, [&](auto from) {
                          return run_one<decltype(to), decltype(from)>(r, matrix(y, r), matrix(x, r), y->shape[0],
                                                                       columns_of(y), identity());
                      });
                  }));
}

template <typename Word>
static int copy_as(const run_context *r, launch_matrix y, launch_matrix x, const float *control, const shape &s)
{
    int64_t words = s.columns / (int64_t)sizeof(Word);
    dim3 grid(blocks_for(words, THREADS), s.grid(1).y, 1);
    return launch(copy_words<Word>, grid, THREADS, 0, r->stream, (Word *)y.at, y.pitch / (int64_t)sizeof(Word),
                  (const Word *)x.at, x.pitch / (int64_t)sizeof(Word), control, s.rows, words);
}

/* y = x by bytes; a step with control[CONTROL_SKIP] set leaves y as it is. */
static int copy_rows(const run_context *r, const tensor *to, const tensor *from, const float *control)
{
    const int64_t bytes = dtype_bytes((dtype)to->type);
    launch_matrix y = {data(to, r), to->pitch * bytes}, x = {data(from, r), from->pitch * bytes};
    shape s = {to->shape[0], columns_of(to) * bytes, false};
    s.flatten(y, x);
    return s.widen(16, y, x) ? copy_as<uint4>(r, y, x, control, s) : copy_as<unsigned char>(r, y, x, control, s);
}

CUDA_OP(copy, cuda_launched(o, copy_rows(r, o->out[0], o->in[0], nullptr)))
CUDA_OP(store_feedback, cuda_launched(o, copy_rows(r, o->out[0], o->in[0], data<float>(o->in[1], r))))

int launch_zero(void *stream, void *y, int64_t bytes)
{
    if (bytes % 16 == 0 && aligned(y, 16))
        return launch(zero_words<uint4>, blocks_for(bytes / 16, THREADS), THREADS, 0, stream, (uint4 *)y, bytes / 16);
    return launch(zero_words<unsigned char>, blocks_for(bytes, THREADS), THREADS, 0, stream, (unsigned char *)y, bytes);
}

int launch_add(void *stream, int type, launch_matrix y, launch_matrix a, launch_matrix b, int64_t rows, int64_t columns)
{
    run_context r = {};
    r.stream = stream;
    return with_type(type, [&](auto t) { return run_two<decltype(t)>(&r, y, a, b, rows, columns, sum_of_two()); });
}

CUDA_OP(zero, cuda_launched(o, launch_zero(r->stream, whole(o, o->out[0], r), tensor_bytes(o->out[0]))))

template <typename W> static int arrange(const op *o, const run_context *r, void *y, const void *x, int64_t words)
{
    const int64_t rows = o->in[0]->shape[0];
    return launch(arrange_rows<W>, dim3(blocks_for(words, THREADS), (unsigned)(rows < MOST_ROWS ? rows : MOST_ROWS), 1),
                  THREADS, 0, r->stream, (W *)y, (const W *)x, data<int32_t>(o->in[1], r), rows, words,
                  o->at.rotation.inverse != 0);
}

void cuda_arrange(const op *o, const run_context *r)
{
    void *y = whole(o, o->out[0], r), *x = whole(o, o->in[0], r);
    const int64_t bytes = columns_of(o->in[0]) * dtype_bytes((dtype)o->in[0]->type);
    cuda_launched(o, bytes % 16 == 0 && aligned_all(y, x) ? arrange<uint4>(o, r, y, x, bytes / 16)
                                                          : arrange<uint16_t>(o, r, y, x, bytes / 2));
}

void cuda_dropout(const op *o, const run_context *r)
{
    const op_dropout &mask = o->at.dropout;
    launch_matrix y = matrix(o->out[0], r), x = matrix(o->in[0], r);
    shape s = {o->out[0]->shape[0], columns_of(o->out[0]), false};
    auto is_wide = [&](int vector) { return s.widen(vector, y, x); };
    cuda_launched(o, with_access(o->out[0]->type, is_wide, [&](auto t, auto v) {
                      using T = decltype(t);
                      return launch(dropout_mask<T, v()>, s.grid(v()), THREADS, 0, r->stream, (T *)y.at, y.pitch,
                                    (const T *)x.at, x.pitch, data<const step_scalars>(o->in[1], r), s.rows, s.columns,
                                    data<const int32_t>(o->in[2], r), mask.sample, mask.sample_tokens, mask.site,
                                    mask.probability);
                  }));
}
