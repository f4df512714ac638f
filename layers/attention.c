#include "layers/layer.h"

#include <math.h>
#include <stdio.h>

/* ---- ranks that divide a sample ---------------------------------------------------------------------------------- */

/* Queries of this rank meet the keys and values of all context ranks (2407.21783). */
tensor *layer_gather_context(recorder *r, const char *name, tensor *x, const layer_inputs *in)
{
    char label[64];
    snprintf(label, sizeof label, "attention/copy %s", name);
    if (!tensor_contiguous(x))
        x = record_copy(r, label, x);
    snprintf(label, sizeof label, "attention/gather %s", name);
    x = record_all_gather(r, label, AXIS_CONTEXT, x, in->all_places->shape[0]);
    snprintf(label, sizeof label, "attention/arrange %s", name);
    return record_arrange(r, label, x, in->all_places);
}

void layer_share_keys(recorder *r, record_qkv *heads, const layer_inputs *in)
{
    if (r->grid.group[AXIS_CONTEXT].ranks == 1)
        return;
    heads->k = layer_gather_context(r, "k", heads->k, in);
    heads->v = layer_gather_context(r, "v", heads->v, in);
}

tensor *layer_attend(recorder *r, const attention_layer *a, const layer_inputs *in, const record_qkv *heads,
                     tensor *sinks, op_attributes at)
{
    tensor *places = in->run ? in->places : NULL;
    if (in->halves)
        at.group_size = r->grid.group[AXIS_CONTEXT].ranks, at.group_rank = r->grid.group[AXIS_CONTEXT].rank;
    if (!r->training || !in->peaks || tensor_elements(in->peaks) == 0)
        return record_attention(r, "attention/attention", heads, in->document_start, places, sinks, &at);
    tensor *peaks = recorder_row(r, in->peaks, a->index);
    return record_attention_noted(r, "attention/attention", heads, in->document_start, places, peaks, &at);
}

/* ---- a layer's attention ----------------------------------------------------------------------------------------- */

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
