/* The load of experts, their routers' losses and the losses' gradient. Rows of logits are short: a warp reads one two
 * or three times from the cache. To be deterministic, counts are integers, added by atomics, and sums over tokens are
 * fp64: each token's values are stored before one block adds them in order.
 */
#include "kernels/cuda/vector.cuh"

#include "kernels/token.h"

static constexpr int THREADS = 256, WARPS = THREADS / WARP, SUM_THREADS = 512;

struct launch_choices {
    const int32_t *chosen;          /* [tokens, active] */
    const int32_t *token_positions; /* [tokens], or NULL: token t is at t */
    int64_t tokens, active, groups, experts;
    int32_t sequence; /* tokens of a group; 0: there is one */
};

struct launch_router {
    const void *logits;             /* [tokens, experts] T */
    const float *load;              /* [groups, experts] */
    const int32_t *token_positions; /* [tokens], or NULL */
    int64_t tokens, experts;
    int32_t sequence;
    bool sigmoid;
};

struct launch_losses {
    float load, z; /* coefficients */
};

DEVICE int64_t group_of(const int32_t *token_positions, int32_t sequence, int64_t token)
{
    return sequence == 0 ? 0 : token_sample(token_positions ? token_positions[token] : token, sequence);
}

KERNEL(THREADS, 4) count_choices(int32_t *counts, launch_choices of)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < of.tokens * of.active)
        atomic_add(&counts[group_of(of.token_positions, of.sequence, i / of.active) * of.experts + of.chosen[i]], 1);
}

/* Turns counts into floats, in place. */
KERNEL(THREADS, 4) scale_counts(float *load, int64_t count, float scale)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) {
        int32_t number;
        memcpy(&number, load + i, sizeof number);
        load[i] = (float)number * scale;
    }
}

/* Sums the counts; every lane gets the sum, which is exact in any order. */
DEVICE int64_t sum_of_counts(const int32_t *counts, int32_t experts)
{
    int64_t sum = 0;
    for (int32_t e = (int32_t)threadIdx.x; e < experts; e += WARP)
        sum += counts[e];
    return warp_sum(sum);
}

KERNEL(WARP, 1) normalise_counts(float *load, const int32_t *counts, int32_t experts)
{
    int64_t sum = sum_of_counts(counts, experts);
    for (int32_t e = (int32_t)threadIdx.x; e < experts; e += WARP)
        load[e] = (float)((double)((int64_t)experts * counts[e]) / (double)sum);
}

