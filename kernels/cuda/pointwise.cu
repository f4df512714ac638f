/* Element-wise ops over [rows, columns]: one kernel per number of operands, a function object per formula.
 *
 * Contiguous operands are one long row. Otherwise blockIdx.y strides over the rows. Each thread makes 16-byte accesses.
 */
#include "kernels/cuda/vector.cuh"

#include "kernels/cuda/scalars.h"
#include "kernels/constants.h"
#include "kernels/philox.h"
#include "kernels/token.h"

static constexpr int THREADS = 256, MOST_ROWS = 65535;

/* (1 + tanh(u))/2 = 1/(1 + exp(-2u)), which loses nothing where tanh is nearly -1. */
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

/* V pairs; one begins where single elements may */
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
    if (column >= words || (control && control[SCALARS_SKIP] != 0))
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
dropout_mask(T *y, int64_t y_pitch, const T *x, int64_t x_pitch, const scalars_device *scalars, int64_t rows,
             int64_t columns, const int32_t *places, int32_t sample, int32_t sequence, int32_t site, float probability)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (column >= columns)
        return;
    float keep = 1.0f / (1.0f - probability);
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        int64_t token = places[row];
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
arrange_rows(W *y, const W *x, const int32_t *places, int64_t rows, int64_t words, bool inverse)
{
    int64_t word = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (word >= words)
        return;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        int64_t place = places[row], to = inverse ? row : place, from = inverse ? place : row;
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
    template <typename... M> void widen(int vector, const M &...m)
    {
        wide = columns % vector == 0;
        ((wide = wide && aligned(m.at, 16) && (rows == 1 || m.pitch % vector == 0)), ...);
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
static int run_one(void *stream, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns, F f)
{
    constexpr int V = VECTOR < To >> VECTOR<From> ? VECTOR<To> : VECTOR<From>;
    shape s = {rows, columns, false};
    s.flatten(y, x);
    s.widen(V, y, x);
    auto kernel = s.wide ? map_one<To, From, V, F> : map_one<To, From, 1, F>;
    LAUNCH(kernel, s.grid(V), THREADS, 0, (cudaStream_t)stream, (To *)y.at, y.pitch, (const From *)x.at, x.pitch,
           s.rows, s.columns, f);
    return launch_result();
}

template <typename T, typename F>
static int run_two(void *stream, launch_matrix y, launch_matrix a, launch_matrix b, int64_t rows, int64_t columns, F f)
{
    constexpr int V = VECTOR<T>;
    shape s = {rows, columns, false};
    s.flatten(y, a, b);
    s.widen(V, y, a, b);
    auto kernel = s.wide ? map_two<T, V, F> : map_two<T, 1, F>;
    LAUNCH(kernel, s.grid(V), THREADS, 0, (cudaStream_t)stream, (T *)y.at, y.pitch, (const T *)a.at, a.pitch,
           (const T *)b.at, b.pitch, s.rows, s.columns, f);
    return launch_result();
}

int launch_gelu(void *stream, int type, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns)
{
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        return run_one<T, T>(stream, y, x, rows, columns, gelu_forward());
    });
}

int launch_scale(void *stream, int type, launch_matrix y, launch_matrix x, float factor, int64_t rows, int64_t columns)
{
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        return run_one<T, T>(stream, y, x, rows, columns, multiple{factor});
    });
}

int launch_soft_cap(void *stream, int type, launch_matrix y, launch_matrix x, float cap, int64_t rows, int64_t columns)
{
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        return run_one<T, T>(stream, y, x, rows, columns, soft_cap_forward{cap});
    });
}

int launch_soft_cap_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, float cap,
                         launch_extent of)
{
    return with_type(type, [&](auto t) {
        return run_two<decltype(t)>(stream, dx, dy, x, of.rows, of.columns, soft_cap_backward{cap});
    });
}

int launch_gelu_exact(void *stream, int type, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns)
{
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        return run_one<T, T>(stream, y, x, rows, columns, gelu_exact_forward());
    });
}

