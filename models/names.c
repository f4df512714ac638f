#include "models/names.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

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

const char *names_prefix(shape_architecture architecture)
{
    return architecture == SHAPE_GPT2 ? "transformer." : "model.";
}

/* ---- all parameters of a shape ---- */

typedef enum width {
    NONE,
    HIDDEN,
    VOCABULARY,
    POSITIONS,
    QUERY,
    KEY_VALUE,
    QUERY_KEY_VALUE,
    ONE_HEAD,
    FFN,
    WIDTHS
} width;

/* [out, in] of every slot; a vector has no `in`. */
static const width widths[SLOT_COUNT][2] = {
    [SLOT_EMBEDDING] = {VOCABULARY, HIDDEN},
    [SLOT_POSITIONS] = {POSITIONS, HIDDEN},
    [SLOT_NORM1] = {HIDDEN},
    [SLOT_NORM1_BIAS] = {HIDDEN},
    [SLOT_Q] = {QUERY, HIDDEN},
    [SLOT_K] = {KEY_VALUE, HIDDEN},
    [SLOT_V] = {KEY_VALUE, HIDDEN},
    [SLOT_QKV] = {QUERY_KEY_VALUE, HIDDEN},
    [SLOT_Q_BIAS] = {QUERY},
    [SLOT_K_BIAS] = {KEY_VALUE},
    [SLOT_V_BIAS] = {KEY_VALUE},
    [SLOT_QKV_BIAS] = {QUERY_KEY_VALUE},
    [SLOT_Q_NORM] = {ONE_HEAD},
    [SLOT_K_NORM] = {ONE_HEAD},
    [SLOT_OUT] = {HIDDEN, QUERY},
    [SLOT_OUT_BIAS] = {HIDDEN},
    [SLOT_NORM2] = {HIDDEN},
    [SLOT_NORM2_BIAS] = {HIDDEN},
    [SLOT_GATE] = {FFN, HIDDEN},
    [SLOT_UP] = {FFN, HIDDEN},
    [SLOT_UP_BIAS] = {FFN},
    [SLOT_DOWN] = {HIDDEN, FFN},
    [SLOT_DOWN_BIAS] = {HIDDEN},
    [SLOT_FINAL_NORM] = {HIDDEN},
    [SLOT_FINAL_NORM_BIAS] = {HIDDEN},
    [SLOT_HEAD] = {VOCABULARY, HIDDEN},
};

static bool in_layer(names_slot slot)
{
    return slot >= SLOT_NORM1 && slot <= SLOT_DOWN_BIAS;
}

static void describe(names_tensor *t, const model_shape *s, names_slot slot, int layer)
{
    int64_t heads = (int64_t)s->heads * s->head_size, kv = (int64_t)s->kv_heads * s->head_size;
    const int64_t size[WIDTHS] = {
        [HIDDEN] = s->hidden_size,
        [VOCABULARY] = s->vocab_size,
        [POSITIONS] = s->max_sequence,
        [QUERY] = heads,
        [KEY_VALUE] = kv,
        [QUERY_KEY_VALUE] = heads + 2 * kv,
        [ONE_HEAD] = s->head_size,
        [FFN] = s->ffn_size,
    };
    const char *format = names_format(s->architecture, slot), *percent = strchr(format, '%');
    *t = (names_tensor){.slot = slot, .layer = layer, .dims = widths[slot][1] == NONE ? 1 : 2};
    t->name =
        percent ? must_format("%.*s%d%s", (int)(percent - format), format, layer, percent + 2) : must_strdup(format);
    bool swap = t->dims == 2 && in_layer(slot) && names_transposed(s->architecture);
    for (int i = 0; i < t->dims; i++)
        t->shape[i] = size[widths[slot][swap ? 1 - i : i]];
}

names_tensor *names_list(int *count, const model_shape *shape)
{
    names_tensor *list = must_calloc((unsigned long)SLOT_COUNT * ((unsigned long)shape->layers + 1), sizeof *list);
    int n = 0;
    for (int slot = 0; slot < SLOT_COUNT; slot++) {
        if (slot == SLOT_NORM1) /* the layers come one after the other, between the two ends */
            for (int layer = 0; layer < shape->layers; layer++)
                for (int inner = slot; in_layer((names_slot)inner); inner++)
                    if (names_format(shape->architecture, (names_slot)inner))
                        describe(&list[n++], shape, (names_slot)inner, layer);
        bool wanted = !in_layer((names_slot)slot) && !(slot == SLOT_HEAD && shape->tied_embeddings);
        if (wanted && names_format(shape->architecture, (names_slot)slot))
            describe(&list[n++], shape, (names_slot)slot, -1);
    }
    *count = n;
    return list;
}

void names_free(names_tensor *list, int count)
{
    for (int i = 0; list && i < count; i++)
        free(list[i].name);
    free(list);
}
