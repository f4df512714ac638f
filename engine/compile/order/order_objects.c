/* Operands by their storage: transient tensors by the tensor whose bytes they have, persistent ones by their addresses,
 * which they have before there is a program. */
#include "engine/compile/order/order_objects.h"

#include <stdlib.h>

#include "memory/log.h"

typedef struct span {
    int64_t first, end; /* bytes of the arena */
    int64_t operand;    /* whose */
} span;

static tensor *operand(const op *o, int k)
{
    return k < OP_MAX_IN ? o->in[k] : o->out[k - OP_MAX_IN];
}

static tensor *root_of(const op *o, int k)
{
    tensor *t = operand(o, k);
    while (t && t->base)
        t = t->base;
    return t;
}

static int compare(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return (x->operand > y->operand) - (x->operand < y->operand);
}

static span span_of(const tensor *t, int64_t at)
{
    return (span){t->address, t->address + tensor_bytes(t), at};
}

/* Persistent operands whose bytes overlap, directly or by way of others, get one number. */
static int number_persistent(int *of, span *spans, int64_t count, int objects)
{
    int64_t end = INT64_MIN;
    qsort(spans, (size_t)count, sizeof *spans, compare);
    for (int64_t i = 0; i < count; i++) {
        bool same = i > 0 && (spans[i].first < end || spans[i].first == spans[i - 1].first);
        objects += !same;
        end = same && end > spans[i].end ? end : spans[i].end;
        of[spans[i].operand] = objects - 1;
    }
    return objects;
}

int *order_objects(const program *list, int *count)
{
    int64_t all = (int64_t)list->count * ORDER_OPERANDS, persistent = 0;
    int *of = must_alloc((unsigned long)(all + 1) * sizeof *of);
    span *spans = must_alloc((unsigned long)(all + 1) * sizeof *spans);
    for (int64_t i = 0; i < all; i++) {
        tensor *t = root_of(list->ops[i / ORDER_OPERANDS], (int)(i % ORDER_OPERANDS));
        of[i] = -1;
        if (t && tensor_persistent(t))
            spans[persistent++] = span_of(operand(list->ops[i / ORDER_OPERANDS], (int)(i % ORDER_OPERANDS)), i);
        else if (t)
            t->id = -1; /* a program's own, and of no use to anybody else by now */
    }
    *count = 0;
    for (int64_t i = 0; i < all; i++) {
        tensor *t = root_of(list->ops[i / ORDER_OPERANDS], (int)(i % ORDER_OPERANDS));
        if (!t || tensor_persistent(t))
            continue;
        if (t->id < 0)
            t->id = (*count)++;
        of[i] = t->id;
    }
    *count = number_persistent(of, spans, persistent, *count);
    free(spans);
    return of;
}
