/* The table, and the ops on matrices, tables and elements. */
#include "tests/oracle/reference.h"

#include <math.h>
#include <string.h>

#include "memory/log.h"

double *reference_row(const tensor *t, const run_context *r, int64_t row)
{
    MUST(t->type == DTYPE_FP64, "%s is %s: the reference takes twins", t->name, dtype_name((dtype)t->type));
    return (double *)tensor_at(t, r->arena) + row * t->pitch;
}

int64_t reference_width(const tensor *t)
{
    return t->shape[0] ? tensor_elements(t) / t->shape[0] : 0;
}

/* Is an accumulated output added to, or written? */
static bool adds(const op *o)
{
    MUST(o->at.accumulate != OP_WRITES_FIRST, "%s: accumulate must be decided before an op is run", o->label);
    return o->at.accumulate == OP_ADDS;
}

static const double SQRT_2_OVER_PI = 0.79788456080286535588, GELU_CUBIC = 0.044715;

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x * x);
}

static double gelu_exact(double x)
{
    return 0.5 * x * erfc(-x * M_SQRT1_2);
}

static double gelu_exact_slope(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
}

/* ---- matrix products ----------------------------------------------------------------------------------------- */

void reference_linear(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *w = o->in[1], *y = o->out[0];
    for (int64_t t = 0; t < y->shape[0]; t++)
        for (int64_t n = 0; n < y->shape[1]; n++) {
            double sum = o->in[2] ? *reference_row(o->in[2], r, n) : 0;
            const double *a = reference_row(x, r, t), *b = reference_row(w, r, n);
            for (int64_t k = 0; k < x->shape[1]; k++)
                sum += a[k] * b[k];
            reference_row(y, r, t)[n] = sum;
        }
}

void reference_linear_wide(const op *o, const run_context *r)
{
    reference_linear(o, r);
}

void reference_linear_grad_input(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *w = o->in[1], *addend = o->in[2], *dx = o->out[0];
    for (int64_t t = 0; t < dx->shape[0]; t++)
        for (int64_t k = 0; k < dx->shape[1]; k++) {
            double sum = addend ? reference_row(addend, r, t)[k] : 0;
            for (int64_t n = 0; n < dy->shape[1]; n++)
                sum += reference_row(dy, r, t)[n] * reference_row(w, r, n)[k];
            reference_row(dx, r, t)[k] = sum;
        }
}

void reference_linear_grad_weight(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *x = o->in[1], *dw = o->out[0];
    for (int64_t n = 0; n < dw->shape[0]; n++)
        for (int64_t k = 0; k < dw->shape[1]; k++) {
            double sum = adds(o) ? reference_row(dw, r, n)[k] : 0;
            for (int64_t t = 0; t < dy->shape[0]; t++)
                sum += reference_row(dy, r, t)[n] * reference_row(x, r, t)[k];
            reference_row(dw, r, n)[k] = sum;
        }
}

void reference_linear_gelu(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *w = o->in[1], *y = o->out[0];
    for (int64_t t = 0; t < y->shape[0]; t++)
        for (int64_t n = 0; n < y->shape[1]; n++) {
            double z = o->in[2] ? *reference_row(o->in[2], r, n) : 0;
            for (int64_t k = 0; k < x->shape[1]; k++)
                z += reference_row(x, r, t)[k] * reference_row(w, r, n)[k];
            if (o->out[1])
                reference_row(o->out[1], r, t)[n] = z;
            reference_row(y, r, t)[n] = gelu(z);
        }
}

void reference_linear_grad_gelu(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *w = o->in[1], *z = o->in[2], *dz = o->out[0];
    for (int64_t t = 0; t < dz->shape[0]; t++)
        for (int64_t k = 0; k < dz->shape[1]; k++) {
            double sum = 0;
            for (int64_t n = 0; n < dy->shape[1]; n++)
                sum += reference_row(dy, r, t)[n] * reference_row(w, r, n)[k];
            reference_row(dz, r, t)[k] = sum * gelu_slope(reference_row(z, r, t)[k]);
        }
}

void reference_bias_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *db = o->out[0];
    for (int64_t n = 0; n < db->shape[0]; n++) {
        double sum = adds(o) ? *reference_row(db, r, n) : 0;
        for (int64_t t = 0; t < dy->shape[0]; t++)
            sum += reference_row(dy, r, t)[n];
        *reference_row(db, r, n) = sum;
    }
}

/* ---- embeddings ---------------------------------------------------------------------------------------------- */

