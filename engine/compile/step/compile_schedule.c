#include "engine/compile/step/compile_schedule.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/flops.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/schedule_make.h"

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
