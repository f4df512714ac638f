#include "layers/layer.h"

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
