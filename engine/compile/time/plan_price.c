#include "engine/compile/time/prices.h"

#include <stdlib.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/step/compile_program.h"
#include "memory/log.h"

static bool is_message(const op *o)
{
    bool communicates = op_communicates(o);
    return op_waits(o) || (communicates && axis_between_stages((axis)o->where.axis));
}

/* Seconds of one kind of action of one chunk, all micro-batches together. */
typedef struct sums {
    double compute, hidden;
} sums;

void plan_price_chunks(simulate_cost *costs, const profile *h, const compiled *c)
{
    const program *list = &c->training.list;
    int chunks = unroll_bodies(c);
    sums(*of)[PHASE_COUNT] = must_calloc((unsigned long)chunks, sizeof *of);
    for (int i = 0; i < list->count; i++) {
        const op *o = list->ops[i];
        if (o->microbatch < 0 || is_message(o) || o->where.bundle + 1 < o->where.bundle_of)
            continue;
        bool travels = op_communicates(o);
        double seconds = travels ? profile_transfer(h, &c->options.grid, list, i) : profile_op(h, o);
        *(op_communicates(o) && axis_rows[o->where.axis].queue == AXIS_QUEUE_GRADIENTS
              ? &of[o->chunk][o->phase].hidden
              : &of[o->chunk][o->phase].compute) += seconds;
    }
    double each[PHASE_COUNT];
    for (int k = 0; k < chunks; k++) {
        for (int p = 0; p < PHASE_COUNT; p++) {
            sums s = of[k][p];
            each[p] = (s.hidden > s.compute ? s.hidden : s.compute) / c->options.microbatches;
        }
        costs[k] = (simulate_cost){each[PHASE_FORWARD], each[PHASE_BACKWARD], each[PHASE_WEIGHT]};
    }
    free(of);
}

double plan_price_hop(const profile *h, const compiled *c)
{
    const program *list = &c->training.list;
    double longest = 0;
    for (int i = 0; i < list->count; i++)
        if (op_has(list->ops[i], OP_MESSAGE) && op_has(list->ops[i], OP_LEAVES)) {
            double seconds = profile_transfer(h, &c->options.grid, list, i);
            longest = seconds > longest ? seconds : longest;
        }
    return longest;
}

/* The most bytes of transient tensors alive at an op from `first` on, counting only tensors that begin there. */
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
    double copies[2] = {0}; /* loads from host memory and stores to it, concurrent with each other and with updates */
    int first = 0;
    while (first < p->count && !op_has(p->ops[first], OP_CONTROLS))
        first++;
    for (int i = first; i < p->count; i++) {
        const op *o = p->ops[i];
        int64_t scratch, bytes, messages;
        bool travels = op_communicates(o);
        if (op_copies(o))
            copies[op_has(o, OP_LEAVES)] += profile_op(h, o);
        if (op_copies(o) || op_waits(o) || (travels && !axis_within_layers((axis)o->where.axis)))
            continue;
        u.seconds += travels ? profile_transfer(h, &c->options.grid, p, i) : profile_op(h, o);
        if (travels) {
            collective_measure(&scratch, &bytes, &messages, p, i);
            u.sent += bytes;
        } else {
            u.flops += op_row_of(o)->cost(o).flops;
        }
    }
    for (int i = 0; i < 2; i++)
        u.seconds = copies[i] > u.seconds ? copies[i] : u.seconds;
    u.working = working_bytes(p, first);
    return u;
}
