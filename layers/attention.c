#include "layers/layer.h"

#include <math.h>
#include <stdio.h>

/* ---- ranks that divide a sample ---------------------------------------------------------------------------------- */

/* Gathers the context ranks' rows, each from its own tokens, in the order of the samples. */
static tensor *gather_context(recorder *r, const char *name, tensor *x, const layer_inputs *in)
{
    char label[64];
    snprintf(label, sizeof label, "attention/copy %s", name);
    if (!tensor_contiguous(x))
        x = record_copy(r, label, x);
    snprintf(label, sizeof label, "attention/gather %s", name);
    x = record_all_gather(r, label, AXIS_CONTEXT, x, in->all_token_positions->shape[0]);
    snprintf(label, sizeof label, "attention/arrange %s", name);
    return record_arrange(r, label, x, in->all_token_positions);
}

/* Gathers the keys and values of all context ranks, which each rank's queries read (2407.21783). */
static void share_keys(recorder *r, record_qkv *heads, const layer_inputs *in)
{
    if (r->grid.group[AXIS_CONTEXT].ranks == 1)
        return;
    heads->k = gather_context(r, "k", heads->k, in);
    heads->v = gather_context(r, "v", heads->v, in);
}

/* Attends this rank's queries to the keys and values of all context ranks: [tokens, heads v_head_size]. sinks NULL:
 * there are none. In training, in->peaks notes the max logits where it has rows. */
static tensor *attend(recorder *r, const attention_layer *a, const layer_inputs *in, const record_qkv *heads,
                      tensor *sinks, op_attributes at)
{
    tensor *token_positions = in->run ? in->token_positions : NULL;
    if (in->zigzag)
        at.attention.ranks = r->grid.group[AXIS_CONTEXT].ranks, at.attention.rank = r->grid.group[AXIS_CONTEXT].rank;
    if (!r->training || !in->max_logits || tensor_elements(in->max_logits) == 0)
        return record_attention(r, "attention/attention", heads, in->document_start, token_positions, sinks, &at);
    tensor *max_logits = recorder_row(r, in->max_logits, a->index);
    return record_attention_noted(r, "attention/attention", heads, in->document_start, token_positions, max_logits,
                                  &at);
}

/* ---- a layer's attention ----------------------------------------------------------------------------------------- */

static op_attributes attributes_of(const attention_layer *a, const layer_inputs *in)
{
    return (op_attributes){
        .heads = {a->heads, a->kv_heads, a->head_size},
        .attention = {.sequence = in->sequence,
                      .window = a->window,
                      .run = in->run,
                      .scale = a->multiplier != 0 ? (float)a->multiplier : 1.0f / sqrtf((float)a->head_size),
                      .cap = (float)a->cap}};
}

/* Normalises q and k. */
static void normalise(recorder *r, const attention_layer *a, record_qkv *heads, float epsilon)
{
    tensor *wq = recorder_weight(r, a->q_norm), *wk = recorder_weight(r, a->k_norm);
    int64_t ranks = r->grid.group[AXIS_TENSOR].ranks;
    const op_attributes at = {
        .heads = {a->heads, a->kv_heads, a->head_size},
        .norm = {epsilon, a->norm_offset, {heads->q->shape[1] * ranks, heads->k->shape[1] * ranks}}};
    if (a->width_norm)
        record_width_norm(r, "attention/width_norm", heads, wq, wk, &at);
    else
        record_head_norm(r, "attention/head_norm", heads, wq, wk, &at);
}

