#include "engine/compile/time/prices.h"

#include "engine/compile/model/tokens.h"
#include "models/decoder.h"

/* ---- tokens of experts ---- */

/* Tokens are gathered and their sums scattered, in the backward pass again, and once more for passes that are
 * recomputed; slots of the first pass go there and back in either direction, and slots of overflow passes once more. */
enum { GATHERED = 4, KEPT = 4, RECOMPUTED = 6 };

double dispatch_seconds(const compile_options *o, const profile *p, bool slots)
{
    grid g = grid_for_rank(&o->grid, 0); /* ranks of a block, as rank 0 sees them: all ranks choose the same */
    config_set_expert_blocks(&g, &o->layout);
    compile_options as = *o;
    as.transfers.slots = slots;
    const capacity_shape s = buckets_capacity(&as);
    const capacity_passes w = capacity_passes_of(&s, 0);
    double row = (double)o->shape.hidden_size * dtype_bytes(precision_compute(o->precision)), others = s.ranks - 1;
    if (slots)
        return KEPT * profile_collective(p, &g, AXIS_EXPERT, OP_all_to_all, others * (double)w.rows * row) +
               RECOMPUTED * w.count *
                   profile_collective(p, &g, AXIS_EXPERT, OP_all_to_all, others * (double)w.overflow * row);
    double tokens = (double)tokens_count(o).between;
    return (GATHERED + (w.count > 0)) * profile_collective(p, &g, AXIS_EXPERT, OP_all_gather, others * tokens * row);
}

/* ---- latents, or keys and values ---- */

/* Forward they are gathered, backward their cotangents scattered; a product is done again for each of its gradients. */
enum { TRANSFERS = 2, PRODUCTS = 3 };

double latent_width(const compile_options *o, bool gathers)
{
    const layer_shape l = shape_layer(&o->shape, decoder_crossing_of(&o->shape).layer);
    const double heads = (double)l.heads / o->grid.size[GRID_TENSOR];
    return gathers ? shape_latent_width(&l) : heads * (l.head_size + shape_value_size(&l));
}

double latent_seconds(const compile_options *o, const profile *p, bool gathers)
{
    const grid g = grid_for_rank(&o->grid, 0); /* rank 0: all ranks choose the same */
    const decoder_crossing crossing = decoder_crossing_of(&o->shape);
    const layer_shape l = shape_layer(&o->shape, crossing.layer);
    const dtype type = precision_compute(o->precision);
    const double rows = (double)tokens_count(o).rank * (g.size[GRID_CONTEXT] - 1); /* other ranks' rows */
    if (crossing.what != CROSSING_LATENTS || rows == 0)
        return 0;
    double seconds = TRANSFERS * profile_collective(p, &g, AXIS_CONTEXT, OP_all_gather,
                                                    rows * latent_width(o, gathers) * dtype_bytes(type));
    double heads = (double)l.heads / o->grid.size[GRID_TENSOR];
    double product = 2 * rows * l.kv_lora_rank * heads * (l.head_size - l.rope_head_size + shape_value_size(&l));
    return seconds + (gathers ? PRODUCTS * product / profile_products(p, type) : 0);
}

void transfer_choose(compile_options *o, const devices_row *with)
{
    compile_options priced = *o;
    priced.device = with ? with : o->device;
    const profile p = profile_compiled_for(&priced);
    bool latents = o->layout.context_gather == CONFIG_GATHER_LATENT;
    bool slots = o->layout.expert_dispatch == CONFIG_DISPATCH_SLOTS;
    if (o->layout.context_gather == CONFIG_GATHER_AUTO && o->grid.size[GRID_CONTEXT] > 1 &&
        decoder_crossing_of(&o->shape).what == CROSSING_LATENTS)
        latents = latent_seconds(&priced, &p, true) < latent_seconds(&priced, &p, false);
    if (o->layout.expert_dispatch == CONFIG_DISPATCH_AUTO && o->layout.expert > 1 &&
        !o->shape.expert_drop) /* prices do not decide which rows are dropped */
        slots = dispatch_seconds(&priced, &p, true) < dispatch_seconds(&priced, &p, false);
    o->transfers = (layer_transfers){.latents = latents, .slots = slots && o->layout.expert > 1};
}
