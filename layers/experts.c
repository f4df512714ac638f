/* A layer's experts: a router chooses some for each token, rows of tokens are sorted by expert, and the experts'
 * outputs are added up token by token.
 *
 * Ranks that divide the experts have two ways. The tokens of a block are gathered, each rank computes the rows of its
 * own experts, and partial sums are scattered back. Or each rank sends every rank of its block a slot of rows, with the
 * rows' experts beside it, and adds up the returned rows. Rows take a first pass and overflow passes
 * (layers/capacity.h). Rows of overflow passes are not kept: the backward pass dispatches them again. */
#include "layers/capacity.h"
#include "layers/layer.h"
#include "memory/log.h"

typedef struct routed {
    tensor *logits, *own;               /* this rank's tokens: the router's output, and their experts */
    tensor *tokens, *weights, *experts; /* tokens of a block of expert-parallel ranks; in slots, this rank's tokens */
    tensor *counts;                     /* this rank's tokens of the step so far, by expert */
    op_routing routing;
    int64_t first; /* the first of this rank's experts */
    int ranks;     /* ranks that divide experts */
    bool slots;    /* tokens travel in slots */
} routed;

static routed route_tokens(recorder *r, const experts_layer *e, const layer_inputs *in, tensor *x)
{
    static const char name[] = "experts/router";
    const int ranks = r->grid.group[AXIS_EXPERT].ranks;
    routed out = {.routing = e->routing, .ranks = ranks, .slots = in->transfers.slots && ranks > 1};
    int64_t local;
    tensor *w = recorder_weight(r, e->router);
    MUST(!e->fp32_logits || !e->router_bias, "%s: logits in fp32 have no bias", name);
    /* fp32 alone separates logits nearer each other than a step of 16 bits. */
    out.logits = e->fp32_logits ? record_linear_wide(r, name, x, w)
                                : record_linear(r, name, x, w, recorder_weight(r, e->router_bias));
    tensor *bias = recorder_weight(r, e->bias);
    record_route(r, "experts/route", &out.weights, &out.experts, out.logits, bias, &e->routing);
    out.own = out.experts;
    recorder_keep(out.weights); /* a recomputed choice might differ */
    recorder_keep(out.experts);
    tensor **all[] = {&out.tokens, &out.weights, &out.experts};
    out.tokens = x;
    for (int i = 0; i < 3; i++) {
        *all[i] = record_regroup(r, "experts/block", *all[i], false);
        if (!out.slots)
            *all[i] = record_all_gather(r, "experts/gather", AXIS_EXPERT, *all[i], x->shape[0] * ranks);
    }
    recorder_part(&out.first, &local, &r->grid, AXIS_EXPERT, e->routing.experts);
    out.routing.local = (int32_t)local;
    out.routing.slots = out.slots ? ranks : 0;
    return out;
}

/* Computes this rank's experts on their rows. */
static tensor *compute_rows(recorder *r, const experts_layer *e, tensor *rows, tensor *offsets)
{
    tensor *h = record_grouped_linear(r, "experts/up", rows, recorder_weight(r, e->up), offsets,
                                      recorder_weight(r, e->up_bias)); /* [rows, 2 ffn] */
    tensor *a = e->limit > 0 ? record_swiglu_clamped(r, "experts/swiglu", h, e->limit, e->slope)
                : e->gelu    ? record_geglu(r, "experts/geglu", h)
                             : record_swiglu(r, "experts/swiglu", h);
    return record_grouped_linear(r, "experts/down", a, recorder_weight(r, e->down), offsets,
                                 recorder_weight(r, e->down_bias));
}

/* Computes this rank's experts on the rows of one pass, and adds the result to `sum` (NULL: none yet). */
static tensor *compute_pass(recorder *r, const experts_layer *e, const routed *x, int64_t rows, tensor *sum)
{
    record_row_ids to = record_assign(r, "experts/assign", x->experts, rows, &x->routing, x->first);
    tensor *picked = record_dispatch(r, "experts/dispatch", x->tokens, to.row_ids, to.offsets, rows, 0);
    const record_combine_in in = {.rows = compute_rows(r, e, picked, to.offsets),
                                  .row_ids = to.row_ids,
                                  .weights = x->weights,
                                  .offsets = to.offsets,
                                  .addend = sum};
    return record_combine(r, "experts/combine", &in);
}