/* Computes attention from its own keys and values, up to its last product: [tokens, heads v_head_size]. */
static tensor *attend_heads(recorder *r, const attention_layer *a, const layer_inputs *in, const mixer_input *from)
{
    const op_attributes at = attributes_of(a, in);
    tensor *bias = recorder_weight(r, a->qkv_bias);
    tensor *full = layer_enter(r, from->x);                                                  /* [tokens, hidden] */
    tensor *qkv = record_linear(r, "attention/qkv", full, recorder_weight(r, a->qkv), bias); /* heads over the ranks */
    record_qkv heads = record_split_heads(r, qkv, &at);
    if (a->q_norm)
        normalise(r, a, &heads, in->epsilon);
    if (a->rotary) {
        const op_attributes rope = {.heads = at.heads, .rotation.interleaved = a->interleaved};
        record_rope(r, "attention/rope", &heads, in->positions, a->local ? in->rope_table_local : in->rope_table,
                    &rope);
    }
    tensor *sinks = recorder_weight(r, a->sinks);
    if (!from->states) {
        share_keys(r, &heads, in);
        return attend(r, a, in, &heads, sinks, at);
    }
    op decode = {.kind = OP_attention_decode,
                 .in = {heads.q, heads.k, heads.v, in->positions, from->states[0], from->states[1], sinks},
                 .at = at};
    return recorder_record(r, "attention/decode", &decode, 1, NULL)->out[0];
}

/* ---- of latents -------------------------------------------------------------------------------------------------- */

/* Latent attention (2405.04434): keys and values of all heads are products of one short row a token, the latent, and
 * those elements of keys that rotate are one head, which all heads share. Queries may be products of a latent, too.
 *
 * Each tensor rank makes the latents of its own tokens; they are gathered in place of the residual stream, which is
 * several times as wide. Context ranks gather latents, and each makes the keys and values of all tokens, or make keys
 * and values of their own tokens and gather those. Decoding keeps latents and keys that rotated, and never makes the
 * keys and values of earlier tokens. */
/* Epsilon of the norms of latents, whatever epsilon the model's other norms have. */
#define LATENT_EPSILON 1e-6f

/* Makes columns of x a matrix of their own. */
static tensor *take_columns(recorder *r, const char *name, tensor *x, int64_t first, int64_t count)
{
    return record_copy(r, name, recorder_columns(r, x, first, count));
}

static tensor *normalise_latent(recorder *r, const char *name, tensor *x, const parameter *weight)
{
    const record_norm_of n = {.w = recorder_weight(r, weight), .epsilon = LATENT_EPSILON};
    return record_norm(r, name, NULL, x, NULL, n);
}

static tensor *multiply_down(recorder *r, const char *name, tensor *x, const parameter *w, const parameter *bias)
{
    return record_linear(r, name, x, recorder_weight(r, w), recorder_weight(r, bias));
}

/* Makes the queries of all tokens, [tokens, heads head_size]. */
static tensor *make_queries(recorder *r, const attention_layer *a, tensor *x)
{
    const latent_layer *l = &a->latent;
    if (!l->q_down)
        return record_linear(r, "attention/q", layer_enter(r, x), recorder_weight(r, a->qkv), NULL);
    tensor *down = multiply_down(r, "attention/q down", x, l->q_down, l->q_down_bias);
    tensor *latent = layer_enter(r, normalise_latent(r, "attention/q latent norm", down, l->q_norm));
    return record_linear(r, "attention/q up", latent, recorder_weight(r, l->q_up), NULL);
}

/* Expands latents [tokens, rank] and rotated keys [tokens, rotated] to the tokens' keys and values. */
static void expand(recorder *r, const attention_layer *a, record_qkv *heads, tensor *latent, tensor *rotated)
{
    const int64_t unrotated = (int64_t)a->heads * (a->head_size - a->latent.rotated);
    tensor *up = record_linear(r, "attention/kv up", latent, recorder_weight(r, a->latent.kv_up), NULL);
    heads->k = record_join_keys(r, "attention/join", recorder_columns(r, up, 0, unrotated), rotated, a->heads);
    heads->v = recorder_columns(r, up, unrotated, (int64_t)a->heads * a->v_head_size);
}

