/* The optimizer's ops: the norm of all gradients as an exact sum, clipping, and the rules of the update,
 * each in one pass over memory. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/exact_sum.h"
#include "kernels/host_device.h"
#include "kernels/table/precision.h"

/* Elements at a time; UPDATE_NARROW for updates that widen and round, so that their copies stay in the first cache. */
enum { UPDATE_PIECE = 8192, UPDATE_NARROW = 2048, UPDATE_OPERANDS = 5 };

void cpu_sum_squares(const op *o, const run_context *r)
{
    const tensor *gradient = o->in[0];
    int64_t *bins = tensor_at(o->out[0], r->arena), columns = row_length(gradient);
    const isa *set = isa_of(r);
    if (!o->at.accumulate)
        memset(bins, 0, SUM_BINS * sizeof *bins);
#pragma omp parallel num_threads(parallel_threads(r, tensor_elements(gradient)))
    {
        int64_t own[SUM_BINS] = {0};
#pragma omp for schedule(static)
        for (int64_t row = 0; row < gradient->shape[0]; row++)
            exact_sum_add(own, set->sum_squares((const float *)(const void *)row_at(gradient, r, row), columns));
#pragma omp critical(phalanx_sum_squares) /* exact: the order does not matter */
        exact_sum_merge(bins, own);
    }
}

void cpu_clip(const op *o, const run_context *r)
{
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    float *control = tensor_at(o->out[0], r->arena);
    double scale = (double)s->loss_scale, norm = sqrt(exact_sum_value(tensor_at(o->in[0], r->arena))) / scale;
    bool finite = isfinite((float)norm);
    bool clips = finite && s->clip > 0 && norm > (double)s->clip;
    control[CONTROL_NORM] = (float)norm;
    control[CONTROL_FACTOR] = finite ? (float)((clips ? (double)s->clip / norm : 1) / scale) : 0;
    control[CONTROL_SKIP] = finite ? 0 : 1;
}

/* An update's operands in a loop's order: outputs, then the gradient; and the numbers that round narrow ones: master
 * and states; output 0, a copy of the master, is rounded to nearest. */
typedef struct updated {
    const tensor *t[UPDATE_OPERANDS];
    bool narrow[UPDATE_OPERANDS];
    bool rounds;
    rounding how;
} updated;

static updated operands_of(const op *o, const run_context *r)
{
    updated u = {.t = {o->out[0], o->out[1], o->out[2], o->out[3], o->in[0]}};
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    u.how = (rounding){
        .seed = s->seed, .stream = o->at.update.stream, .step = s->step, .site = (uint32_t)o->at.update.rounding_site};
    for (int i = 1; i < UPDATE_OPERANDS - 1; i++) {
        u.narrow[i] = u.t[i] && precision_is_narrow((dtype)u.t[i]->type);
        u.rounds |= u.narrow[i];
    }
    return u;
}

/* Runs the loop in fp32 on widened copies of narrow operands, and rounds them afterwards. */
static void update_narrow(const isa *set, const updated *u, update_loop loop, void *const p[UPDATE_OPERANDS], int64_t n,
                          const update_factors *f, uint64_t first)
{
    float wide[UPDATE_OPERANDS][UPDATE_NARROW];
    void *q[UPDATE_OPERANDS];
    for (int i = 0; i < UPDATE_OPERANDS; i++) {
        q[i] = u->narrow[i] ? wide[i] : p[i];
        if (u->narrow[i])
            set->rows[u->t[i]->type]->to_float(wide[i], p[i], n);
    }
    loop(q, q[UPDATE_OPERANDS - 1], n, f);
    for (int i = 1; i < UPDATE_OPERANDS - 1; i++) {
        rounding how = u->how;
        how.site += (uint32_t)i;
        if (u->narrow[i])
            set->round(p[i], wide[i], n, &how, first);
    }
}

static bool skipped(const op *o, const run_context *r)
{
    return ((const float *)tensor_at(o->in[2], r->arena))[CONTROL_SKIP] != 0;
}