/* Computes this rank's experts on the rows that came in slots, each one token with one expert, and returns their
 * outputs in order of arrival. */
static tensor *compute_slots(recorder *r, const experts_layer *e, const routed *x, tensor *came, tensor *ids)
{
    op_routing routing = x->routing;
    routing.skip = routing.slots = 0;
    int64_t rows = came->shape[0];
    record_row_ids to = record_assign(r, "experts/assign", ids, rows, &routing, 0);
    tensor *picked = record_dispatch(r, "experts/dispatch", came, to.row_ids, to.offsets, rows, 0);
    const record_combine_in in = {
        .rows = compute_rows(r, e, picked, to.offsets), .row_ids = to.row_ids, .offsets = to.offsets};
    return record_combine(r, "experts/order", &in);
}

/* Computes all ranks' experts on one pass of slots, `each` rows for each rank, and adds the result to `sum`. */
static tensor *exchange_pass(recorder *r, const experts_layer *e, const routed *x, int64_t each, tensor *sum)
{
    tensor *ids;
    record_combine_in in = {.weights = x->weights, .addend = sum, .slots = x->ranks};
    int64_t rows = each * x->ranks;
    record_slots(r, "experts/slots", &(record_slots_out){&in.row_ids, &ids, &in.offsets}, x->experts, rows,
                 &x->routing);
    tensor *packed = record_dispatch(r, "experts/pack", x->tokens, in.row_ids, in.offsets, rows, x->ranks);
    ids = record_all_to_all(r, "experts/heads", AXIS_EXPERT, ids);
    recorder_keep(ids);
    tensor *came = record_all_to_all(r, "experts/send", AXIS_EXPERT, packed);
    in.rows = record_all_to_all(r, "experts/return", AXIS_EXPERT, compute_slots(r, e, x, came, ids));
    return record_combine(r, "experts/combine", &in);
}

static tensor *record_pass(recorder *r, const experts_layer *e, const routed *x, int64_t rows, tensor *sum)
{
    return (x->slots ? exchange_pass : compute_pass)(r, e, x, rows, sum);
}

/* Counts the rows beyond the capacity of the buckets: the step is repeated, unless such rows are dropped. */
static void note_overflow(recorder *r, const capacity_shape *shape, const routed *x, tensor *over)
{
    const int buckets = capacity_buckets(shape);
    if (!r->training || (buckets == 1 && !shape->drop))
        return;
    op_capacity capacity = {.bucket = r->bucket < buckets - 1 ? r->bucket : CAPACITY_BUCKETS - 1,
                            .local = x->routing.local};
    for (int i = 0; i < CAPACITY_BUCKETS - 1; i++) {
        const capacity_passes w = capacity_passes_of(shape, i);
        capacity.room[i] = capacity_rows(&w);
    }
    if (x->slots) {
        capacity.slots = x->ranks;
        capacity.experts = x->routing.experts;
    }
    record_overflow(r, "experts/overflow", over, x->experts, &capacity, x->first);
}

/* Counts the tokens of each expert, once: recomputation in the backward pass does not count. */
static void count_choices(recorder *r, const experts_layer *e, const layer_inputs *in, routed *x)
{
    const int64_t experts = e->routing.experts;
    if (!r->training)
        return;
    x->counts = recorder_rows(r, in->choices, e->index * experts, experts);
    x->counts->place.along[AXIS_COORDINATE_PIPELINE] = place_replicate(); /* other stages count for other layers */
    record_expert_count(r, "experts/count", x->counts, x->own);
}

/* ---- losses ----------------------------------------------------------------------------------------------------- */

