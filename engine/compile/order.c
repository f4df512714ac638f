#include "engine/compile/order.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile_parts.h"
#include "engine/compile/order_check.h"
#include "engine/compile/order_objects.h"
#include "memory/log.h"

/* ---- what may pass what ----------------------------------------------------------------------------------------- */

static bool is_collective(const op *o)
{
    return (op_row_of(o)->flags & OP_COMM) && o->kind != OP_send && o->kind != OP_receive;
}

/* A message between stages, or the wait for one: no launch passes it. */
static bool is_message(const op *o)
{
    return o->kind == OP_wait || o->kind == OP_send || o->kind == OP_receive;
}

static bool same_queue(const op *a, const op *b)
{
    return axis_rows[a->at.axis].queue == axis_rows[b->at.axis].queue;
}

/* Long enough to hide a transfer. All ranks of a stage have the same of these. */
static bool is_long(const op *o)
{
    static const bool is[OP_COUNT] = {
        [OP_linear] = true,        [OP_linear_grad_input] = true, [OP_linear_grad_weight] = true,
        [OP_linear_gelu] = true,   [OP_linear_grad_gelu] = true,  [OP_attention] = true,
        [OP_attention_grad] = true};
    return is[o->kind];
}

/* A product that nothing of its micro-batch waits for. */
static bool is_free(const op *o)
{
    return o->kind == OP_linear_grad_weight;
}

/* Does one write what the other reads or writes? `a`, `b`: the objects of two ops. */
static bool conflict(const int *a, const int *b)
{
    for (int i = OP_MAX_IN; i < ORDER_OPERANDS; i++)
        for (int k = 0; k < ORDER_OPERANDS; k++)
            if ((a[i] >= 0 && a[i] == b[k]) || (b[i] >= 0 && b[i] == a[k]))
                return true;
    return false;
}

typedef struct orderer {
    program *list;
    int *objects; /* of the list as it is now */
} orderer;

static const int *objects_of(const orderer *o, int i)
{
    return &o->objects[(int64_t)i * ORDER_OPERANDS];
}

/* The ops by ascending place, those of one place as they were. An op that stays is at STAYS(i); BEFORE(i) is before it. */
#define STAYS(i)  (2 * (i) + 1)
#define BEFORE(i) (2 * (i))

static void rearrange(orderer *o, const int *place)
{
    int n = o->list->count, at = 0;
    unsigned long count = (unsigned long)n;
    int *head = must_alloc(2 * count * sizeof *head), *next = must_alloc(count * sizeof *next);
    op **ops = must_alloc(count * sizeof *ops);
    size_t row = ORDER_OPERANDS * sizeof *o->objects;
    int *objects = must_alloc(count * row);
    for (int i = 0; i < 2 * n; i++)
        head[i] = -1;
    for (int i = n - 1; i >= 0; i--) {
        next[i] = head[place[i]];
        head[place[i]] = i;
    }
    for (int i = 0; i < 2 * n; i++)
        for (int k = head[i]; k >= 0; k = next[k]) {
            memcpy(&objects[(int64_t)at * ORDER_OPERANDS], objects_of(o, k), row);
            ops[at++] = o->list->ops[k];
        }
    memcpy(o->list->ops, ops, count * sizeof *ops);
    free(o->objects);
    o->objects = objects;
    free(ops);
    free(next);
    free(head);
}

static int *as_it_is(const orderer *o)
{
    int *place = must_alloc((unsigned long)o->list->count * sizeof *place);
    for (int i = 0; i < o->list->count; i++)
        place[i] = STAYS(i);
    return place;
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

/* The place to which the launch `at` may move. */
static int earliest(const orderer *o, int at)
{
    const op *launch = o->list->ops[at];
    int to = at;
    while (to > 0) {
        const op *above = o->list->ops[to - 1];
        if (is_message(above) || (is_collective(above) && same_queue(above, launch)) ||
            conflict(objects_of(o, to - 1), objects_of(o, at)))
            break;
        to--;
    }
    return to;
}

static void launch_early(orderer *o)
{
    int *place = as_it_is(o);
    for (int i = 0; i < o->list->count; i++)
        if (is_collective(o->list->ops[i])) {
            int to = earliest(o, i);
            place[i] = to < i ? BEFORE(to) : STAYS(i);
        }
    rearrange(o, place);
    free(place);
}

/* ---- products --------------------------------------------------------------------------------------------------- */

typedef struct filler {
    orderer *o;
    int *place;             /* [ops]: where each goes */
    int free[ORDER_WINDOW]; /* products that may still move down to here, oldest first */
    int count;
    int *launched; /* [ops] collectives that are under way, ascending */
    int under_way;
    int last_long; /* the last op that computes long and stays; -1 */
} filler;

static void forget(filler *f, int which)
{
    f->count--;
    for (int i = which; i < f->count; i++)
        f->free[i] = f->free[i + 1];
}

/* Op `at` must find done what it needs: products that it may not precede no longer move. */
static void hold_back(filler *f, int at)
{
    for (int i = f->count - 1; i >= 0; i--)
        if (conflict(objects_of(f->o, f->free[i]), objects_of(f->o, at)))
            forget(f, i);
}

/* Ends what is under way that op `at` needs; was there one with nothing long since its launch? */
static bool ends_bare(filler *f, int at)
{
    bool bare = false;
    int kept = 0;
    for (int i = 0; i < f->under_way; i++) {
        int launch = f->launched[i];
        if (!conflict(objects_of(f->o, launch), objects_of(f->o, at)))
            f->launched[kept++] = launch;
        else
            bare |= launch > f->last_long;
    }
    f->under_way = kept;
    return bare;
}

static void pass(filler *f, int at)
{
    const op *o = f->o->list->ops[at];
    hold_back(f, at);
    if (ends_bare(f, at) && f->count > 0) {
        f->place[f->free[--f->count]] = BEFORE(at);
        f->last_long = at - 1;
    }
    if (is_collective(o)) {
        f->launched[f->under_way++] = at;
    } else if (is_free(o)) {
        if (f->count == ORDER_WINDOW)
            forget(f, 0);
        f->free[f->count++] = at;
    } else if (is_long(o)) {
        f->last_long = at;
    }
}

static void fill_gaps(orderer *o)
{
    int n = o->list->count;
    filler f = {.o = o, .place = as_it_is(o), .last_long = -1};
    f.launched = must_alloc((unsigned long)n * sizeof *f.launched);
    for (int i = 0; i < n; i++)
        pass(&f, i);
    rearrange(o, f.place);
    free(f.launched);
    free(f.place);
}

void order_micro_batches(compiled_program *out, compile_order how)
{
    program lowered = {0};
    for (int i = 0; i < out->list.count; i++)
        program_append(&lowered, out->list.ops[i]);
    order_list(&out->list, how);
    MUST(order_check(&lowered, &out->list) == STATUS_OK, "%s", status_message());
    program_free(&lowered);
}

void order_list(program *list, compile_order how)
{
    if (how == ORDER_AS_LOWERED || list->count == 0)
        return;
    orderer o = {.list = list};
    int count;
    o.objects = order_objects(list, &count);
    launch_early(&o);
    if (how == ORDER_FILLED)
        fill_gaps(&o);
    free(o.objects);
}