/* Computes the same from latents. */
static tensor *attend_latents(recorder *r, const attention_layer *a, const layer_inputs *in, const mixer_input *from)
{
    const latent_layer *l = &a->latent;
    const op_attributes at = attributes_of(a, in);
    tensor *down = multiply_down(r, "attention/kv down", from->x, l->kv_down, l->kv_down_bias);
    tensor *own = take_columns(r, "attention/copy latent", down, 0, l->rank);
    tensor *latent = layer_enter(r, normalise_latent(r, "attention/kv latent norm", own, l->kv_norm));
    /* k: one head for all, [tokens, rotated] */
    record_qkv heads = {.q = make_queries(r, a, from->x),
                        .k = layer_enter(r, take_columns(r, "attention/copy key", down, l->rank, l->rotated))};
    const op_attributes rope = {.heads = {.q = a->heads, .size = a->head_size}, .rotation.interleaved = a->interleaved};
    record_rope(r, "attention/rope", &heads, in->positions, in->rope_table, &rope);
    if (from->states) {
        const record_latent new = {heads.q, latent, heads.k, recorder_weight(r, l->kv_up)};
        return record_latent_decode(r, "attention/decode", &new, in->positions, from->states[0], &at);
    }
    if (!in->transfers.latents || r->grid.group[AXIS_CONTEXT].ranks == 1) {
        expand(r, a, &heads, latent, heads.k);
        share_keys(r, &heads, in);
    } else {
        latent = gather_context(r, "latent", latent, in);
        expand(r, a, &heads, latent, gather_context(r, "k", heads.k, in));
    }
    return attend(r, a, in, &heads, NULL, at);
}

/* ---- rows of layers/mixers.def ---------------------------------------------------------------------------------- */

static tensor *project(recorder *r, const attention_layer *a, tensor *y)
{
    tensor *out_bias = recorder_weight(r, a->out_bias); /* exists on the group's first rank only */
    return layer_leave(r, record_linear(r, "attention/out", y, recorder_weight(r, a->out), out_bias));
}

tensor *mix_attention(recorder *r, const block_layer *b, const layer_inputs *in, const mixer_input *from)
{
    return project(r, &b->attention, attend_heads(r, &b->attention, in, from));
}

tensor *mix_latent(recorder *r, const block_layer *b, const layer_inputs *in, const mixer_input *from)
{
    return project(r, &b->attention, attend_latents(r, &b->attention, in, from));
}

int states_attention(layer_state out[LAYER_STATES], const block_layer *b)
{
    const attention_layer *a = &b->attention;
    out[0] = (layer_state){"k", true, {(int64_t)a->kv_heads * a->head_size}, .divided = true};
    out[1] = (layer_state){"v", true, {(int64_t)a->kv_heads * a->v_head_size}, .divided = true};
    return 2;
}

/* Decoding keeps latents and the rotated part of keys: all tensor ranks have them. */
int states_latent(layer_state out[LAYER_STATES], const block_layer *b)
{
    out[0] = (layer_state){"latent", true, {b->attention.latent.rank + b->attention.latent.rotated}, .divided = false};
    return 1;
}

op_qk_clip clip_attention(const block_layer *b, const parameter *p)
{
    const attention_layer *a = &b->attention;
    return (op_qk_clip){.heads = a->heads,
                        .size = a->head_size,
                        .blocks = p != a->qkv ? 0
                                  : a->shared ? a->heads
                                              : 2 * a->heads,
                        .whole = a->shared ? a->head_size : 0};
}

op_qk_clip clip_latent(const block_layer *b, const parameter *p)
{
    const attention_layer *a = &b->attention;
    const latent_layer *l = &a->latent;
    const bool keys = p == l->kv_up;
    return (op_qk_clip){.heads = a->heads,
                        .size = keys ? a->head_size - l->rotated : a->head_size,
                        .blocks = keys || p == a->qkv || p == l->q_up ? a->heads : 0,
                        .whole = keys ? 0 : l->rotated};
}
