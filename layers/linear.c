/* Where activations pass between the residual stream's placement and that of divided weights (2104.04473,
 * 2205.05198). */
#include "layers/layer.h"

tensor *layer_enter(recorder *r, tensor *x)
{
    return r->grid.sequence ? record_all_gather(r, "gather tokens", AXIS_TENSOR, x, r->tokens)
                            : record_copy_to_shards(r, "share", AXIS_TENSOR, x);
}

tensor *layer_leave(recorder *r, tensor *x)
{
    return r->grid.sequence ? record_reduce_scatter(r, "scatter tokens", AXIS_TENSOR, x)
                            : record_all_reduce(r, "reduce", AXIS_TENSOR, x);
}

tensor *layer_own_rows(recorder *r, tensor *ids)
{
    int64_t first, count;
    recorder_part(&first, &count, &r->grid, AXIS_TENSOR, r->tokens);
    return recorder_rows(r, ids, first, count);
}

tensor *layer_dropout(recorder *r, const layer_inputs *in, tensor *x)
{
    if (!r->training || !(in->dropout > 0))
        return x;
    const op_attributes at = {
        .dropout = {.probability = in->dropout, .site = r->sites++, .sample_tokens = in->sequence}};
    placement place = x->place.along[AXIS_COORDINATE_TENSOR];
    bool part = place.kind == PLACE_SHARD && place.dim == 0;
    return record_dropout(r, "dropout", x, in->scalars, part ? layer_own_rows(r, in->places) : in->places, &at);
}
