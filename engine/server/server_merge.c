/* One change, merged into the units of this rank. */
#include "engine/server/server_parts.h"
#include "memory/log.h"

/* Islands go on fetching meanwhile: they may get parts of either model, whole in every element. */
void server_merge(server *v, int slot, double share)
{
    outer *o = v->outer;
    for (int i = 0; i < o->mine_count; i++) {
        const outer_unit *m = &o->mine[i];
        int64_t n = o->units[m->unit].elements;
        MUST(compress_decode(o->values, o->in[slot] + m->coded, &o->method, n), "a change of slot %d went bad", slot);
        outer_dump_keep(o, OUTER_DUMP_BEFORE, m, o->reference + m->at);
        outer_dump_keep(o, OUTER_DUMP_SENT, m, o->values);
        rule_scale(o->values, (float)share, n);
        transport_lock(o->transport);
        rule_step(o->reference + m->at, o->momentum ? o->momentum + m->at : NULL, o->values, &o->rule, n);
        transport_unlock(o->transport);
    }
}