void reference_embed(const op *o, const run_context *r)
{
    const int32_t *tokens = tensor_at(o->in[0], r->arena);
    const tensor *table = o->in[1], *y = o->out[0];
    for (int64_t t = 0; t < y->shape[0]; t++)
        for (int64_t h = 0; h < y->shape[1]; h++) {
            int64_t row = tokens[t] - o->at.vocabulary.first;
            bool own = row >= 0 && row < table->shape[0];
            reference_row(y, r, t)[h] = own ? reference_row(table, r, row)[h] : 0;
        }
}

static void table_gradient(const op *o, const run_context *r, int64_t first_row)
{
    const int32_t *index = tensor_at(o->in[1], r->arena);
    const tensor *dy = o->in[0], *dtable = o->out[0];
    for (int64_t v = 0; v < dtable->shape[0]; v++)
        for (int64_t h = 0; h < dtable->shape[1]; h++) {
            double sum = adds(o) ? reference_row(dtable, r, v)[h] : 0;
            for (int64_t t = 0; t < dy->shape[0]; t++)
                if (index[t] - first_row == v)
                    sum += reference_row(dy, r, t)[h];
            reference_row(dtable, r, v)[h] = sum;
        }
}

void reference_embed_grad(const op *o, const run_context *r)
{
    table_gradient(o, r, o->at.vocabulary.first);
}

void reference_add_positions(const op *o, const run_context *r)
{
    const int32_t *positions = tensor_at(o->in[1], r->arena);
    const tensor *y = o->out[0];
    for (int64_t t = 0; t < y->shape[0]; t++)
        for (int64_t h = 0; h < y->shape[1]; h++)
            reference_row(y, r, t)[h] = reference_row(o->in[0], r, t)[h] + reference_row(o->in[2], r, positions[t])[h];
}

void reference_add_positions_grad(const op *o, const run_context *r)
{
    table_gradient(o, r, 0);
}

/* ---- element-wise -------------------------------------------------------------------------------------------- */

void reference_gelu(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    for (int64_t i = 0; i < y->shape[0]; i++)
        for (int64_t j = 0; j < reference_width(y); j++)
            reference_row(y, r, i)[j] = gelu(reference_row(o->in[0], r, i)[j]);
}

void reference_gelu_exact(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    for (int64_t i = 0; i < y->shape[0]; i++)
        for (int64_t j = 0; j < reference_width(y); j++)
            reference_row(y, r, i)[j] = gelu_exact(reference_row(o->in[0], r, i)[j]);
}

void reference_gelu_exact_grad(const op *o, const run_context *r)
{
    const tensor *dx = o->out[0];
    for (int64_t i = 0; i < dx->shape[0]; i++)
        for (int64_t j = 0; j < reference_width(dx); j++)
            reference_row(dx, r, i)[j] =
                reference_row(o->in[0], r, i)[j] * gelu_exact_slope(reference_row(o->in[1], r, i)[j]);
}

void reference_scale(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    for (int64_t i = 0; i < y->shape[0]; i++)
        for (int64_t j = 0; j < reference_width(y); j++)
            reference_row(y, r, i)[j] = (double)o->at.constants.scale * reference_row(o->in[0], r, i)[j];
}

void reference_soft_cap(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    double cap = o->at.constants.cap;
    for (int64_t i = 0; i < y->shape[0]; i++)
        for (int64_t j = 0; j < reference_width(y); j++)
            reference_row(y, r, i)[j] = cap * tanh(reference_row(o->in[0], r, i)[j] / cap);
}

void reference_soft_cap_grad(const op *o, const run_context *r)
{
    const tensor *dx = o->out[0];
    for (int64_t i = 0; i < dx->shape[0]; i++)
        for (int64_t j = 0; j < reference_width(dx); j++) {
            double c = cosh(reference_row(o->in[1], r, i)[j] / (double)o->at.constants.cap);
            reference_row(dx, r, i)[j] = reference_row(o->in[0], r, i)[j] / (c * c);
        }
}

void reference_gelu_grad(const op *o, const run_context *r)
{
    const tensor *dx = o->out[0];
    for (int64_t i = 0; i < dx->shape[0]; i++)
        for (int64_t j = 0; j < reference_width(dx); j++)
            reference_row(dx, r, i)[j] =
                reference_row(o->in[0], r, i)[j] * gelu_slope(reference_row(o->in[1], r, i)[j]);
}

void reference_swiglu(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    for (int64_t t = 0; t < y->shape[0]; t++)
        for (int64_t f = 0; f < y->shape[1]; f++) {
            double gate = reference_row(o->in[0], r, t)[f], up = reference_row(o->in[0], r, t)[y->shape[1] + f];
            reference_row(y, r, t)[f] = gate / (1 + exp(-gate)) * up;
        }
}

