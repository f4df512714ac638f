#include "engine/compile/time/dispatch_price.h"

#include "engine/compile/model/rungs.h"
#include "engine/compile/model/tokens.h"

/* Tokens are gathered and their sums scattered, in the backward pass again, and once more for waves that are not kept;
 * slots of the first wave go there and back in either pass, and those of waves behind it once more. */
enum { GATHERED = 4, KEPT = 4, REMADE = 6 };

/* Ranks of a block, as rank 0 sees them: whoever asks hears the same. */
static grid block_of(const compile_options *o)
{
    grid g = grid_of(&o->grid, 0);
    config_block_experts(&g, &o->layout);
    return g;
}

double dispatch_seconds(const compile_options *o, const profile *p, bool slots)
{
    const grid g = block_of(o);
    compile_options as = *o;
    as.transfers.slots = slots;
    const ladder_shape s = rungs_ladder(&as);
    const ladder_waves w = ladder_waves_of(&s, 0);
    double row = (double)o->shape.hidden_size * dtype_bytes(precision_compute(o->precision)), others = s.ranks - 1;
    if (slots)
        return KEPT * profile_collective(p, &g, AXIS_EXPERT, OP_all_to_all, others * (double)w.rows * row) +
               REMADE * w.count *
                   profile_collective(p, &g, AXIS_EXPERT, OP_all_to_all, others * (double)w.behind * row);
    double tokens = (double)tokens_count(o).between;
    return (GATHERED + (w.count > 0)) * profile_collective(p, &g, AXIS_EXPERT, OP_all_gather, others * tokens * row);
}

bool dispatch_by_slots(const compile_options *o)
{
    if (o->layout.expert <= 1 || o->layout.expert_dispatch != CONFIG_DISPATCH_AUTO)
        return o->layout.expert > 1 && o->layout.expert_dispatch == CONFIG_DISPATCH_SLOTS;
    if (o->shape.expert_drop) /* which rows are dropped hangs on no price */
        return false;
    const profile p = profile_compiled_for(o);
    return dispatch_seconds(o, &p, true) < dispatch_seconds(o, &p, false);
}
