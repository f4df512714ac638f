#include "layers/layer.h"

/* Ids of other ranks' rows give zeros: the ranks' outputs sum to the embedding. */
tensor *layer_embed(recorder *r, const embedding_layer *e, tensor *ids)
{
    return layer_leave(r, record_embed(r, "embed", ids, recorder_weight(r, e->table), e->first));
}

static double rounded_to(dtype type, double x)
{
    float wide = (float)x;
    uint64_t narrow;
    dtype_convert(&narrow, type, &wide, DTYPE_FP32, 1);
    dtype_convert(&wide, DTYPE_FP32, &narrow, type, 1);
    return wide;
}

tensor *layer_embedded(recorder *r, const embedding_layer *e, const layer_inputs *in, tensor *x)
{
    x = layer_multiply(r, x, e->rounds ? rounded_to(r->compute, e->multiplier) : e->multiplier);
    if (e->positions) {
        tensor *positions = r->grid.sequence ? layer_own_rows(r, in->positions) : in->positions;
        x = record_add_positions(r, "positions", x, positions, recorder_weight(r, e->positions));
    }
    return layer_dropout(r, in, x);
}
