#include "models/names.h"

#include <stddef.h>

enum { GPT2, LLAMA, FAMILIES };

#define H "transformer.h.%d."
#define L "model.layers.%d."

static const char *const formats[SLOT_COUNT][FAMILIES] = {
    [SLOT_EMBEDDING] = {"transformer.wte.weight", "model.embed_tokens.weight"},
    [SLOT_POSITIONS] = {"transformer.wpe.weight", NULL},
    [SLOT_NORM1] = {H "ln_1.weight", L "input_layernorm.weight"},
    [SLOT_NORM1_BIAS] = {H "ln_1.bias", NULL},
    [SLOT_Q] = {NULL, L "self_attn.q_proj.weight"},
    [SLOT_K] = {NULL, L "self_attn.k_proj.weight"},
    [SLOT_V] = {NULL, L "self_attn.v_proj.weight"},
    [SLOT_QKV] = {H "attn.c_attn.weight", NULL},
    [SLOT_Q_BIAS] = {NULL, L "self_attn.q_proj.bias"},
    [SLOT_K_BIAS] = {NULL, L "self_attn.k_proj.bias"},
    [SLOT_V_BIAS] = {NULL, L "self_attn.v_proj.bias"},
    [SLOT_QKV_BIAS] = {H "attn.c_attn.bias", NULL},
    [SLOT_Q_NORM] = {NULL, L "self_attn.q_norm.weight"},
    [SLOT_K_NORM] = {NULL, L "self_attn.k_norm.weight"},
    [SLOT_OUT] = {H "attn.c_proj.weight", L "self_attn.o_proj.weight"},
    [SLOT_OUT_BIAS] = {H "attn.c_proj.bias", NULL},
    [SLOT_NORM2] = {H "ln_2.weight", L "post_attention_layernorm.weight"},
    [SLOT_NORM2_BIAS] = {H "ln_2.bias", NULL},
    [SLOT_GATE] = {NULL, L "mlp.gate_proj.weight"},
    [SLOT_UP] = {H "mlp.c_fc.weight", L "mlp.up_proj.weight"},
    [SLOT_UP_BIAS] = {H "mlp.c_fc.bias", NULL},
    [SLOT_DOWN] = {H "mlp.c_proj.weight", L "mlp.down_proj.weight"},
    [SLOT_DOWN_BIAS] = {H "mlp.c_proj.bias", NULL},
    [SLOT_FINAL_NORM] = {"transformer.ln_f.weight", "model.norm.weight"},
    [SLOT_FINAL_NORM_BIAS] = {"transformer.ln_f.bias", NULL},
    [SLOT_HEAD] = {"lm_head.weight", "lm_head.weight"},
};

const char *names_format(shape_architecture architecture, names_slot slot)
{
    const shape_traits *traits = shape_traits_of(architecture);
    if ((slot == SLOT_Q_NORM || slot == SLOT_K_NORM) && !traits->qk_norm)
        return NULL;
    if (slot >= SLOT_Q_BIAS && slot <= SLOT_QKV_BIAS && !traits->bias_qkv)
        return NULL;
    return formats[slot][architecture == SHAPE_GPT2 ? GPT2 : LLAMA];
}

bool names_transposed(shape_architecture architecture)
{
    return architecture == SHAPE_GPT2;
}
