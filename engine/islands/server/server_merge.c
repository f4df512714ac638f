/* Merges one change into this rank's units, and converts the last answers to every slot to and from `head`. */
#include <string.h>

#include "engine/islands/server/server_internal.h"
#include "memory/log.h"

/* Islands fetch meanwhile, and may get parts of either model, whole in every element. */
void server_merge(server *v, int slot, double share)
{
    outer *o = &v->core;
    for (int i = 0; i < o->units.mine_count; i++) {
        const outer_unit *m = &o->units.mine[i];
        int64_t n = o->units.list[m->unit].elements;
        MUST(compress_decode(o->memory.values, o->memory.in[slot] + m->coded, &o->method, n),
             "a change of slot %d went bad", slot);
        const rule step = outer_rule_of(o, m);
        rule_scale(o->memory.values, (float)share, n);
        transport_lock(o->transport);
        rule_step(o->memory.reference + m->at, o->memory.momentum ? o->memory.momentum + m->at : NULL, o->memory.values,
                  &step, n);
        transport_unlock(o->transport);
    }
}

json_t *server_head(const server *v, const roster_part *wanted, int64_t merge)
{
    json_t *parts = json_array();
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        const roster_part *p = wanted && wanted->slot == s ? wanted : &v->answer[s];
        if (p->id == 0)
            continue;
        json_array_append_new(parts,
                              json_pack("{s:i, s:I, s:I, s:I, s:I, s:i}", "slot", s, "offer", (json_int_t)p->offer,
                                        "tokens", (json_int_t)p->tokens, "merge", (json_int_t)p->merge, "id",
                                        (json_int_t)p->id, "refused", (int)p->refusal));
    }
    return json_pack("{s:I, s:I, s:I, s:o}", "merge", (json_int_t)merge, "step", (json_int_t)v->step, "updates",
                     (json_int_t)v->updates, "parts", parts);
}

void server_take_head(server *v, const roster *head)
{
    memset(v->answer, 0, sizeof v->answer);
    for (int i = 0; i < head->parts; i++)
        v->answer[head->part[i].slot] = head->part[i];
    v->step = head->step;
    v->updates = head->updates;
}
