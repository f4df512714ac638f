#include "engine/compile/step/compile_program.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/flops.h"
#include "engine/compile/order/order.h"
#include "engine/compile/step/place.h"
#include "engine/compile/step/unroll.h"
#include "engine/compile/step/update.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/schedule_make.h"

/* ---- the schedule, and a vocabulary that is divided over the stages ---------------------------------------------- */

/* Of a layer's forward pass: the work on a stage's part of the embedding, and the time of a message. */
static const double EMBEDDING_COST = 0.02, HOP = 0.1;
/* Attention's backward pass has five products where the forward has two. */
static const double ATTENTION_BACKWARD = 2.5;

/* A layer, whose forward pass costs 1 where that takes `unit` FLOPs a token. */
static simulate_cost layer_cost(const compile_options *o, const flops_layer *l, double unit)
{
    simulate_cost cost = {(l->products + l->attention) / unit, (l->products + ATTENTION_BACKWARD * l->attention) / unit,
                          l->products / unit};
    cost.input += o->recompute == RECOMPUTE_FULL ? cost.forward : 0;
    return cost;
}

static void add_cost(simulate_cost *sum, simulate_cost each, int times)
{
    sum->forward += times * each.forward;
    sum->input += times * each.input;
    sum->weight += times * each.weight;
}

simulate_cost *compile_schedule_costs(double *hop, const compile_options *o, const schedule *s)
{
    int n = schedule_layer_chunks(s), all = s->stages * (s->chunks + SCHEDULE_SHARED), first = 0;
    flops_model f;
    flops_open(&f, &o->shape, o->sequence);
    const double unit = f.kinds[0].products + f.kinds[0].attention;
    const double head = shape_head_passes(&o->shape) * f.head / unit / s->stages;
    AUTO_FREE int *layers = must_alloc((unsigned long)n * sizeof *layers);
    simulate_cost *costs = must_calloc((unsigned long)all, sizeof *costs);
    MUST(compile_divide_layers(layers, o) == STATUS_OK, "%s", status_message());
    for (int g = 0; g < all; g++) {
        int shared = chunk_map_chunk(schedule_map(s), g) - s->chunks;
        if (shared == SCHEDULE_HEAD) {
            costs[g] = (simulate_cost){head, head, head};
        } else if (shared == SCHEDULE_EMBEDDING) {
            costs[g] = (simulate_cost){EMBEDDING_COST, EMBEDDING_COST, 0};
        } else {
            for (int k = 0; k < f.kind_count; k++)
                add_cost(&costs[g], layer_cost(o, &f.kinds[k], unit), flops_layers_of(&f, k, first, layers[g]));
            first += layers[g];
        }
    }
    if (o->shape.mtp_layers > 0)
        add_cost(&costs[n - 1], layer_cost(o, &f.mtp, unit), 1);
    *hop = HOP;
    flops_close(&f);
    return costs;
}

void compile_schedule_share(schedule *s, const compile_options *o, const simulate_cost *costs, double hop)
{
    schedule shared;
    schedule_share(&shared, s, costs, hop);
    shared.next_tokens = o->shape.mtp_layers > 0;
    schedule_free(s);
    *s = shared;
}

status compile_schedule_named(schedule *out, const compile_options *o, schedule_kind kind, int microbatches)
{
    TRY(schedule_make(out, kind, o->grid.size[GRID_PIPELINE], o->layout.virtual_stages, microbatches));
    if (!compile_divides_vocabulary(o))
        return STATUS_OK;
    double hop;
    AUTO_FREE simulate_cost *costs = compile_schedule_costs(&hop, o, out);
    compile_schedule_share(out, o, costs, hop);
    return STATUS_OK;
}

status compile_schedule(schedule *out, const compile_options *o, int microbatches)
{
    const schedule *s = o->found;
    MUST(compile_schedule_kind(o) != SCHEDULE_AUTO || (s && s->microbatches == microbatches),
         "a schedule was found for another number of micro-batches");
    if (o->few && o->few->microbatches == microbatches)
        s = o->few;
    if (!s || s->microbatches != microbatches)
        return compile_schedule_named(out, o, compile_schedule_kind(o), microbatches);
    schedule_alloc(out, s->kind, schedule_map(s), microbatches, 3 * (s->chunks + s->shared) * microbatches);
    out->shared = s->shared;
    out->next_tokens = s->next_tokens;
    for (int stage = 0; stage < s->stages; stage++) {
        memcpy(out->actions[stage], s->actions[stage], sizeof **s->actions * (unsigned long)s->counts[stage]);
        out->counts[stage] = s->counts[stage];
    }
    return STATUS_OK;
}