KERNEL(WARP, 1) step_bias(float *bias, const int32_t *counts, const float *control, int32_t experts, float rate)
{
    if (control[CONTROL_SKIP] != 0)
        return;
    int64_t sum = sum_of_counts(counts, experts);
    for (int32_t e = (int32_t)threadIdx.x; e < experts; e += WARP) {
        int64_t deficit = sum - (int64_t)experts * counts[e];
        if (deficit != 0)
            bias[e] += deficit > 0 ? rate : -rate;
    }
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

struct sigmoid {
    float value, slope;
};

DEVICE sigmoid sigmoid_of(float x)
{
    float e = expf(-fabsf(x)), one = 1.0f / (1.0f + e);
    return {x >= 0.0f ? one : e * one, e * one * one};
}

/* A row's statistics for the losses: its maximum logit, 1 / sum exp(logit - max), log sum exp, 1 / the sum that
 * normalises probabilities, and the mean load weighted by probability. */
struct row_statistics {
    float max_logit, inverse_exps, lse, inverse_scores, mean_load;
};

/* Computes a row's statistics; every lane of a warp has all of them. */
template <typename T> DEVICE row_statistics compute_statistics(const T *row, const float *load, const launch_router &of)
{
    int lane = (int)threadIdx.x % WARP;
    float largest = -INFINITY, exps = 0, shares = 0, dot = 0;
    for (int64_t e = lane; e < of.experts; e += WARP)
        largest = fmaxf(largest, to_float(row[e]));
    largest = warp_largest(largest);
    for (int64_t e = lane; e < of.experts; e += WARP) {
        float x = to_float(row[e]), each = expf(x - largest), share = of.sigmoid ? sigmoid_of(x).value : each;
        exps += each;
        shares += share;
        dot += share * load[e];
    }
    exps = warp_sum(exps);
    shares = warp_sum(shares) + (of.sigmoid ? 1e-20f : 0.0f);
    return {largest, 1.0f / exps, largest + logf(exps), 1.0f / shares, warp_sum(dot) / shares};
}

DEVICE const float *load_row(const launch_router &of, int64_t token)
{
    return of.load + group_of(of.token_positions, of.sequence, token) * of.experts;
}

/* losses[tokens, 2] = the mean load, log sum exp squared */
template <typename T> KERNEL(THREADS, 4) balance_rows(double *losses, launch_router of)
{
    int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (token >= of.tokens)
        return;
    row_statistics f = compute_statistics((const T *)of.logits + token * of.experts, load_row(of, token), of);
    if (threadIdx.x % WARP == 0) {
        losses[2 * token] = (double)f.mean_load;
        losses[2 * token + 1] = (double)f.lse * (double)f.lse;
    }
}

/* sums[i] (+)= sum of losses[tokens, i] by block i, always in the same order */
KERNEL(SUM_THREADS, 1) balance_sum(float *sums, const double *losses, int64_t tokens, bool accumulate)
{
    SHARED(double, part, SUM_THREADS / WARP);
    double sum = 0;
    for (int64_t token = threadIdx.x; token < tokens; token += SUM_THREADS)
        sum += losses[2 * token + blockIdx.x];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = sum;
    block_barrier();
    if (threadIdx.x == 0) {
        sum = accumulate ? (double)sums[blockIdx.x] : 0.0;
        for (int k = 0; k < SUM_THREADS / WARP; k++)
            sum += part[k];
        sums[blockIdx.x] = (float)sum;
    }
}

/* dlogits may be in place of `addend`. */
template <typename T>
KERNEL(THREADS, 4)
balance_grad_rows(T *dlogits, const T *addend, const step_scalars *scalars, launch_router of, launch_losses losses)
{
    int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (token >= of.tokens)
        return;
    const T *row = (const T *)of.logits + token * of.experts;
    const float *load = load_row(of, token);
    row_statistics f = compute_statistics(row, load, of);
    float factor = scalars->loss_scale / scalars->batch_tokens;
    float imbalance = factor * losses.load * f.inverse_scores, z = factor * losses.z * 2.0f * f.lse * f.inverse_exps;
    for (int64_t e = (int)threadIdx.x % WARP; e < of.experts; e += WARP) {
        float x = to_float(row[e]), each = expf(x - f.max_logit), slope = of.sigmoid ? sigmoid_of(x).slope : each;
        float d = imbalance * slope * (load[e] - f.mean_load) + z * each;
        from_float(dlogits[token * of.experts + e], addend ? d + to_float(addend[token * of.experts + e]) : d);
    }
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

/* counts[groups, experts] (+)= number of choices of each expert */
static int add_choices(const run_context *r, int32_t *counts, const launch_choices &of, bool accumulate)
{
    const int64_t choices = of.tokens * of.active, count = of.groups * of.experts;
    int failed = accumulate ? 0 : launch_zero(r->stream, counts, count * (int64_t)sizeof *counts);
    if (failed || choices == 0)
        return failed;
    return launch(count_choices, blocks_for(choices, THREADS), THREADS, 0, r->stream, counts, of);
}

void cuda_expert_load(const op *o, const run_context *r)
{
    const tensor *chosen = o->in[0], *out = o->out[0];
    const launch_choices of = {whole<const int32_t>(o, chosen, r),
                               data<const int32_t>(o->in[1], r),
                               chosen->shape[0],
                               chosen->shape[1],
                               out->shape[0],
                               out->shape[1],
                               o->at.balance.sequence};
    float *load = whole<float>(o, out, r);
    const int64_t count = of.groups * of.experts;
    cuda_launched(o, add_choices(r, (int32_t *)(void *)load, of, false));
    cuda_launched(o, launch(scale_counts, blocks_for(count, THREADS), THREADS, 0, r->stream, load, count, o->at.balance.scale));
}

void cuda_expert_count(const op *o, const run_context *r)
{
    const tensor *chosen = o->in[0], *counts = o->out[0];
    const launch_choices of = {
        whole<const int32_t>(o, chosen, r), nullptr, chosen->shape[0], chosen->shape[1], 1, counts->shape[0], 0};
    cuda_launched(o, add_choices(r, data<int32_t>(counts, r), of, o->at.accumulate != OP_WRITES));
}

/* load [experts] = experts counts / the sum of counts */
void cuda_expert_share(const op *o, const run_context *r)
{
    cuda_launched(o, launch(normalise_counts, 1, WARP, 0, r->stream, whole<float>(o, o->out[0], r),
                            data<const int32_t>(o->in[0], r), (int32_t)o->in[0]->shape[0]));
}

/* bias [experts] += rate sign(mean of counts - counts); control[CONTROL_SKIP] leaves it as it is */
void cuda_expert_bias(const op *o, const run_context *r)
{
    cuda_launched(o,
                  launch(step_bias, 1, WARP, 0, r->stream, data<float>(o->out[0], r), data<const int32_t>(o->in[0], r),
                         data<const float>(o->in[1], r), (int32_t)o->in[0]->shape[0], o->at.balance.scale));
}

static launch_router router_of(const op *o, const run_context *r, const tensor *token_positions)
{
    const tensor *logits = o->in[0];
    return {whole(o, logits, r),
            whole<const float>(o, o->in[1], r),
            data<const int32_t>(token_positions, r),
            logits->shape[0],
            logits->shape[1],
            o->at.balance.sequence,
            o->at.balance.sigmoid != 0};
}

CUDA_SCRATCH(cuda_balance_scratch, o->in[0]->shape[0] * 2 * (int64_t)sizeof(double))

void cuda_balance(const op *o, const run_context *r)
{
    const launch_router of = router_of(o, r, o->in[2]);
    double *scratch = data<double>(o->scratch, r);
    cuda_launched(o, of.tokens == 0 ? 0 : with_type(o->in[0]->type, [&](auto t) {
                      return launch(balance_rows<decltype(t)>, blocks_for(of.tokens, WARPS), THREADS, 0, r->stream,
                                    scratch, of);
                  }));
    cuda_launched(o, launch(balance_sum, 2, SUM_THREADS, 0, r->stream, data<float>(o->out[0], r),
                            (const double *)scratch, of.tokens, o->at.accumulate != OP_WRITES));
}

/* The addend may be absent, or be dlogits itself. */
void cuda_balance_grad(const op *o, const run_context *r)
{
    const launch_router of = router_of(o, r, o->in[3]);
    const launch_losses losses = {o->at.balance.load, o->at.balance.z};
    cuda_launched(o, of.tokens == 0 ? 0 : with_type(o->in[0]->type, [&](auto t) {
                      using T = decltype(t);
                      return launch(balance_grad_rows<T>, blocks_for(of.tokens, WARPS), THREADS, 0, r->stream,
                                    whole<T>(o, o->out[0], r), whole<const T>(o, o->in[4], r),
                                    data<const step_scalars>(o->in[2], r), of, losses);
                  }));
}
