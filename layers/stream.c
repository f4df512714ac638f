/* The residual stream: its placement beside that of divided weights, its beginning, and its norms. */
#include "layers/layer.h"

/* ---- on several ranks -------------------------------------------------------------------------------------------- */

/* Activations pass between the residual stream's placement and that of divided weights (2104.04473, 2205.05198). */
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
    return record_dropout(r, "dropout", x, in->scalars,
                          part ? layer_own_rows(r, in->token_positions) : in->token_positions, &at);
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

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

/* ---- norms ------------------------------------------------------------------------------------------------------- */

tensor *layer_multiply(recorder *r, tensor *x, double multiplier)
{
    return multiplier != 0 ? record_scale(r, "multiply", x, multiplier) : x;
}

static record_norm_of norm_with(recorder *r, const norm_layer *n, const layer_inputs *in)
{
    tensor *bias = recorder_weight(r, n->bias);
    return (record_norm_of){recorder_weight(r, n->weight), bias, in->epsilon, n->offset};
}

tensor *layer_norm_of(recorder *r, const char *name, tensor *x, const norm_layer *n, const layer_inputs *in)
{
    return record_norm(r, name, NULL, x, NULL, norm_with(r, n, in));
}

tensor *layer_norm(recorder *r, stream *s, const norm_layer *n, const layer_inputs *in)
{
    if (!n->weight) {
        s->sum = s->delta ? record_add(r, "residual", s->sum, s->delta) : s->sum;
        s->delta = NULL;
        return s->sum;
    }
    tensor *y = record_norm(r, "norm", &s->sum, s->sum, s->delta, norm_with(r, n, in));
    s->delta = NULL;
    return y;
}