static op_balance balance_of(const layer_inputs *in, bool sigmoid)
{
    bool by_sample = in->router_over == LAYER_BALANCE_SEQUENCE;
    double share = in->router_over == LAYER_BALANCE_POOLED ? in->routers : 1;
    return (op_balance){.load = (float)(in->router_loss / share),
                        .z = (float)in->router_z_loss,
                        .sequence = by_sample ? in->sequence : 0,
                        .groups = by_sample ? (int32_t)(in->micro_batch / in->sequence) : 1,
                        .sigmoid = sigmoid};
}

/* Makes E f of each expert by group, where f is its share of the assignments; pooled, over the tokens of all layers. */
static tensor *record_load(recorder *r, const layer_inputs *in, const routed *x, tensor *row_ids)
{
    op_balance as = balance_of(in, x->routing.sigmoid);
    double tokens = (double)in->micro_batch / as.groups, experts = x->routing.experts;
    bool pooled = in->router_over == LAYER_BALANCE_POOLED;
    as.experts = x->routing.experts;
    if (in->router_over == LAYER_BALANCE_BATCH)
        return record_expert_share(r, "experts/share", x->counts);
    return record_expert_load(r, "experts/load", x->own, row_ids, &as,
                              experts / (tokens * (pooled ? in->routers : x->routing.active)));
}

/* Returns the place in the micro-batch of each of this rank's tokens, where groups are samples. */
static tensor *places_of(recorder *r, const layer_inputs *in)
{
    if (in->router_over != LAYER_BALANCE_SEQUENCE)
        return NULL;
    return r->grid.sequence ? layer_own_rows(r, in->token_positions) : in->token_positions;
}

static tensor *add_losses(recorder *r, const layer_inputs *in, tensor *logits, tensor *load, tensor *x, bool sigmoid)
{
    const op_balance as = balance_of(in, sigmoid);
    const record_balance_in from = {logits, load, places_of(r, in)};
    record_balance(r, "experts/balance", in->router_losses, &from, &as);
    return record_balance_through(r, "experts/balance", x, &from, in->scalars, &as);
}

tensor *layer_pooled_losses(recorder *r, const layer_inputs *in, const router_pool *routers, tensor *x)
{
    for (int i = 0; i < routers->count; i++)
        x = add_losses(r, in, routers->logits[i], routers->load, x, false); /* a softmax, as transformers has it */
    return x;
}

/* ----------------------------------------------------------------------------------------------------------------- */

tensor *mix_experts(recorder *r, const block_layer *b, const layer_inputs *in, const mixer_input *from)
{
    const experts_layer *e = &b->experts;
    router_pool *routers = from->routers;
    routed all = route_tokens(r, e, in, from->x);
    capacity_shape shape = e->capacity;
    shape.tokens = all.experts->shape[0];
    shape.ranks = all.ranks;
    shape.drop &= r->training;
    const capacity_passes w = capacity_passes_of(&shape, r->bucket);
    note_overflow(r, &shape, &all, in->over);
    count_choices(r, e, in, &all);
    r->joined = w.count > 0;
    tensor *sum = record_pass(r, e, &all, w.rows, NULL);
    r->recomputed = true;
    for (int i = 0; i < w.count; i++) {
        all.routing.skip = w.rows + i * w.overflow;
        sum = record_pass(r, e, &all, w.overflow, sum);
    }
    r->recomputed = r->joined = false;
    if (!all.slots)
        sum = record_reduce_scatter(r, "experts/scatter", AXIS_EXPERT, sum);
    tensor *y = record_regroup(r, "experts/back", sum, true);
    if (!r->training || !(in->router_loss > 0 || in->router_z_loss > 0))
        return y;
    tensor *load = record_load(r, in, &all, places_of(r, in));
    if (!routers)
        return add_losses(r, in, all.logits, load, y, all.routing.sigmoid);
    routers->logits[routers->count++] = all.logits;
    routers->load = routers->load ? record_add(r, "experts/pool", routers->load, load) : load;
    recorder_keep(routers->load);
    return y;
}
