#include "layers/layer.h"

/* Ids of other ranks' rows give zeros: the ranks' outputs sum to the embedding. */
tensor *layer_embed(recorder *r, const embedding_layer *e, const layer_inputs *in)
{
    return layer_leave(r, record_embed(r, "embed", in->tokens, recorder_weight(r, e->table), e->first));
}

tensor *layer_embedded(recorder *r, const embedding_layer *e, const layer_inputs *in, tensor *x)
{
    x = layer_multiply(r, x, e->multiplier);
    if (e->positions) {
        tensor *positions = r->grid.sequence ? layer_own_rows(r, in->positions) : in->positions;
        x = record_add_positions(r, "positions", x, positions, recorder_weight(r, e->positions));
    }
    return layer_dropout(r, in, x);
}
