#include "engine/run/warming.h"

#include <stdlib.h>

#include "memory/log.h"

static bool same_tensor(const tensor *a, const tensor *b)
{
    if (!a || !b)
        return a == b;
    for (int i = 0; i < a->dims && a->dims == b->dims; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return a->dims == b->dims && a->type == b->type && a->pitch == b->pitch;
}

/* True if both ops use the same kernels, judged by kind, types, shapes, sums and windows. */
static bool same_kernels(const op *a, const op *b)
{
    if (a->kind != b->kind || !a->at.accumulate != !b->at.accumulate || !same_tensor(a->scratch, b->scratch))
        return false;
    if (op_does(a, OP_PAIRS) && a->at.attention.window != b->at.attention.window)
        return false;
    for (int i = 0; i < OP_MAX_IN; i++)
        if (!same_tensor(a->in[i], b->in[i]))
            return false;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (!same_tensor(a->out[i], b->out[i]))
            return false;
    return true;
}

typedef struct distinct {
    const op **of;
    int count;
} distinct;

static void find_distinct(distinct *all, const program *list)
{
    for (int i = 0; i < list->count; i++) {
        int k = 0;
        while (k < all->count && !same_kernels(all->of[k], list->ops[i]))
            k++;
        if (op_computes(list->ops[i]) && k == all->count)
            APPEND(all->of, all->count) = list->ops[i];
    }
}

static void nothing_meanwhile(void *context)
{
    (void)context;
}

void warming_play(compiled *c, const device_interface *interface, device *on)
{
    distinct all = {0};
    if (!interface->clear)
        return;
    for (int i = 0; i < COMPILE_PROGRAMS; i++)
        find_distinct(&all, &compile_program_at(c, i)->list);
    for (int i = 0; i < all.count; i++)
        interface->launch(on, all.of[i]);
    if (c->marks > 0)
        interface->mark(on, 0);
    interface->synchronise(on, nothing_meanwhile, NULL);
    interface->clear(on);
    free(all.of);
}
