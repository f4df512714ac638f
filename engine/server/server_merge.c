/* One change, merged into the units of this rank. */
#include "engine/server/server_parts.h"
#include "memory/log.h"

/* Islands go on fetching meanwhile: they may get parts of either model, whole in every element. */
void server_merge(server *v, int slot, double share)
{
    outer *o = v->outer;
    for (int i = 0; i < o->units.mine_count; i++) {
        const outer_unit *m = &o->units.mine[i];
        int64_t n = o->units.list[m->unit].elements;
        MUST(compress_decode(o->memory.values, o->memory.in[slot] + m->coded, &o->method, n),
             "a change of slot %d went bad", slot);
        outer_dump_keep(o, OUTER_DUMP_BEFORE, m, o->memory.reference + m->at);
        outer_dump_keep(o, OUTER_DUMP_SENT, m, o->memory.values);
        rule_scale(o->memory.values, (float)share, n);
        transport_lock(o->transport);
        rule_step(o->memory.reference + m->at, o->memory.momentum ? o->memory.momentum + m->at : NULL, o->memory.values,
                  &o->rule, n);
        transport_unlock(o->transport);
    }
}
