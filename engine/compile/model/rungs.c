#include "engine/compile/model/rungs.h"

#include "engine/compile/model/tokens.h"

static ladder_shape ladder_of(const compile_options *o)
{
    ladder_shape s = decoder_ladder(&o->shape);
    s.ranks = o->layout.expert > 1 ? o->layout.expert : 1;
    s.tokens = tokens_count(o).between * s.ranks;
    return s;
}

int compile_rungs(const compile_options *o)
{
    const ladder_shape s = ladder_of(o);
    return o->shape.experts > 0 ? ladder_rungs(&s) : 1;
}

int64_t compile_room(const compile_options *o)
{
    const ladder_shape s = ladder_of(o);
    const ladder_waves w = ladder_waves_of(&s, 0);
    return o->shape.expert_drop ? ladder_room(&w) : 0;
}
