#include "engine/compile/model/rungs.h"

#include "engine/compile/model/tokens.h"

ladder_shape rungs_ladder(const compile_options *o)
{
    ladder_shape s = decoder_ladder(&o->shape);
    s.ranks = o->layout.expert > 1 ? o->layout.expert : 1;
    s.tokens = tokens_count(o).between * (o->transfers.slots ? 1 : s.ranks);
    return o->shape.experts > 0 ? s : (ladder_shape){0};
}

int compile_rungs(const compile_options *o)
{
    ladder_shape s = rungs_ladder(o);
    return s.experts > 0 ? ladder_rungs(&s) : 1;
}

int rung_needed(const float over[LADDER_RUNGS], int rungs)
{
    int i = 0;
    while (i < rungs - 1 && over[i] > 0)
        i++;
    return i;
}

void rung_after(rung_state *s, int needed)
{
    if (needed >= s->at) {
        *s = (rung_state){.at = needed};
        return;
    }
    s->most = needed > s->most ? needed : s->most;
    if (++s->quiet == RUNG_QUIET)
        *s = (rung_state){.at = s->most};
}

int64_t compile_room(const compile_options *o)
{
    if (!o->shape.expert_drop || o->shape.experts == 0)
        return 0;
    const ladder_shape s = rungs_ladder(o);
    const ladder_waves w = ladder_waves_of(&s, 0);
    return ladder_room(&w) * (o->transfers.slots ? s.ranks : 1);
}
