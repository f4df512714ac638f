/* Mutants of attention's sinks and largest scores, of QK-clip, of clamped gates and of experts' biases: see
 * op_mutants.h. */
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/op_sweep.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/oracle/op_mutants.h"

static char *row_of(const tensor *t, const run_context *r, int64_t row)
{
    return (char *)tensor_at(t, r->arena) + row * t->pitch * dtype_bytes((dtype)t->type);
}

static void scaled(const op *o, const run_context *r)
{
    cpu_backend.kernels[o->kind](o, r);
    float *to = tensor_at(o->out[0], r->arena);
    for (int64_t i = 0; i < tensor_elements(o->out[0]); i++)
        to[i] *= -7;
}

static void accumulate_flipped(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.accumulate = !o->at.accumulate;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void sinks_ignored(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.in[o->kind == OP_attention ? 5 : 6] = NULL;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* One of both outputs as if there were none. */
static void sinks_ignored_in(const op *o, const run_context *r, int output)
{
    const tensor *out = o->out[output];
    sinks_ignored(o, r);
    AUTO_FREE float *kept = must_alloc((unsigned long)(out->shape[0] * out->shape[1]) * sizeof *kept);
    for (int64_t i = 0; i < out->shape[0]; i++)
        memcpy(kept + i * out->shape[1], row_of(out, r, i), (size_t)out->shape[1] * sizeof *kept);
    cpu_backend.kernels[o->kind](o, r);
    for (int64_t i = 0; i < out->shape[0]; i++)
        memcpy(row_of(out, r, i), kept + i * out->shape[1], (size_t)out->shape[1] * sizeof *kept);
}

/* The other weights sum to 1. */
static void sinks_left_out_of_y(const op *o, const run_context *r)
{
    sinks_ignored_in(o, r, 0);
}

static void sinks_left_out_of_lse(const op *o, const run_context *r)
{
    sinks_ignored_in(o, r, 1);
}

static void sinks_of_the_next_head(const op *o, const run_context *r)
{
    const tensor *sinks = o->in[o->kind == OP_attention ? 5 : o->kind == OP_attention_decode ? 6 : 3];
    float *at = sinks ? tensor_at(sinks, r->arena) : NULL, first = at ? at[0] : 0;
    for (int64_t i = 0; at && i + 1 < sinks->shape[0]; i++)
        at[i] = at[i + 1];
    if (at)
        at[sinks->shape[0] - 1] = first;
    cpu_backend.kernels[o->kind](o, r);
    for (int64_t i = at ? sinks->shape[0] - 1 : 0; i > 0; i--) {
        float last = at[i];
        at[i] = at[i - 1];
        at[i - 1] = last;
    }
}

static void bias_of_experts_forgotten(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.in[3] = NULL;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* What the bias' offsets are to the others': operand 1. */
static void columns_by_one(const op *o, const run_context *r)
{
    int32_t *offsets = tensor_at(o->in[1], r->arena), was = offsets[1];
    offsets[1] += offsets[1] < offsets[2 < o->in[1]->shape[0] ? 2 : 1];
    cpu_backend.kernels[o->kind](o, r);
    offsets[1] = was;
}

static void slope_of_silu(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.constants.scale = 1;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void limits_forgotten(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.constants.cap = 1e30f;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* Sums of exponentials for the largest of their terms. */
static void largest_is_lse(const op *o, const run_context *r)
{
    cpu_backend.kernels[o->kind](o, r);
    for (int64_t i = 0; o->out[2] && i < o->out[1]->shape[0]; i++)
        memcpy(row_of(o->out[2], r, i), row_of(o->out[1], r, i), (size_t)o->out[1]->shape[1] * sizeof(float));
}

static void roots_of_all(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.qk.whole = 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void first_rank_alone(const op *o, const run_context *r)
{
    op wrong = *o;
    tensor max_logits = *o->in[0];
    max_logits.shape[0] = o->at.qk.layers;
    wrong.in[0] = &max_logits;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void factors_forgotten(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.in[3] = NULL;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* As linear's output is. */
static void rounded_as_operands_are(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    const dtype type = (dtype)o->in[0]->type;
    cpu_backend.kernels[o->kind](o, r);
    for (int64_t i = 0; i < y->shape[0]; i++)
        for (int64_t j = 0; j < y->shape[1]; j++) {
            float *element = (float *)tensor_at(y, r->arena) + i * y->pitch + j;
            char narrow[4];
            dtype_convert(narrow, type, element, DTYPE_FP32, 1);
            dtype_convert(element, DTYPE_FP32, narrow, type, 1);
        }
}

const op_mutant OP_MUTANTS[] = {
    {"a sum in fp32 rounded as operands are", OP_linear_wide, rounded_as_operands_are},
    {"the largest score is log sum exp", OP_attention, largest_is_lse},
    {"accumulate flipped", OP_max_logit, accumulate_flipped},
    {"what rotates takes the root of the factor", OP_qk_factors, roots_of_all},
    {"scores of other ranks' tokens ignored", OP_qk_factors, first_rank_alone},
    {"factors of rows forgotten", OP_muon, factors_forgotten},
    {"sinks ignored", OP_attention, sinks_ignored},
    {"sinks ignored, decoding", OP_attention_decode, sinks_ignored},
    {"sinks left out of the weights' sum", OP_attention, sinks_left_out_of_y},
    {"sinks left out of lse", OP_attention, sinks_left_out_of_lse},
    {"the sink of another head", OP_attention, sinks_of_the_next_head},
    {"the sink of another head, decoding", OP_attention_decode, sinks_of_the_next_head},
    {"the sink of another head, backward", OP_attention_sinks_grad, sinks_of_the_next_head},
    {"a sink's gradient scaled by -7", OP_attention_sinks_grad, scaled},
    {"accumulate flipped", OP_attention_sinks_grad, accumulate_flipped},
    {"silu in a clamped gate", OP_swiglu_clamped, slope_of_silu},
    {"silu in a clamped gate, backward", OP_swiglu_clamped_grad, slope_of_silu},
    {"no limits of gate and up", OP_swiglu_clamped, limits_forgotten},
    {"no limits of gate and up, backward", OP_swiglu_clamped_grad, limits_forgotten},
    {"the bias of experts forgotten", OP_grouped_linear, bias_of_experts_forgotten},
    {"an expert's first row in another's bias", OP_grouped_bias_grad, columns_by_one},
    {"accumulate flipped", OP_grouped_bias_grad, accumulate_flipped},
    {0},
};