bool compile_schedule_splits(const compile_options *o)
{
    const schedule_kind kind = compile_schedule_kind(o);
    return kind == SCHEDULE_AUTO ? schedule_splits(o->found) : schedule_kind_splits(kind);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* Does it write what outlives the step and is no gradient? A gather of weights only repeats what other ranks own. */
static bool changes_state(const compiled *c, const op *o)
{
    bool changes = false;
    for (int k = 0; k < OP_MAX_OUT && o->phase != PHASE_BEGIN; k++) {
        const tensor *t = o->out[k] ? tensor_root(o->out[k]) : NULL;
        bool state = t && (t->class == CLASS_WEIGHT || t->class == CLASS_OPTIMIZER) && t->address < c->persistent_bytes;
        changes |= state || (t && t->class == CLASS_HOST);
    }
    return changes;
}

static void finish(compiled_program *out, const compiled *c, compile_order how, bool bound_only)
{
    place_waits(out, how);
    place_transients(out, c, bound_only);
    for (int i = 0; i < out->list.count; i++) {
        const op *o = out->list.ops[i];
        if (!op_waits(o))
            out->flops[o->phase] += op_row_of(o)->cost(o).flops;
    }
}

static void close_bodies(recorded *chunks, int count)
{
    for (int i = 0; i < count; i++)
        unroll_recorded_free(&chunks[i]);
    free(chunks);
}

status compile_program_training(compiled_program *out, const compiled *c, const compile_keep *keep, int microbatches,
                                bool bound_only)
{
    const compile_options *o = &c->options;
    *out = (compiled_program){.enough = keep->enough};
    RELEASED_BY(schedule_free) schedule s = {0};
    TRY(compile_schedule(&s, o, microbatches));
    update_start_losses(out, c);
    tensor *const *whole = update_begin(out, c);
    int bodies = unroll_bodies(c);
    recorded *chunks = must_calloc((unsigned long)bodies, sizeof *chunks);
    for (int i = 0; i < bodies; i++)
        unroll_record(&chunks[i], &out->pool, c,
                      &(unroll_what){.chunk = i,
                                     .training = true,
                                     .split = schedule_splits(&s),
                                     .recompute = keep->how,
                                     .rung = keep->rung,
                                     .drop = keep->drop && i < o->layout.virtual_stages ? keep->drop[i] : NULL,
                                     .fuse = true,
                                     .whole = whole});
    status ok = unroll(out, c, chunks, &s);
    if (ok == STATUS_OK) {
        order_micro_batches(out, keep->order);
        update_append(out, c);
        finish(out, c, keep->order, bound_only);
        while (out->first_change < out->list.count && !changes_state(c, out->list.ops[out->first_change]))
            out->first_change++;
    }
    close_bodies(chunks, bodies);
    return ok;
}

status compile_program_forward(compiled_program *out, const compiled *c)
{
    const compile_options *o = &c->options;
    *out = (compiled_program){.first_change = -1};
    update_start_losses(out, c);
    int bodies = unroll_bodies(c);
    recorded *chunks = must_calloc((unsigned long)bodies, sizeof *chunks);
    for (int i = 0; i < bodies; i++)
        unroll_record(&chunks[i], &out->pool, c, &(unroll_what){.chunk = i, .rung = LADDER_RUNGS - 1, .fuse = true});
    unroll_forward(out, c, chunks, 1);
    compile_order how = o->order == ORDER_AS_LOWERED ? ORDER_AS_LOWERED : ORDER_EARLY;
    order_micro_batches(out, how);
    if (!o->decode_samples)
        update_loss(out, c);
    finish(out, c, how, false);
    close_bodies(chunks, bodies);
    return STATUS_OK;
}

void compile_program_gathers(compiled_program *out, const compiled *c)
{
    *out = (compiled_program){.first_change = -1};
    update_gather(out, c);
    finish(out, c, c->options.order, false);
}
