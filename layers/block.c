#include "layers/layer.h"

static tensor *leave_branch(recorder *r, const block_layer *b, const layer_inputs *in, tensor *x)
{
    return layer_dropout(r, in, layer_multiply(r, x, b->multiplier));
}

void layer_block(recorder *r, stream *s, const block_layer *b, const layer_inputs *in)
{
    tensor *x = layer_norm(r, s, &b->norm1, in);
    recorder_keep(s->sum); /* all that full recompute keeps of a block */
    s->delta = leave_branch(r, b, in, layer_attention(r, &b->attention, in, x));
    x = layer_norm(r, s, &b->norm2, in);
    s->delta = leave_branch(r, b, in, layer_mlp(r, &b->mlp, x));
}
