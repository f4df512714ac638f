/* The backend `cpu`: the table of its kernels, built from the op table, and their preparation. */
#include <stdio.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/table/elsewhere.h"

#define OP(name, ...) [OP_##name] = cpu_##name,
static const op_kernel kernels[OP_COUNT] = {
#include "kernels/table/ops.def"
};

/* Ops that want working memory or preparation; all others neither. */
static const struct {
    int64_t (*scratch_bytes)(const op *o, int threads);
    status (*prepare)(op *o, int threads);
} wants[OP_COUNT] = {
    [OP_linear] = {gemm_scratch_bytes, gemm_prepare},
    [OP_linear_wide] = {gemm_scratch_bytes, gemm_prepare},
    [OP_linear_grad_input] = {gemm_scratch_bytes, gemm_prepare},
    [OP_linear_grad_weight] = {gemm_scratch_bytes, gemm_prepare},
    [OP_linear_gelu] = {gemm_scratch_bytes, gemm_prepare},
    [OP_linear_grad_gelu] = {gemm_scratch_bytes, gemm_prepare},
    [OP_grouped_linear] = {grouped_scratch_bytes, NULL},
    [OP_grouped_linear_grad_input] = {grouped_scratch_bytes, NULL},
    [OP_grouped_linear_grad_weight] = {grouped_scratch_bytes, NULL},
    [OP_balance] = {balance_scratch_bytes, NULL},
    [OP_balance_grad] = {balance_grad_scratch_bytes, NULL},
    [OP_rmsnorm_grad] = {norm_scratch_bytes, NULL},
    [OP_layernorm_grad] = {norm_scratch_bytes, NULL},
    [OP_head_norm_grad] = {norm_scratch_bytes, NULL},
    [OP_width_dots] = {norm_scratch_bytes, NULL},
    [OP_assign] = {assign_scratch_bytes, NULL},
    [OP_slots] = {assign_scratch_bytes, NULL},
    [OP_attention] = {attention_scratch_bytes, NULL},
    [OP_attention_grad] = {attention_grad_scratch_bytes, NULL},
    [OP_attention_decode] = {attention_decode_scratch_bytes, NULL},
    [OP_latent_decode] = {latent_decode_scratch_bytes, NULL},
};

static int64_t scratch_bytes(const op *o, int threads)
{
    return wants[o->kind].scratch_bytes ? wants[o->kind].scratch_bytes(o, threads) : 0;
}

static status prepare(op *o, int threads)
{
    return wants[o->kind].prepare ? wants[o->kind].prepare(o, threads) : STATUS_OK;
}

static void words(char *out, int bytes)
{
    char library[64];
    gemm_words(library, sizeof library);
    snprintf(out, (size_t)bytes, "our loops for %s; oneDNN, %s", isa_detect()->name, library);
}

const op_backend cpu_backend = {.name = "cpu",
                                .kernels = kernels,
                                .scratch_bytes = scratch_bytes,
                                .prepare = prepare,
                                .words = words,
                                .device = "cpu",
                                .same_bits = true};

#define OP(name, class, ...) ELSEWHERE_##class(cpu_##name)
#include "kernels/table/ops.def"
