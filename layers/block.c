/* The residual stream: how it begins, what blocks add to it, and where its placement meets that of divided weights. */
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

/* x after dropout; x itself when off or not training */
static tensor *record_dropped(recorder *r, const layer_inputs *in, tensor *x)
{
    if (!r->training || !(in->dropout > 0))
        return x;
    const op_attributes at = {
        .dropout = {.probability = in->dropout, .site = r->sites++, .sample_tokens = in->sequence}};
    placement place = x->place.along[AXIS_COORDINATE_TENSOR];
    bool part = place.kind == PLACE_SHARD && place.dim == 0;
    return record_dropout(r, "dropout", x, in->scalars, part ? layer_own_rows(r, in->places) : in->places, &at);
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
    return record_dropped(r, in, x);
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

tensor *layer_multiply(recorder *r, tensor *x, double multiplier)
{
    return multiplier != 0 ? record_scale(r, "multiply", x, multiplier) : x;
}

static record_norm_of norm_with(recorder *r, const norm_layer *n, const layer_inputs *in)
{
    tensor *bias = n->bias ? recorder_weight(r, n->bias) : NULL;
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

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static tensor *layer_mlp(recorder *r, const mlp_layer *m, tensor *x)
{
    tensor *bias = m->up_bias ? recorder_weight(r, m->up_bias) : NULL;
    tensor *full = layer_enter(r, x);                                              /* [tokens, hidden] */
    tensor *h = record_linear(r, "mlp/up", full, recorder_weight(r, m->up), bias); /* columns over the ranks */
    tensor *a = m->exact    ? record_gelu_exact(r, "mlp/gelu", h)                  /* [tokens, ffn / tp] */
                : !m->gated ? record_gelu(r, "mlp/gelu", h)
                : m->gelu   ? record_geglu(r, "mlp/geglu", h)
                            : record_swiglu(r, "mlp/swiglu", h);
    tensor *down_bias = m->down_bias ? recorder_weight(r, m->down_bias) : NULL; /* on the group's first rank only */
    return layer_leave(r, record_linear(r, "mlp/down", a, recorder_weight(r, m->down), down_bias));
}

/* What a branch adds to the stream. */
static tensor *leave_branch(recorder *r, const block_layer *b, const layer_inputs *in, const norm_layer *behind,
                            tensor *x)
{
    if (behind->weight)
        x = layer_norm_of(r, "norm behind", x, behind, in);
    return record_dropped(r, in, layer_multiply(r, x, b->multiplier));
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
