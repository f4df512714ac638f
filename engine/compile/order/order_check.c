#include "engine/compile/order/order.h"

#include <stdlib.h>

#include "memory/log.h"
#include "memory/scope.h"

/* ---- which operands may share bytes ------------------------------------------------------------------------------ */

/* Operands by their storage: transient tensors by the tensor whose bytes they have, persistent ones by their addresses,
 * which they have before there is a program. */

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

static int compare_spans(const void *a, const void *b)
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
    qsort(spans, (size_t)count, sizeof *spans, compare_spans);
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
    AUTO_FREE span *spans = must_alloc((unsigned long)(all + 1) * sizeof *spans);
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
    return of;
}

/* ---- the check: both lists are gone through once, counting what became of each object ---------------------------- */

/* What an op finds when its turn comes. */
typedef struct found {
    const op *of;
    int at;                      /* in its list */
    int written[ORDER_OPERANDS]; /* by operand: how often its object has been written */
    int read[OP_MAX_OUT];        /* by output: how often its object has been read since */
    int messages;                /* of a launch: messages between stages and waits for them so far */
    int launched;                /* and collectives of its queue */
} found;

static bool is_operand(const op *o, int k)
{
    return (k < OP_MAX_IN ? o->in[k] : o->out[k - OP_MAX_IN]) != NULL;
}

static int compare(const void *a, const void *b)
{
    const op *x = ((const found *)a)->of, *y = ((const found *)b)->of;
    return x != y ? ((uintptr_t)x < (uintptr_t)y ? -1 : 1) : 0;
}

typedef struct counts {
    int *written, *read; /* [objects] */
    int messages, launched[AXIS_QUEUES];
} counts;

static void look(found *f, counts *c, const int *objects)
{
    const op *o = f->of;
    bool communicates = op_communicates(o);
    bool message = op_waits(o) || (communicates && axis_between_stages((axis)o->at.axis));
    for (int k = 0; k < ORDER_OPERANDS; k++) {
        if (!is_operand(o, k))
            continue;
        f->written[k] = c->written[objects[k]];
        if (k >= OP_MAX_IN)
            f->read[k - OP_MAX_IN] = c->read[objects[k]];
    }
    f->messages = communicates || message ? c->messages : 0;
    c->messages += message;
    if (communicates)
        f->launched = c->launched[axis_rows[o->at.axis].queue]++;
    for (int k = 0; k < ORDER_OPERANDS; k++) {
        if (!is_operand(o, k))
            continue;
        if (k < OP_MAX_IN) {
            c->read[objects[k]]++;
        } else {
            c->written[objects[k]]++;
            c->read[objects[k]] = 0;
        }
    }
}

/* In the order of the ops' addresses, so that two lists of the same ops give rows that belong together. */
static found *look_through(const program *list)
{
    int objects;
    int *of = order_objects(list, &objects);
    found *all = must_calloc((unsigned long)list->count + 1, sizeof *all);
    counts c = {.written = must_calloc((unsigned long)objects + 1, sizeof(int)),
                .read = must_calloc((unsigned long)objects + 1, sizeof(int))};
    for (int i = 0; i < list->count; i++) {
        all[i].of = list->ops[i];
        all[i].at = i;
        look(&all[i], &c, &of[(int64_t)i * ORDER_OPERANDS]);
    }
    qsort(all, (size_t)list->count, sizeof *all, compare);
    free(c.written);
    free(c.read);
    free(of);
    return all;
}

static status refuse(const found *x, const found *y, const char *what)
{
    char text[200];
    return status_fail(STATUS_FAILED, "op %d (%s), which was at %d: %s", y->at, op_text(text, sizeof text, x->of),
                       x->at, what);
}

static status compare_rows(const found *x, const found *y)
{
    if (x->of != y->of)
        return refuse(x, y, "it is missing, or in the list twice");
    for (int k = 0; k < ORDER_OPERANDS; k++)
        if (x->written[k] != y->written[k])
            return refuse(x, y, k < OP_MAX_IN ? "reads another value" : "writes in another turn");
    for (int k = 0; k < OP_MAX_OUT; k++)
        if (x->read[k] != y->read[k])
            return refuse(x, y, "overwrites what is still to be read");
    if (x->messages != y->messages)
        return refuse(x, y, "has passed a message between stages");
    if (x->launched != y->launched)
        return refuse(x, y, "is launched in another turn");
    return STATUS_OK;
}

status order_check(const program *before, const program *after)
{
    if (before->count != after->count)
        return status_fail(STATUS_FAILED, "%d ops in order, not %d", after->count, before->count);
    found *x = look_through(before), *y = look_through(after);
    int first = -1; /* of what is wrong */
    for (int i = 0; i < before->count; i++)
        if ((first < 0 || y[i].at < y[first].at) && compare_rows(&x[i], &y[i]) != STATUS_OK)
            first = i;
    status s = first >= 0 ? compare_rows(&x[first], &y[first]) : STATUS_OK;
    free(x);
    free(y);
    return s;
}
