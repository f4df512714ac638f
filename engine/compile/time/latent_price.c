#include "engine/compile/time/latent_price.h"

#include "engine/compile/model/tokens.h"
#include "engine/compile/time/dispatch_price.h"

/* Forward they are gathered, backward their cotangents scattered; a product is done again for each of its gradients. */
enum { TRANSFERS = 2, PRODUCTS = 3 };

double latent_seconds(const compile_options *o, const profile *p, bool gathers)
{
    const grid g = grid_of(&o->grid, 0); /* rank 0: whoever asks hears the same */
    const layer_shape l = shape_layer(&o->shape, 0);
    const dtype type = precision_compute(o->precision);
    const double heads = (double)l.heads / g.size[GRID_TENSOR], key = l.head_size, value = shape_value_size(&l),
                 rows = (double)tokens_count(o).rank * (g.size[GRID_CONTEXT] - 1); /* other ranks' */
    const double width = gathers ? l.kv_lora_rank + l.rope_head_size : heads * (key + value);
    if (l.kv_lora_rank == 0 || rows == 0)
        return 0;
    double seconds =
        TRANSFERS * profile_collective(p, &g, AXIS_CONTEXT, OP_all_gather, rows * width * dtype_bytes(type));
    double product = 2 * rows * l.kv_lora_rank * heads * (key - l.rope_head_size + value);
    return seconds + (gathers ? PRODUCTS * product / profile_products(p, type) : 0);
}

bool latent_gathers(const compile_options *o)
{
    if (o->shape.kv_lora_rank == 0 || o->grid.size[GRID_CONTEXT] == 1 || o->layout.context_gather != CONFIG_GATHER_AUTO)
        return o->layout.context_gather == CONFIG_GATHER_LATENT;
    const profile p = dispatch_prices(o);
    return latent_seconds(o, &p, true) < latent_seconds(o, &p, false);
}
