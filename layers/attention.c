#include "layers/layer.h"

#include <math.h>

tensor *layer_attention(recorder *r, const attention_layer *a, const layer_inputs *in, tensor *x)
{
    op_attributes at = {.heads = a->heads,
                        .kv_heads = a->kv_heads,
                        .head_size = a->head_size,
                        .sequence = in->sequence,
                        .window = a->window,
                        .scale = 1.0f / sqrtf((float)a->head_size),
                        .epsilon = in->epsilon};
    tensor *bias = a->qkv_bias ? recorder_weight(r, a->qkv_bias) : NULL;
    tensor *full = layer_enter(r, x);                                                        /* [tokens, hidden] */
    tensor *qkv = record_linear(r, "attention/qkv", full, recorder_weight(r, a->qkv), bias); /* heads over the ranks */
    record_qkv heads = record_split_heads(r, qkv, &at);
    if (a->q_norm)
        record_head_norm(r, "attention/head_norm", &heads, recorder_weight(r, a->q_norm), recorder_weight(r, a->k_norm),
                         &at);
    if (a->rotary)
        record_rope(r, "attention/rope", &heads, in->positions, in->rope_table, &at);
    tensor *y; /* [tokens, heads head_size] */
    if (in->caches) {
        tensor *const *caches = in->caches + 2 * a->index;
        op decode = {.kind = OP_attention_decode,
                     .in = {heads.q, heads.k, heads.v, in->positions, caches[0], caches[1]},
                     .at = at};
        y = recorder_record(r, "attention/decode", &decode, 1, NULL)->out[0];
    } else {
        y = record_attention(r, "attention/attention", &heads, in->document_start, &at);
    }
    tensor *out_bias = a->out_bias ? recorder_weight(r, a->out_bias) : NULL; /* on the group's first rank only */
    return layer_leave(r, record_linear(r, "attention/out", y, recorder_weight(r, a->out), out_bias));
}