int launch_gelu_exact_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, int64_t rows,
                           int64_t columns)
{
    return with_type(
        type, [&](auto t) { return run_two<decltype(t)>(stream, dx, dy, x, rows, columns, gelu_exact_backward()); });
}

int launch_gelu_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, int64_t rows,
                     int64_t columns)
{
    return with_type(type,
                     [&](auto t) { return run_two<decltype(t)>(stream, dx, dy, x, rows, columns, gelu_backward()); });
}

int launch_add(void *stream, int type, launch_matrix y, launch_matrix a, launch_matrix b, int64_t rows, int64_t columns)
{
    return with_type(type, [&](auto t) { return run_two<decltype(t)>(stream, y, a, b, rows, columns, sum_of_two()); });
}

int launch_cast(void *stream, int to_type, int from_type, launch_matrix y, launch_matrix x, int64_t rows,
                int64_t columns)
{
    return with_type(to_type, [&](auto to) {
        using To = decltype(to);
        return with_type(
            from_type, [&](auto from) { return run_one<To, decltype(from)>(stream, y, x, rows, columns, identity()); });
    });
}

template <typename Gate>
static int run_gated(void *stream, int type, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns)
{
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int V = VECTOR<T>;
        shape s = {rows, columns, false};
        s.widen(V, y, x);
        auto kernel = s.wide ? gated_forward<T, V, Gate> : gated_forward<T, 1, Gate>;
        LAUNCH(kernel, s.grid(V), THREADS, 0, (cudaStream_t)stream, (T *)y.at, y.pitch, (const T *)x.at, x.pitch, rows,
               columns, Gate());
        return launch_result();
    });
}

template <typename Gate>
static int run_gated_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, int64_t rows,
                          int64_t columns)
{
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int V = VECTOR<T>;
        shape s = {rows, columns, false};
        s.widen(V, dx, dy, x);
        auto kernel = s.wide ? gated_backward<T, V, Gate> : gated_backward<T, 1, Gate>;
        LAUNCH(kernel, s.grid(V), THREADS, 0, (cudaStream_t)stream, (T *)dx.at, dx.pitch, (const T *)dy.at, dy.pitch,
               (const T *)x.at, x.pitch, rows, columns, Gate());
        return launch_result();
    });
}

int launch_swiglu(void *stream, int type, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns)
{
    return run_gated<silu_gate>(stream, type, y, x, rows, columns);
}

int launch_swiglu_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, int64_t rows,
                       int64_t columns)
{
    return run_gated_grad<silu_gate>(stream, type, dx, dy, x, rows, columns);
}

int launch_geglu(void *stream, int type, launch_matrix y, launch_matrix x, int64_t rows, int64_t columns)
{
    return run_gated<gelu_gate>(stream, type, y, x, rows, columns);
}

int launch_geglu_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x, int64_t rows,
                      int64_t columns)
{
    return run_gated_grad<gelu_gate>(stream, type, dx, dy, x, rows, columns);
}

int launch_swiglu_clamped(void *stream, int type, launch_matrix y, launch_matrix x, launch_extent of, launch_clamp by)
{
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int V = VECTOR<T>;
        shape s = {of.rows, of.columns, false};
        s.widen(V, y, x);
        auto kernel = s.wide ? pairs_forward<T, V> : pairs_forward<T, 1>;
        LAUNCH(kernel, s.grid(V), THREADS, 0, (cudaStream_t)stream, (T *)y.at, y.pitch, (const T *)x.at, x.pitch,
               of.rows, of.columns, clamped_gate{by.limit, by.slope});
        return launch_result();
    });
}

