#include "engine/compile/step/workspace.h"

#include <stdlib.h>

#include "memory/log.h"

/* Without a budget the arena may grow by a sixteenth. */
enum { MORE = 16 };

static bool wants(const op *o)
{
    return op_has(o, OP_ROOM);
}

static tensor *bytes_of(tensor *t)
{
    while (t && t->base)
        t = t->base;
    return t && !tensor_persistent(t) ? t : NULL;
}

static int64_t scratch_of(const op *o)
{
    return o->scratch ? tensor_bytes(o->scratch) : 0;
}

/* Adds a tensor to what changes before and behind ops, once: when the op that it begins with is looked at. */
static void add_life(int64_t *change, uint8_t *seen, tensor *t, int at)
{
    t = bytes_of(t);
    if (!t || t->first != at || seen[t->id])
        return;
    seen[t->id] = 1;
    int64_t bytes = (tensor_bytes(t) + COMPILE_ALIGNMENT - 1) / COMPILE_ALIGNMENT * COMPILE_ALIGNMENT;
    change[t->first] += bytes;
    change[t->last + 1] -= bytes;
}

/* The most bytes alive beside its working memory where an op of the kind runs. */
static int64_t alive_beside(const compiled_program *p)
{
    const program *list = &p->list;
    int64_t *change = must_calloc((unsigned long)list->count + 2, sizeof *change), alive = 0, most = 0;
    uint8_t *seen = must_calloc((unsigned long)list->count * (OP_MAX_IN + OP_MAX_OUT + 1) + 1, 1);
    for (int i = 0; i < list->count; i++) {
        op *o = list->ops[i];
        for (int k = 0; k < OP_MAX_IN; k++)
            add_life(change, seen, o->in[k], i);
        for (int k = 0; k < OP_MAX_OUT; k++)
            add_life(change, seen, o->out[k], i);
        add_life(change, seen, o->scratch, i);
    }
    for (int i = 0; i < list->count; i++) {
        alive += change[i];
        if (wants(list->ops[i]) && alive - scratch_of(list->ops[i]) > most)
            most = alive - scratch_of(list->ops[i]);
    }
    free(change);
    free(seen);
    return most;
}

static bool would_take_more(const compiled *c, int64_t room)
{
    const op_backend *b = c->options.backend;
    for (int i = 0; b && b->scratch_bytes && i < c->training.list.count; i++) {
        op with = *c->training.list.ops[i];
        with.at.workspace = room;
        if (wants(&with) && b->scratch_bytes(&with, c->options.threads) > scratch_of(&with))
            return true;
    }
    return false;
}

int64_t workspace_room(const compiled *c)
{
    int64_t limit = c->options.budget ? c->options.budget - c->persistent_bytes
                                      : c->training.transient_bytes + c->training.transient_bytes / MORE;
    int64_t room = limit - alive_beside(&c->training);
    return room > 0 && would_take_more(c, room) ? room : 0;
}

int64_t workspace_taken(const compiled *c)
{
    int64_t most = 0;
    for (int i = 0; i < c->training.list.count; i++) {
        const op *o = c->training.list.ops[i];
        if (wants(o) && scratch_of(o) > most)
            most = scratch_of(o);
    }
    return most;
}
