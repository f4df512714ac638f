/* The block behind the last layer, which predicts the token after the next (2412.19437, section 2.2; 2404.19737). It
 * reads what the head reads, h, and the embedding of the next token, each through a norm of its own:
 *
 *     x_i = W [norm(embedding of token i + 1) | norm(h_i)]
 *
 * Then come a block like the last layer and a norm of its own; the head is the model's. Tokens without a next one
 * (target -1) have an embedding of zeros, and no label. */
#include "layers/layer.h"

tensor *layer_mtp(recorder *r, const mtp_module *m, const layer_inputs *in, tensor *h, tensor *next)
{
    const mtp_layer *own = &m->block->mtp;
    tensor *x = layer_multiply(r, next ? next : layer_embed(r, &m->embedding, in->targets), m->embedding.multiplier);
    recorder_keep(x); /* to make it again would be to sum it again over the tensor ranks */
    x = layer_norm_of(r, "mtp/embedding norm", x, &own->enorm, in);
    h = layer_norm_of(r, "mtp/hidden norm", h, &own->hnorm, in);
    x = record_join_keys(r, "mtp/join", x, h, 1); /* side by side, as one head's key is made of two parts */
    stream s = {.sum = record_linear(r, "mtp/of both", x, recorder_weight(r, own->joined), NULL)};
    layer_block(r, &s, m->block, in);
    tensor *y = layer_norm(r, &s, &own->norm, in);
    recorder_keep(s.sum);
    return y;
}
