/* Element-wise ops: pieces of equal position of all operands go to one row loop. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/philox.h"
#include "kernels/token.h"
#include "memory/log.h"

enum { PIECE = 8192 }; /* elements: a few of them fit the first-level caches */

/* One piece of n elements: p[0] the output's, p[1..] the inputs'. */
typedef void piece(const isa *set, void *const *p, int64_t n, const op *o);

/* Operands of one shape, at most an output and two inputs. Where all are contiguous the pieces are cut from the flat
 * arrays, else from rows. */
static void each_piece(const op *o, const run_context *r, piece *f)
{
    const tensor *t[3] = {o->out[0], o->in[0], o->in[1]};
    bool flat = true;
    for (int i = 0; i < 3; i++)
        flat = flat && (!t[i] || tensor_contiguous(t[i]));
    int64_t elements = tensor_elements(t[0]), length = flat ? elements : row_length(t[0]);
    const isa *set = isa_of(r);
    int64_t rows = flat ? 1 : t[0]->shape[0], pieces = (length + PIECE - 1) / PIECE;
#pragma omp parallel for num_threads(parallel_threads(r, elements)) schedule(static)
    for (int64_t i = 0; i < rows * pieces; i++) {
        int64_t first = i % pieces * PIECE, n = length - first < PIECE ? length - first : PIECE;
        void *p[3] = {0};
        for (int j = 0; j < 3; j++)
            if (t[j])
                p[j] = row_at(t[j], r, i / pieces) + first * dtype_bytes((dtype)t[j]->type);
        f(set, p, n, o);
    }
}

static const row_loops *loops_for(const tensor *t, const run_context *r)
{
    return isa_of(r)->rows[t->type];
}

/* Defines cpu_NAME: each piece goes to the row loop of that name for the type of its input, with these arguments. */
#define BY_PIECES(name, ...)                                                                                           \
    static void name##_piece(const isa *set, void *const *p, int64_t n, const op *o)                                   \
    {                                                                                                                  \
        set->rows[o->in[0]->type]->name(__VA_ARGS__);                                                                  \
    }                                                                                                                  \
    CPU_OP(name, each_piece(o, r, name##_piece))
BY_PIECES(gelu, p[0], p[1], n)
BY_PIECES(scale, p[0], p[1], o->at.constants.scale, n)
BY_PIECES(soft_cap, p[0], p[1], o->at.constants.cap, n)
BY_PIECES(soft_cap_grad, p[0], p[1], p[2], o->at.constants.cap, n)
BY_PIECES(gelu_grad, p[0], p[1], p[2], n)
BY_PIECES(gelu_exact, p[0], p[1], n)
BY_PIECES(gelu_exact_grad, p[0], p[1], p[2], n)
BY_PIECES(add, p[0], p[1], p[2], n)

static void accumulate_piece(const isa *set, void *const *p, int64_t n, const op *o)
{
    if (o->at.accumulate)
        set->rows[o->in[0]->type]->accumulate(p[0], p[1], n);
    else
        memcpy(p[0], p[1], (size_t)n * sizeof(float));
}

CPU_OP(accumulate, each_piece(o, r, accumulate_piece))

/* Casts between two types through fp32, in short blocks that stay in the first-level cache. */
static void cast_piece(const isa *set, void *const *p, int64_t n, const op *o)
{
    dtype to = (dtype)o->out[0]->type, from = (dtype)o->in[0]->type;
    if (from == DTYPE_FP32)
        set->rows[to]->from_float(p[0], p[1], n);
    else if (to == DTYPE_FP32)
        set->rows[from]->to_float(p[0], p[1], n);
    else
        for (int64_t k = 0; k < n; k += 256) {
            float part[256];
            int64_t m = n - k < 256 ? n - k : 256;
            set->rows[from]->to_float(part, (char *)p[1] + k * dtype_bytes(from), m);
            set->rows[to]->from_float((char *)p[0] + k * dtype_bytes(to), part, m);
        }
}

CPU_OP(cast, each_piece(o, r, cast_piece))

static void copy_piece(const isa *set, void *const *p, int64_t n, const op *o)
{
    (void)set;
    memcpy(p[0], p[1], (size_t)(n * dtype_bytes((dtype)o->out[0]->type)));
}

CPU_OP(copy, each_piece(o, r, copy_piece))

void cpu_arrange(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *y = o->out[0];
    const int32_t *token_positions = tensor_at(o->in[1], r->arena);
    size_t bytes = (size_t)(x->shape[1] * dtype_bytes((dtype)x->type));
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(x))) schedule(static)
    for (int64_t t = 0; t < x->shape[0]; t++)
        memcpy(row_at(y, r, o->at.rotation.inverse ? t : token_positions[t]),
               row_at(x, r, o->at.rotation.inverse ? token_positions[t] : t), bytes);
}

