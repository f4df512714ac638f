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

tensor *layer_dropout(recorder *r, const layer_inputs *in, tensor *x)
{
    if (!r->training || !(in->dropout > 0))
        return x;
    op_attributes at = {.probability = in->dropout, .draw_site = r->sites++, .sample_tokens = in->sequence};
    placement place = x->place.along[AXIS_COORDINATE_TENSOR];
    if (place.kind == PLACE_SHARD && place.dim == 0) {
        int64_t count;
        recorder_part(&at.first_token, &count, &r->grid, AXIS_TENSOR, r->tokens);
    }
    return record_dropout(r, "dropout", x, in->scalars, &at);
}