/* The loop of `rule` over all elements, in pieces, unless the step is skipped. */
static void update(const op *o, const run_context *r, int rule, const update_factors *f)
{
    if (skipped(o, r))
        return;
    const tensor *gradient = o->in[0];
    const isa *set = isa_of(r);
    update_loop loop = set->rows[o->out[0] ? o->out[0]->type : DTYPE_FP32]->update[rule];
    const updated u = operands_of(o, r);
    const float *factors = o->in[3] ? tensor_at(o->in[3], r->arena) : NULL;
    bool flat = !factors && (!u.rounds || gradient->dims == 1 || o->at.update.stride == row_length(gradient));
    for (int i = 0; i < UPDATE_OPERANDS; i++)
        flat = flat && (!u.t[i] || tensor_contiguous(u.t[i]));
    int64_t elements = tensor_elements(gradient), length = flat ? elements : row_length(gradient);
    int64_t most = u.rounds ? UPDATE_NARROW : UPDATE_PIECE;
    int64_t rows = flat ? 1 : gradient->shape[0], pieces = (length + most - 1) / most;
#pragma omp parallel for num_threads(parallel_threads(r, elements)) schedule(static)
    for (int64_t i = 0; i < rows * pieces; i++) {
        int64_t row = i / pieces, first = i % pieces * most, n = length - first < most ? length - first : most;
        update_factors own = *f;
        if (factors) { /* the new weight is a multiple of its row's */
            own.rate *= factors[row];
            own.keep *= factors[row];
        }
        void *p[UPDATE_OPERANDS] = {0};
        for (int j = 0; j < UPDATE_OPERANDS; j++)
            if (u.t[j])
                p[j] = row_at(u.t[j], r, row) + first * dtype_bytes((dtype)u.t[j]->type);
        if (u.rounds)
            update_narrow(set, &u, loop, p, n, &own,
                          (uint64_t)(o->at.update.first_element + row * o->at.update.stride + first));
        else
            loop(p, p[UPDATE_OPERANDS - 1], n, &own);
    }
}

static float factor(const op *o, const run_context *r)
{
    return ((const float *)tensor_at(o->in[2], r->arena))[CONTROL_FACTOR];
}

/* Factor of a weight under decoupled weight decay. */
static float kept(const op *o, const step_scalars *s, float lr)
{
    return (float)(1 - (o->at.update.decay ? (double)lr * (double)s->weight_decay : 0));
}

void cpu_adamw(const op *o, const run_context *r)
{
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    const update_factors f = {
        .gradient = factor(o, r),
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .rate = s->lr / s->momentum_correction,
        .root = 1 / s->variance_correction,
        .epsilon = s->epsilon,
        .keep = kept(o, s, s->lr),
    };
    update(o, r, UPDATE_adamw, &f);
}

void cpu_lion(const op *o, const run_context *r)
{
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    const update_factors f = {
        .gradient = factor(o, r), .beta1 = s->beta1, .beta2 = s->beta2, .rate = s->lr, .keep = kept(o, s, s->lr)};
    update(o, r, UPDATE_lion, &f);
}

void cpu_sgd(const op *o, const run_context *r)
{
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    const update_factors f = {.gradient = factor(o, r),
                              .beta1 = s->momentum,
                              .rate = s->lr,
                              .own = o->at.update.nesterov ? 1 : 0,
                              .mean = o->at.update.nesterov ? s->momentum : 1};
    update(o, r, UPDATE_sgd, &f);
}

/* ---- Muon ------------------------------------------------------------------------------------------------------ */

void cpu_muon_momentum(const op *o, const run_context *r)
{
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    const update_factors f = {.gradient = factor(o, r),
                              .beta1 = s->momentum,
                              .own = o->at.update.nesterov ? 1 - s->momentum : 0,
                              .mean = o->at.update.nesterov ? s->momentum : 1};
    const tensor *x = o->out[0];
    update(o, r, UPDATE_muon_momentum, &f);
    for (int64_t i = 0; skipped(o, r) && i < x->shape[0]; i++)
        memset(row_at(x, r, i), 0, (size_t)row_length(x) * sizeof(float));
}

void cpu_muon_scale(const op *o, const run_context *r)
{
    int64_t n = o->in[0]->shape[0];
    double trace = 0;
    for (int64_t i = 0; i < n; i++)
        trace += (double)((const float *)(const void *)row_at(o->in[0], r, i))[i];
    double norm = sqrt(trace > 0 ? trace : 0), smallest = (double)o->at.update.epsilon;
    double scale = 1 / (norm > smallest ? norm : smallest);
    *(float *)tensor_at(o->out[1], r->arena) = (float)scale;
    float square = (float)(scale * scale);
#pragma omp parallel for num_threads(parallel_threads(r, n *n)) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float *from = (const float *)(const void *)row_at(o->in[0], r, i);
        float *to = (float *)(void *)row_at(o->out[0], r, i);
        for (int64_t j = 0; j < n; j++)
            to[j] = from[j] * square;
    }
}

void cpu_muon_polynomial(const op *o, const run_context *r)
{
    int64_t n = o->in[0]->shape[0];
    const float *given = tensor_at(o->in[2], r->arena);
    float scale = given ? *given : 1;
    float a = (float)MUON_A * scale, b = (float)MUON_B * scale, c = (float)MUON_C * scale;
#pragma omp parallel for num_threads(parallel_threads(r, n *n)) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float *gram = (const float *)(const void *)row_at(o->in[0], r, i);
        const float *square = (const float *)(const void *)row_at(o->in[1], r, i);
        float *p = (float *)(void *)row_at(o->out[0], r, i);
        for (int64_t j = 0; j < n; j++)
            p[j] = b * gram[j] + c * square[j] + (i == j ? a : 0);
    }
}

void cpu_muon(const op *o, const run_context *r)
{
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    const update_factors f = {.rate = s->muon_lr * o->at.update.scale, .keep = kept(o, s, s->muon_lr)};
    update(o, r, UPDATE_muon, &f);
}
