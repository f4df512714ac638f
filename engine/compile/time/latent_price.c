#include "engine/compile/time/latent_price.h"

#include "engine/compile/model/tokens.h"

/* Forward they are gathered, backward their cotangents scattered; a product is done again for each of its gradients. */
enum { TRANSFERS = 2, PRODUCTS = 3 };

static double heads_of(const compile_options *o, const layer_shape *l)
{
    return (double)l->heads / o->grid.size[GRID_TENSOR];
}

double latent_width(const compile_options *o, bool gathers)
{
    const layer_shape l = shape_layer(&o->shape, 0);
    return gathers ? shape_latent_width(&l) : heads_of(o, &l) * (l.head_size + shape_value_size(&l));
}

double latent_seconds(const compile_options *o, const profile *p, bool gathers)
{
    const grid g = grid_of(&o->grid, 0); /* rank 0: whoever asks hears the same */
    const layer_shape l = shape_layer(&o->shape, 0);
    const dtype type = precision_compute(o->precision);
    const double rows = (double)tokens_count(o).rank * (g.size[GRID_CONTEXT] - 1); /* other ranks' */
    if (l.kv_lora_rank == 0 || rows == 0)
        return 0;
    double seconds = TRANSFERS * profile_collective(p, &g, AXIS_CONTEXT, OP_all_gather,
                                                    rows * latent_width(o, gathers) * dtype_bytes(type));
    double product =
        2 * rows * l.kv_lora_rank * heads_of(o, &l) * (l.head_size - l.rope_head_size + shape_value_size(&l));
    return seconds + (gathers ? PRODUCTS * product / profile_products(p, type) : 0);
}

bool latent_gathers(const compile_options *o)
{
    if (o->shape.kv_lora_rank == 0 || o->grid.size[GRID_CONTEXT] == 1 || o->layout.context_gather != CONFIG_GATHER_AUTO)
        return o->layout.context_gather == CONFIG_GATHER_LATENT;
    const profile p = profile_compiled_for(o);
    return latent_seconds(o, &p, true) < latent_seconds(o, &p, false);
}
