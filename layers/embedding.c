#include "layers/layer.h"

tensor *layer_embedding(recorder *r, const embedding_layer *e, const layer_inputs *in)
{
    /* Ids of other ranks' rows give zeros: the ranks' outputs sum to the embedding. */
    tensor *x = record_embed(r, "embed", in->tokens, recorder_weight(r, e->table), e->first);
    x = layer_leave(r, x);
    if (e->positions) {
        tensor *positions = in->positions;
        if (r->grid.sequence) {
            int64_t first, count;
            shard_rows(&first, &count, r->tokens, r->grid.tensor, r->grid.tensor_rank);
            positions = recorder_rows(r, positions, first, count);
        }
        x = record_add_positions(r, "positions", x, positions, recorder_weight(r, e->positions));
    }
    return layer_dropout(r, in, x);
}
