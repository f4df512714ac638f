#include "engine/compile/plan_price.h"

#include <stdlib.h>

#include "engine/compile/collective.h"
#include "memory/log.h"

/* The most bytes of transient tensors alive at an op from `first` on, of those that begin there. */
static int64_t working_bytes(const program *p, int first)
{
    int64_t *change = must_calloc((unsigned long)p->count + 1, sizeof *change), alive = 0, most = 0;
    for (int i = first; i < p->count; i++)
        for (int k = 0; k < OP_MAX_OUT; k++) {
            const tensor *t = p->ops[i]->out[k];
            if (!t || tensor_persistent(t) || t->base || t->first != i)
                continue;
            change[i] += tensor_bytes(t);
            change[t->last + 1] -= tensor_bytes(t);
        }
    for (int i = first; i < p->count; i++) {
        alive += change[i];
        most = alive > most ? alive : most;
    }
    free(change);
    return most;
}

plan_update plan_price_update(const profile *h, const compiled *c)
{
    const program *p = &c->training.list;
    plan_update u = {0};
    int first = 0;
    while (first < p->count && p->ops[first]->kind != OP_clip)
        first++;
    for (int i = first; i < p->count; i++) {
        const op *o = p->ops[i];
        int64_t scratch, bytes, messages;
        bool travels = (op_row_of(o)->flags & OP_COMM) != 0;
        if (o->kind == OP_wait || (travels && o->at.axis != AXIS_TENSOR))
            continue;
        u.seconds += travels ? profile_transfer(h, &c->options.grid, p, i) : profile_op(h, o);
        if (travels) {
            collective_measure(&scratch, &bytes, &messages, p, i);
            u.sent += bytes;
        } else {
            u.flops += op_row_of(o)->cost(o).flops;
        }
    }
    u.working = working_bytes(p, first);
    return u;
}
