/* Latent attention (2405.04434): keys and values of all heads are products of one short row a token, the latent, and
 * those elements of keys that rotate are one head, which all heads share. Queries may be products of a latent, too.
 *
 * Each tensor rank makes the latents of its own tokens; they are gathered in place of the residual stream, which is
 * several times as wide. Context ranks gather latents, and each makes the keys and values of all tokens, or make keys
 * and values of their own tokens and gather those. Decoding keeps latents and keys that rotated, and never makes the
 * keys and values of earlier tokens. */
#include "layers/layer.h"

/* Of the norms of latents, whatever the model's other norms have. */
#define LATENT_EPSILON 1e-6f

/* Columns of x as rows of their own. */
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
    return record_linear(r, name, x, recorder_weight(r, w), bias ? recorder_weight(r, bias) : NULL);
}

/* Queries of all tokens, [tokens, heads head_size]. */
static tensor *make_queries(recorder *r, const attention_layer *a, tensor *x)
{
    const latent_layer *l = &a->latent;
    if (!l->q_down)
        return record_linear(r, "attention/q", layer_enter(r, x), recorder_weight(r, a->qkv), NULL);
    tensor *down = multiply_down(r, "attention/q down", x, l->q_down, l->q_down_bias);
    tensor *latent = layer_enter(r, normalise_latent(r, "attention/q latent norm", down, l->q_norm));
    return record_linear(r, "attention/q up", latent, recorder_weight(r, l->q_up), NULL);
}

/* Keys and values of the tokens whose latents [tokens, rank] and rotated keys [tokens, rotated] there are. */
static void expand(recorder *r, const attention_layer *a, record_qkv *heads, tensor *latent, tensor *rotated)
{
    const int64_t unrotated = (int64_t)a->heads * (a->head_size - a->latent.rotated);
    tensor *up = record_linear(r, "attention/kv up", latent, recorder_weight(r, a->latent.kv_up), NULL);
    heads->k = record_join_keys(r, "attention/join", recorder_columns(r, up, 0, unrotated), rotated, a->heads);
    heads->v = recorder_columns(r, up, unrotated, (int64_t)a->heads * a->v_head_size);
}

tensor *layer_latent(recorder *r, const attention_layer *a, const layer_inputs *in, tensor *x, op_attributes at)
{
    const latent_layer *l = &a->latent;
    tensor *down = multiply_down(r, "attention/kv down", x, l->kv_down, l->kv_down_bias);
    tensor *own = take_columns(r, "attention/copy latent", down, 0, l->rank);
    tensor *latent = layer_enter(r, normalise_latent(r, "attention/kv latent norm", own, l->kv_norm));
    /* k: one head of all, [tokens, rotated] */
    record_qkv heads = {.q = make_queries(r, a, x),
                        .k = layer_enter(r, take_columns(r, "attention/copy key", down, l->rank, l->rotated))};
    op_attributes turn = at;
    turn.kv_heads = 0;
    turn.interleaved = a->interleaved;
    record_rope(r, "attention/rope", &heads, in->positions, in->rope_table, &turn);
    if (in->caches) {
        const record_latent new = {heads.q, latent, heads.k, recorder_weight(r, l->kv_up)};
        return record_latent_decode(r, "attention/decode", &new, in->positions, in->caches[2 * a->index], &at);
    }
    if (!in->transfers.latents || r->grid.group[AXIS_CONTEXT].ranks == 1) {
        expand(r, a, &heads, latent, heads.k);
        layer_share_keys(r, &heads, in);
    } else {
        latent = layer_gather_context(r, "latent", latent, in);
        expand(r, a, &heads, latent, layer_gather_context(r, "k", heads.k, in));
    }
    return layer_attend(r, a, in, &heads, NULL, at);
}
