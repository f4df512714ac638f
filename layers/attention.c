#include "layers/layer.h"

#include <math.h>

/* Of q and k, whose heads `at` describes. */
static void normalise(recorder *r, const attention_layer *a, record_qkv *heads, op_attributes at)
{
    tensor *wq = recorder_weight(r, a->q_norm), *wk = recorder_weight(r, a->k_norm);
    at.offset = a->norm_offset;
    if (!a->width_norm) {
        record_head_norm(r, "attention/head_norm", heads, wq, wk, &at);
        return;
    }
    int64_t ranks = r->grid.group[AXIS_TENSOR].ranks;
    const op_attributes all = {.width[0] = heads->q->shape[1] * ranks,
                               .width[1] = heads->k->shape[1] * ranks,
                               .epsilon = at.epsilon,
                               .offset = at.offset};
    record_width_norm(r, "attention/width_norm", heads, wq, wk, &all);
}

/* What attention makes of its own keys and values, before its last product: [tokens, heads v_head_size]. */
static tensor *attend_heads(recorder *r, const attention_layer *a, const layer_inputs *in, tensor *x, op_attributes at)
{
    tensor *bias = a->qkv_bias ? recorder_weight(r, a->qkv_bias) : NULL;
    tensor *full = layer_enter(r, x);                                                        /* [tokens, hidden] */
    tensor *qkv = record_linear(r, "attention/qkv", full, recorder_weight(r, a->qkv), bias); /* heads over the ranks */
    record_qkv heads = record_split_heads(r, qkv, &at);
    if (a->q_norm)
        normalise(r, a, &heads, at);
    if (a->rotary) {
        op_attributes turn = at;
        turn.interleaved = a->interleaved;
        record_rope(r, "attention/rope", &heads, in->positions, a->local ? in->rope_table_local : in->rope_table,
                    &turn);
    }
    tensor *sinks = a->sinks ? recorder_weight(r, a->sinks) : NULL;
    if (!in->caches) {
        layer_share_keys(r, &heads, in);
        return layer_attend(r, a, in, &heads, sinks, at);
    }
    tensor *const *caches = in->caches + 2 * a->index;
    op decode = {.kind = OP_attention_decode,
                 .in = {heads.q, heads.k, heads.v, in->positions, caches[0], caches[1], sinks},
                 .at = at};
    return recorder_record(r, "attention/decode", &decode, 1, NULL)->out[0];
}

tensor *layer_attention(recorder *r, const attention_layer *a, const layer_inputs *in, tensor *x)
{
    const op_attributes at = {.heads = a->heads,
                              .kv_heads = a->kv_heads,
                              .head_size = a->head_size,
                              .sequence = in->sequence,
                              .window = a->window,
                              .run = in->run,
                              .scale = a->multiplier != 0 ? (float)a->multiplier : 1.0f / sqrtf((float)a->head_size),
                              .cap = (float)a->cap,
                              .epsilon = in->epsilon};
    tensor *y = a->latent.kv_up ? layer_latent(r, a, in, x, at) : attend_heads(r, a, in, x, at);
    tensor *out_bias = a->out_bias ? recorder_weight(r, a->out_bias) : NULL; /* on the group's first rank only */
    return layer_leave(r, record_linear(r, "attention/out", y, recorder_weight(r, a->out), out_bias));
}