int launch_swiglu_clamped_grad(void *stream, int type, launch_matrix dx, launch_matrix dy, launch_matrix x,
                               launch_extent of, launch_clamp by)
{
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int V = VECTOR<T>;
        shape s = {of.rows, of.columns, false};
        s.widen(V, dx, dy, x);
        auto kernel = s.wide ? pairs_backward<T, V> : pairs_backward<T, 1>;
        LAUNCH(kernel, s.grid(V), THREADS, 0, (cudaStream_t)stream, (T *)dx.at, dx.pitch, (const T *)dy.at, dy.pitch,
               (const T *)x.at, x.pitch, of.rows, of.columns, clamped_gate{by.limit, by.slope});
        return launch_result();
    });
}

template <typename Word>
static int copy_as(void *stream, launch_matrix y, launch_matrix x, const float *control, const shape &s)
{
    int64_t words = s.columns / (int64_t)sizeof(Word);
    dim3 grid(blocks_for(words, THREADS), s.grid(1).y, 1);
    auto kernel = copy_words<Word>;
    LAUNCH(kernel, grid, THREADS, 0, (cudaStream_t)stream, (Word *)y.at, y.pitch / (int64_t)sizeof(Word),
           (const Word *)x.at, x.pitch / (int64_t)sizeof(Word), control, s.rows, words);
    return launch_result();
}

int launch_keep(void *stream, launch_matrix y, launch_matrix x, const float *control, int64_t rows, int64_t row_bytes)
{
    shape s = {rows, row_bytes, false};
    s.flatten(y, x);
    s.widen(16, y, x);
    return s.wide ? copy_as<uint4>(stream, y, x, control, s) : copy_as<unsigned char>(stream, y, x, control, s);
}

int launch_copy(void *stream, launch_matrix y, launch_matrix x, int64_t rows, int64_t row_bytes)
{
    return launch_keep(stream, y, x, nullptr, rows, row_bytes);
}

int launch_zero(void *stream, void *y, int64_t bytes)
{
    if (bytes % 16 == 0 && aligned(y, 16)) {
        auto kernel = zero_words<uint4>;
        LAUNCH(kernel, blocks_for(bytes / 16, THREADS), THREADS, 0, (cudaStream_t)stream, (uint4 *)y, bytes / 16);
    } else {
        auto kernel = zero_words<unsigned char>;
        LAUNCH(kernel, blocks_for(bytes, THREADS), THREADS, 0, (cudaStream_t)stream, (unsigned char *)y, bytes);
    }
    return launch_result();
}

template <typename W>
static void arrange(void *stream, void *y, const void *x, const int32_t *places, int64_t rows, int64_t words,
                    bool inverse)
{
    constexpr int64_t MOST_ROWS = 65535; /* of a grid */
    auto kernel = arrange_rows<W>;
    LAUNCH(kernel, dim3(blocks_for(words, THREADS), (unsigned)(rows < MOST_ROWS ? rows : MOST_ROWS), 1), THREADS, 0,
           (cudaStream_t)stream, (W *)y, (const W *)x, places, rows, words, inverse);
}

int launch_arrange(void *stream, void *y, const void *x, const int32_t *places, int64_t rows, int64_t row_bytes,
                   bool inverse)
{
    if (row_bytes % 16 == 0 && aligned_all(y, x))
        arrange<uint4>(stream, y, x, places, rows, row_bytes / 16, inverse);
    else
        arrange<uint16_t>(stream, y, x, places, rows, row_bytes / 2, inverse);
    return launch_result();
}

int launch_dropout(void *stream, int type, launch_matrix y, launch_matrix x, const void *scalars, launch_extent of,
                   launch_mask mask)
{
    return with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int V = VECTOR<T>;
        shape s = {of.rows, of.columns, false};
        s.widen(V, y, x);
        auto kernel = s.wide ? dropout_mask<T, V> : dropout_mask<T, 1>;
        LAUNCH(kernel, s.grid(V), THREADS, 0, (cudaStream_t)stream, (T *)y.at, y.pitch, (const T *)x.at, x.pitch,
               (const scalars_device *)scalars, of.rows, of.columns, mask.places, mask.sample, mask.sequence, mask.site,
               mask.probability);
        return launch_result();
    });
}
