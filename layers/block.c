#include "layers/layer.h"

void layer_block(recorder *r, stream *s, const block_layer *b, const layer_inputs *in)
{
    tensor *x = layer_norm(r, s, &b->norm1, in);
    recorder_keep(s->sum); /* all that full recompute keeps of a block */
    s->delta = layer_dropout(r, in, layer_attention(r, &b->attention, in, x));
    x = layer_norm(r, s, &b->norm2, in);
    s->delta = layer_dropout(r, in, layer_mlp(r, &b->mlp, x));
}
