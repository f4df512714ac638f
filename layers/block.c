#include "layers/layer.h"

static tensor *layer_mlp(recorder *r, const mlp_layer *m, tensor *x)
{
    tensor *bias = m->up_bias ? recorder_weight(r, m->up_bias) : NULL;
    tensor *full = layer_enter(r, x);                                              /* [tokens, hidden] */
    tensor *h = record_linear(r, "mlp/up", full, recorder_weight(r, m->up), bias); /* columns over the ranks */
    tensor *a = m->exact    ? record_gelu_exact(r, "mlp/gelu", h)                  /* [tokens, ffn / tp] */
                : !m->gated ? record_gelu(r, "mlp/gelu", h)
                : m->gelu   ? record_geglu(r, "mlp/geglu", h)
                            : record_swiglu(r, "mlp/swiglu", h);
    tensor *down_bias = m->down_bias ? recorder_weight(r, m->down_bias) : NULL; /* on the group's first rank only */
    return layer_leave(r, record_linear(r, "mlp/down", a, recorder_weight(r, m->down), down_bias));
}

/* What a branch adds to the stream. */
static tensor *leave_branch(recorder *r, const block_layer *b, const layer_inputs *in, const norm_layer *behind,
                            tensor *x)
{
    if (behind->weight)
        x = layer_norm_of(r, "norm behind", x, behind, in);
    return layer_dropout(r, in, layer_multiply(r, x, b->multiplier));
}

/* An mlp, experts, or both: then those that all tokens share are the mlp. */
static tensor *layer_of_tokens(recorder *r, const stream *s, const block_layer *b, const layer_inputs *in, tensor *x)
{
    tensor *shared = b->mlp.up ? layer_mlp(r, &b->mlp, x) : NULL;
    if (!b->experts.router)
        return shared;
    tensor *chosen = layer_experts(r, &b->experts, in, s->routers, x);
    return shared ? record_add(r, "experts/shared", chosen, shared) : chosen;
}

void layer_block(recorder *r, stream *s, const block_layer *b, const layer_inputs *in)
{
    tensor *x = layer_norm(r, s, &b->norm1, in);
    recorder_keep(s->sum); /* all that full recompute keeps of a block */
    s->delta = leave_branch(r, b, in, &b->behind1, layer_attention(r, &b->attention, in, x));
    tensor *attended = s->delta;
    if (b->parallel)
        s->delta = NULL;
    x = layer_norm(r, s, &b->norm2, in);
    s->delta = leave_branch(r, b, in, &b->behind2, layer_of_tokens(r, s, b, in, x));
    if (b->parallel)
        s->delta = record_add(r, "branches", attended, s->delta);
}