void reference_swiglu_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *dx = o->out[0];
    for (int64_t t = 0; t < dy->shape[0]; t++)
        for (int64_t f = 0; f < dy->shape[1]; f++) {
            double gate = reference_row(o->in[1], r, t)[f], up = reference_row(o->in[1], r, t)[dy->shape[1] + f];
            double d = reference_row(dy, r, t)[f], s = 1 / (1 + exp(-gate));
            reference_row(dx, r, t)[f] = d * up * s * (1 + gate * (1 - s));
            reference_row(dx, r, t)[dy->shape[1] + f] = d * gate * s;
        }
}

void reference_geglu(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    for (int64_t t = 0; t < y->shape[0]; t++)
        for (int64_t f = 0; f < y->shape[1]; f++)
            reference_row(y, r, t)[f] =
                gelu(reference_row(o->in[0], r, t)[f]) * reference_row(o->in[0], r, t)[y->shape[1] + f];
}

void reference_geglu_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *dx = o->out[0];
    for (int64_t t = 0; t < dy->shape[0]; t++)
        for (int64_t f = 0; f < dy->shape[1]; f++) {
            double gate = reference_row(o->in[1], r, t)[f], up = reference_row(o->in[1], r, t)[dy->shape[1] + f];
            reference_row(dx, r, t)[f] = reference_row(dy, r, t)[f] * up * gelu_slope(gate);
            reference_row(dx, r, t)[dy->shape[1] + f] = reference_row(dy, r, t)[f] * gelu(gate);
        }
}

static double clamped(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

void reference_swiglu_clamped(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    double cap = o->at.constants.cap, slope = o->at.constants.scale;
    for (int64_t t = 0; t < y->shape[0]; t++)
        for (int64_t f = 0; f < y->shape[1]; f++) {
            double gate = reference_row(o->in[0], r, t)[2 * f], up = reference_row(o->in[0], r, t)[2 * f + 1];
            double g = clamped(gate, -INFINITY, cap);
            reference_row(y, r, t)[f] = g / (1 + exp(-slope * g)) * (1 + clamped(up, -cap, cap));
        }
}

void reference_swiglu_clamped_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *dx = o->out[0];
    double cap = o->at.constants.cap, slope = o->at.constants.scale;
    for (int64_t t = 0; t < dy->shape[0]; t++)
        for (int64_t f = 0; f < dy->shape[1]; f++) {
            double gate = reference_row(o->in[1], r, t)[2 * f], up = reference_row(o->in[1], r, t)[2 * f + 1];
            double d = reference_row(dy, r, t)[f], g = clamped(gate, -INFINITY, cap), s = 1 / (1 + exp(-slope * g));
            reference_row(dx, r, t)[2 * f] =
                gate > cap ? 0 : d * (1 + clamped(up, -cap, cap)) * (s + slope * g * s * (1 - s));
            reference_row(dx, r, t)[2 * f + 1] = fabs(up) > cap ? 0 : d * g * s;
        }
}

void reference_add(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    for (int64_t i = 0; i < y->shape[0]; i++)
        for (int64_t j = 0; j < reference_width(y); j++)
            reference_row(y, r, i)[j] = reference_row(o->in[0], r, i)[j] + reference_row(o->in[1], r, i)[j];
}

void reference_accumulate(const op *o, const run_context *r)
{
    const tensor *total = o->out[0];
    for (int64_t i = 0; i < total->shape[0]; i++)
        for (int64_t j = 0; j < reference_width(total); j++) {
            double *to = &reference_row(total, r, i)[j];
            *to = (adds(o) ? *to : 0) + reference_row(o->in[0], r, i)[j];
        }
}

void reference_philox(uint32_t *out, const uint32_t *counter, const uint32_t *key)
{
    uint32_t x[4], k[2] = {key[0], key[1]};
    memcpy(x, counter, sizeof x);
    for (int round = 0; round < 10; round++) {
        uint64_t even = (uint64_t)x[0] * 0xD2511F53, odd = (uint64_t)x[2] * 0xCD9E8D57;
        uint32_t next[4] = {(uint32_t)(odd >> 32) ^ x[1] ^ k[0], (uint32_t)odd, (uint32_t)(even >> 32) ^ x[3] ^ k[1],
                            (uint32_t)even};
        memcpy(x, next, sizeof x);
        k[0] += 0x9E3779B9;
        k[1] += 0xBB67AE85;
    }
    memcpy(out, x, sizeof x);
}

