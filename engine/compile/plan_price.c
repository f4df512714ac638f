#include "engine/compile/plan_price.h"

#include <stdlib.h>

#include "engine/compile/collective.h"
#include "memory/log.h"

const plan_hardware plan_price_h100 = {.flops = 989e12,
                                       .single = 67e12,
                                       .efficiency = 0.7,
                                       .memory = 3.35e12,
                                       .node = 370e9,
                                       .network = 45e9,
                                       .latency = 10e-6,
                                       .node_ranks = 8,
                                       .capacity = (int64_t)79 << 30, /* of 80 GB */
                                       .reserve = &reserve_assumed};

/* Bytes a second along an axis: the node's if the group stays on one. */
static double bandwidth(const plan_hardware *h, const grid *g, axis a)
{
    return grid_span(g, a) <= h->node_ranks ? h->node : h->network;
}

static bool is_message(const op *o)
{
    return o->kind == OP_send || o->kind == OP_receive || o->kind == OP_wait;
}

/* Seconds of op `index`: of a collective its transfer (of several launched as one, at the last), of a send, receive or wait
 * nothing. */
static double price_op(const plan_hardware *h, const grid *g, const program *p, int index)
{
    const op *o = p->ops[index];
    if (is_message(o))
        return 0;
    if (op_row_of(o)->flags & OP_COMM) {
        int64_t scratch, bytes, messages;
        if (o->at.group_size <= 1 || o->at.bundle + 1 < o->at.bundle_of)
            return 0;
        collective_measure(&scratch, &bytes, &messages, p, index);
        return h->latency + (double)bytes / bandwidth(h, g, (axis)o->at.axis);
    }
    op_cost cost = op_row_of(o)->cost(o);
    double flops = o->phase == PHASE_UPDATE && h->single < h->flops ? h->single : h->flops;
    double compute = cost.flops / (flops * h->efficiency), move = cost.bytes / h->memory;
    return compute > move ? compute : move;
}

/* Seconds of one kind of action of one chunk, all micro-batches together. */
typedef struct sums {
    double compute, hidden;
} sums;

/* Does it travel while other ops compute? Weights and gradients do. */
static bool travels_beside(const op *o)
{
    return (op_row_of(o)->flags & OP_COMM) && axis_rows[o->at.axis].queue == AXIS_QUEUE_GRADIENTS;
}

/* Seconds that a step takes beyond its micro-batches' own ops: the list is played on two queues, one that computes, one for the
 * weights and gradients that are exchanged once a step and waited for where the program says. */
static double price_outside(const plan_hardware *h, const compiled *c)
{
    const program *p = &c->training.list;
    double *done = must_calloc((unsigned long)c->training.requests + 1, sizeof *done), now = 0, queue = 0, own = 0;
    for (int i = 0; i < p->count; i++) {
        const op *o = p->ops[i];
        double seconds = price_op(h, &c->options.grid, p, i);
        if (o->kind == OP_wait) {
            now = done[o->at.request] > now ? done[o->at.request] : now;
        } else if (o->microbatch < 0 && travels_beside(o)) {
            const op *ops[COMM_PIECES];
            int together = collective_bundle(ops, p, i);
            queue = (queue > now ? queue : now) + seconds;
            for (int k = 0; k < together; k++)
                done[ops[k]->at.request] = queue;
        } else if (o->microbatch < 0 || !travels_beside(o)) {
            now += seconds;
            own += o->microbatch < 0 ? 0 : seconds;
        }
    }
    free(done);
    return (queue > now ? queue : now) - own;
}

void plan_price_chunks(simulate_cost *costs, double *outside, const plan_hardware *h, const compiled *c)
{
    int chunks = c->model.chunk_count;
    sums(*of)[PHASE_COUNT] = must_calloc((unsigned long)chunks, sizeof *of);
    *outside = price_outside(h, c);
    for (int i = 0; i < c->training.list.count; i++) {
        const op *o = c->training.list.ops[i];
        double seconds = price_op(h, &c->options.grid, &c->training.list, i);
        if (o->microbatch >= 0)
            *(travels_beside(o) ? &of[o->chunk][o->phase].hidden : &of[o->chunk][o->phase].compute) += seconds;
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

plan_update plan_price_update(const plan_hardware *h, const compiled *c)
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
        u.seconds += price_op(h, &c->options.grid, p, i);
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

double plan_price_hop(const plan_hardware *h, const compiled *c)
{
    double longest = 0;
    for (int i = 0; i < c->training.list.count; i++) {
        const op *o = c->training.list.ops[i];
        const tensor *t = o->kind == OP_send ? o->in[0] : o->kind == OP_receive ? o->out[0] : NULL;
        double seconds = t ? h->latency + (double)tensor_bytes(t) / bandwidth(h, &c->options.grid, AXIS_PIPELINE) : 0;
        longest = seconds > longest ? seconds : longest;
    }
    return longest;
}