static void zero_piece(const isa *set, void *const *p, int64_t n, const op *o)
{
    (void)set;
    memset(p[0], 0, (size_t)(n * dtype_bytes((dtype)o->out[0]->type)));
}

CPU_OP(zero, each_piece(o, r, zero_piece))

/* ---- gate and up side by side in a row ------------------------------------------------------------------------- */

typedef void gated(void *y, const void *gate, const void *up, int64_t n);
typedef void gated_grad(void *dgate, void *dup, const void *dy, const void *gate, const void *up, int64_t n);

static void each_gated(const op *o, const run_context *r, gated *f)
{
    const tensor *x = o->in[0], *y = o->out[0];
    int64_t n = y->shape[1], bytes = n * dtype_bytes((dtype)x->type);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(x))) schedule(static)
    for (int64_t t = 0; t < x->shape[0]; t++)
        f(row_at(y, r, t), row_at(x, r, t), row_at(x, r, t) + bytes, n);
}

static void each_gated_grad(const op *o, const run_context *r, gated_grad *f)
{
    const tensor *dy = o->in[0], *x = o->in[1], *dx = o->out[0];
    int64_t n = dy->shape[1], bytes = n * dtype_bytes((dtype)x->type);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(x))) schedule(static)
    for (int64_t t = 0; t < x->shape[0]; t++)
        f(row_at(dx, r, t), row_at(dx, r, t) + bytes, row_at(dy, r, t), row_at(x, r, t), row_at(x, r, t) + bytes, n);
}

CPU_OP(swiglu, each_gated(o, r, loops_for(o->in[0], r)->swiglu))
CPU_OP(swiglu_grad, each_gated_grad(o, r, loops_for(o->in[1], r)->swiglu_grad))
CPU_OP(geglu, each_gated(o, r, loops_for(o->in[0], r)->geglu))
CPU_OP(geglu_grad, each_gated_grad(o, r, loops_for(o->in[1], r)->geglu_grad))

void cpu_swiglu_clamped(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *y = o->out[0];
    const row_loops *loops = loops_for(x, r);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(x))) schedule(static)
    for (int64_t t = 0; t < x->shape[0]; t++)
        loops->swiglu_clamped(row_at(y, r, t), row_at(x, r, t), y->shape[1], o->at.constants.cap,
                              o->at.constants.scale);
}

void cpu_swiglu_clamped_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *x = o->in[1], *dx = o->out[0];
    const row_loops *loops = loops_for(x, r);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(x))) schedule(static)
    for (int64_t t = 0; t < x->shape[0]; t++)
        loops->swiglu_clamped_grad(row_at(dx, r, t), row_at(dy, r, t), row_at(x, r, t), dy->shape[1],
                                   o->at.constants.cap, o->at.constants.scale);
}

/* ---- dropout --------------------------------------------------------------------------------------------------- */

/* factor[i] of elements first .. first + n of a sample: 1/(1 - p), or 0 where the draw is below p. */
static void dropout_factors(float *factor, const op *o, const step_scalars *s, uint64_t sample, uint64_t first,
                            int64_t n)
{
    float p = o->at.dropout.probability, keep = 1 / (1 - p);
    uint32_t draws[4] = {0};
    for (int64_t i = 0; i < n; i++) {
        uint64_t element = first + (uint64_t)i;
        if (i == 0 || element % 4 == 0)
            philox_draws(draws, s->seed, (uint32_t)o->at.dropout.site, (uint64_t)s->step, sample, element / 4);
        factor[i] = philox_uniform(draws[element % 4]) >= p ? keep : 0;
    }
}

void cpu_dropout(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *y = o->out[0];
    const row_loops *loops = loops_for(x, r);
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    const int32_t *token_positions = tensor_at(o->in[2], r->arena);
    int64_t columns = x->shape[1], bytes = dtype_bytes((dtype)x->type);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(x))) schedule(static)
    for (int64_t t = 0; t < x->shape[0]; t++) {
        int64_t within = token_position(token_positions[t], o->at.dropout.sample_tokens);
        int64_t sample =
            s->first_sample + o->at.dropout.sample + token_sample(token_positions[t], o->at.dropout.sample_tokens);
        for (int64_t c = 0; c < columns; c += 256) {
            float factor[256];
            int64_t n = columns - c < 256 ? columns - c : 256;
            dropout_factors(factor, o, s, (uint64_t)sample, (uint64_t)(within * columns + c), n);
            loops->mask(row_at(y, r, t) + c * bytes, row_at(x, r, t) + c * bytes, factor, n);
        }
    }
}
