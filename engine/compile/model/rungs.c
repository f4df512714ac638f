#include "engine/compile/model/rungs.h"

#include "engine/compile/model/tokens.h"

int compile_rungs(const compile_options *o)
{
    ladder_shape s = decoder_ladder(&o->shape);
    s.ranks = o->layout.expert > 1 ? o->layout.expert : 1;
    s.tokens = tokens_count(o).between * s.ranks;
    return o->shape.experts > 0 ? ladder_rungs(&s) : 1;
}