/* The draw of element `element` of `sample`: counter (element / 4, sample, step, site | the sample's upper bits). */
static double draw(const step_scalars *s, int32_t site, uint64_t sample, uint64_t element)
{
    uint32_t key[2] = {(uint32_t)s->seed, (uint32_t)(s->seed >> 32)}, out[4];
    uint32_t counter[4] = {(uint32_t)(element / 4), (uint32_t)sample, (uint32_t)s->step,
                           ((uint32_t)site & 0xffff) | (uint32_t)(sample >> 32) << 16};
    reference_philox(out, counter, key);
    return (double)(out[element % 4] >> 8) / 16777216;
}

void reference_dropout(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    const int32_t *token_positions = tensor_at(o->in[2], r->arena);
    double p = o->at.dropout.probability;
    for (int64_t t = 0; t < y->shape[0]; t++)
        for (int64_t h = 0; h < y->shape[1]; h++) {
            int64_t token = token_positions[t];
            uint64_t sample = (uint64_t)(s->first_sample + o->at.dropout.sample + token / o->at.dropout.sample_tokens);
            uint64_t element = (uint64_t)(token % o->at.dropout.sample_tokens * y->shape[1] + h);
            double x = reference_row(o->in[0], r, t)[h];
            reference_row(y, r, t)[h] = draw(s, o->at.dropout.site, sample, element) >= p ? x / (1 - p) : 0;
        }
}

void reference_arrange(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *y = o->out[0];
    const int32_t *token_positions = tensor_at(o->in[1], r->arena);
    for (int64_t t = 0; t < x->shape[0]; t++)
        for (int64_t h = 0; h < x->shape[1]; h++)
            reference_row(y, r, o->at.rotation.inverse ? t : token_positions[t])[h] =
                reference_row(x, r, o->at.rotation.inverse ? token_positions[t] : t)[h];
}

static void copy(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *y = o->out[0];
    if (x->type != DTYPE_FP64) {
        memmove(tensor_at(y, r->arena), tensor_at(x, r->arena), (size_t)tensor_bytes(x));
        return;
    }
    for (int64_t i = 0; i < y->shape[0]; i++)
        memmove(reference_row(y, r, i), reference_row(x, r, i), (size_t)reference_width(y) * sizeof(double));
}

void reference_cast(const op *o, const run_context *r)
{
    copy(o, r);
}

void reference_copy(const op *o, const run_context *r)
{
    copy(o, r);
}

void reference_zero(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    if (y->type != DTYPE_FP64)
        memset(tensor_at(y, r->arena), 0, (size_t)tensor_bytes(y));
    else
        for (int64_t i = 0; i < y->shape[0]; i++)
            for (int64_t j = 0; j < reference_width(y); j++)
                reference_row(y, r, i)[j] = 0;
}

/* ---- communication: within a group of one; reference_program.c plays groups ------------------------------------ */

static void alone(const op *o, const run_context *r)
{
    MUST(o->where.group_size <= 1, "%s: one reference program has no peers", o->label);
    copy(o, r);
}

void reference_all_gather(const op *o, const run_context *r)
{
    alone(o, r);
}

void reference_reduce_scatter(const op *o, const run_context *r)
{
    alone(o, r);
}

void reference_all_reduce(const op *o, const run_context *r)
{
    alone(o, r);
}

void reference_all_to_all(const op *o, const run_context *r)
{
    alone(o, r);
}

void reference_copy_to_shards(const op *o, const run_context *r)
{
    copy(o, r);
}

void reference_regroup(const op *o, const run_context *r)
{
    copy(o, r);
}

void reference_balance_through(const op *o, const run_context *r)
{
    copy(o, r);
}

void reference_send(const op *o, const run_context *r)
{
    (void)r;
    MUST(0, "%s: one reference program has no peers", o->label);
}

void reference_receive(const op *o, const run_context *r)
{
    (void)r;
    MUST(0, "%s: one reference program has no peers", o->label);
}

void reference_load_host(const op *o, const run_context *r)
{
    (void)r;
    MUST(0, "%s: there is no memory apart", o->label);
}

void reference_store_host(const op *o, const run_context *r)
{
    (void)r;
    MUST(0, "%s: there is no memory apart", o->label);
}

/* Communication is complete when its op returns. */
void reference_wait(const op *o, const run_context *r)
{
    (void)o;
    (void)r;
}

#define OP(name, ...) reference_##name,
static const op_kernel kernels[OP_COUNT] = {
#include "kernels/table/ops.def"
};

const op_backend reference_backend = {.name = "reference", .kernels = kernels};
