#include "engine/compile/step/alive.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

/* The tensor that has the bytes: outputs in the storage of inputs are views, too. */
static const tensor *holder(const tensor *t)
{
    while (t->base)
        t = t->base;
    return t;
}

static void add(int64_t *kept, int64_t *rest, bool *seen, const tensor *t)
{
    const tensor *s = t ? holder(t) : NULL;
    if (!s || tensor_persistent(s) || seen[s->id])
        return;
    int64_t *sum = s->class == CLASS_KEPT ? kept : rest;
    int64_t bytes = (tensor_bytes(s) + COMPILE_ALIGNMENT - 1) / COMPILE_ALIGNMENT * COMPILE_ALIGNMENT;
    seen[s->id] = true;
    sum[s->first] += bytes;
    sum[s->last + 1] -= bytes;
}

void alive_find(int64_t *kept, int64_t *rest, const compiled_program *p)
{
    int count = p->list.count;
    bool *seen = must_calloc((unsigned long)p->placed + 1, sizeof *seen);
    memset(kept, 0, ((size_t)count + 1) * sizeof *kept);
    memset(rest, 0, ((size_t)count + 1) * sizeof *rest);
    for (int i = 0; i < count; i++) {
        const op *o = p->list.ops[i];
        for (int k = 0; k < OP_MAX_IN; k++)
            add(kept, rest, seen, o->in[k]);
        for (int k = 0; k < OP_MAX_OUT; k++)
            add(kept, rest, seen, o->out[k]);
        add(kept, rest, seen, o->scratch);
    }
    for (int i = 0; i < count; i++) {
        kept[i + 1] += kept[i];
        rest[i + 1] += rest[i];
    }
    free(seen);
}
