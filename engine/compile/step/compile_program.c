#include "engine/compile/step/compile_program.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/flops.h"
#include "engine/compile/model/optimizer.h"
#include "engine/compile/model/tokens.h"
#include "engine/compile/order/order.h"
#include "engine/compile/step/place.h"
#include "engine/compile/step/update.h"
#include "kernels/record/fuse.h"
#include "kernels/record/operands.h"
#include "kernels/record/program.h"
#include "kernels/record/product.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/lowering.h"
#include "parallel/schedule/schedule.h"
#include "parallel/schedule/schedule_make.h"
#include "parallel/schedule/simulate.h"

/* ---- schedule --------------------------------------------------------------------------------------------------- */

/* Work on a stage's part of the embedding, and time of a message, in forward passes of a layer. */
static const double EMBEDDING_COST = 0.02, HOP = 0.1;
/* Attention's backward pass has five products where the forward has two. */
static const double ATTENTION_BACKWARD = 2.5;

/* Costs of a layer; a forward pass of `unit` FLOPs a token costs 1. */
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

/* Costs of the actions of `s`, in forward passes of a layer, by FLOPs: the schedule must be the same on every device.
 * Indexed by global chunk, including a divided vocabulary's, whether `s` has them yet or not; the caller frees it.
 * *hop: cost of a message. */
static simulate_cost *compile_schedule_costs(double *hop, const compile_options *o, const schedule *s)
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

/* ---- bodies ----------------------------------------------------------------------------------------------------- */

/* Unrolls bodies recorded once into the one list of a step: each action of the lowered schedule becomes a copy of its
 * body's ops, on tensors of that micro-batch. A micro-batch's forward, backward and weight bodies share one map of
 * tensors, so that the backward pass reads the tensors kept by the forward pass. */

/* Returns the inputs of layers, for any micro-batch. */
static layer_inputs inputs_of(recorder *r, const compiled *c)
{
    layer_inputs bound = c->values;
    bound.mtp = decoder_passes(&c->model, r->training) > 1;
    for (int i = 0; i < INPUT_COUNT; i++)
        bound.ids[i] = bound.ids[i]->shape[0] ? recorder_row(r, bound.ids[i], 0) : NULL;
    return bound;
}

/* Number of ends of a body: one per pass over the head where the vocabulary is divided. */
static int passes_of(const compiled *c, const recorder *r)
{
    return c->model.vocabulary ? decoder_passes(&c->model, r->training) : 1;
}

int unroll_bodies(const compiled *c)
{
    return c->model.chunk_count + (c->model.vocabulary ? SCHEDULE_SHARED : 0);
}

/* The placement of activations between two chunks, or of their cotangent. */
static placements boundary_place(const recorder *r, placement along_stages, bool cotangent)
{
    placements place = recorder_activation(&r->grid, r->grid.sequence ? place_shard(0) : place_replicate());
    place.along[AXIS_COORDINATE_PIPELINE] = along_stages;
    return cotangent ? place_cotangent(place) : place;
}

static tensor *chunk_boundary(recorder *r, const compiled *c, const char *name, placement along_stages, bool cotangent)
{
    int64_t shape[] = {tokens_count(&c->options).between, c->model.shape.hidden_size};
    return recorder_input(r, name, r->compute, 2, shape, boundary_place(r, along_stages, cotangent));
}

/* Checks that a tensor handed to another chunk is placed as that expects. */
static void check_boundary(const recorder *r, const tensor *t, placement along_stages, bool cotangent)
{
    const placements place = boundary_place(r, along_stages, cotangent);
    if (t)
        operands_placed_as(t, &place);
}

/* Goes backward from all outputs, with cotangents of other bodies, or from the losses if there is no output. */
static void record_backward(recorded *out, const compiled *c, placement along_stages)
{
    recorder *r = &out->r;
    recorded_ends *first = &out->of[0], *second = &out->of[1];
    for (int pass = 0; pass < LAYER_HEAD_PASSES; pass++)
        if (out->of[pass].output)
            out->of[pass].output_cotangent = chunk_boundary(r, c, "cotangent", along_stages, true);
    if (second->output)
        recorder_begin_at(r, second->output, second->output_cotangent);
    first->input_cotangent = recorder_differentiate(r, first->input, first->output, first->output_cotangent);
    if (second->input)
        second->input_cotangent = recorder_cotangent(r, second->input);
    for (int pass = 0; pass < LAYER_HEAD_PASSES; pass++) {
        check_boundary(r, out->of[pass].output, along_stages, false);
        check_boundary(r, out->of[pass].input_cotangent, place_replicate(), true);
    }
}

static void record_forward(recorded *out, const compiled *c, int chunk, bool training)
{
    recorder *r = &out->r;
    layer_inputs in = inputs_of(r, c);
    const decoder_chunk *d = &c->model.chunks[chunk];
    tensor *inputs[LAYER_HEAD_PASSES] = {0}, *outputs[LAYER_HEAD_PASSES];
    if (!d->has_embedding || c->model.vocabulary)
        inputs[0] = chunk_boundary(r, c, "input", place_replicate(), false);
    if (c->options.decode_samples && d->has_loss) {
        op copy = {.kind = OP_copy, .in = {decoder_logits(r, &c->model, chunk, &in, inputs[0])}};
        recorder_record(r, "logits", &copy, 0, (tensor *[OP_MAX_OUT]){c->values.logits});
        out->of[0].input = inputs[0];
        return;
    }
    if (d->has_loss && passes_of(c, r) > 1)
        inputs[1] = chunk_boundary(r, c, "next tokens", place_replicate(), false);
    decoder_forward(r, outputs, &c->model, chunk, &in, inputs);
    for (int pass = 0; pass < LAYER_HEAD_PASSES; pass++)
        out->of[pass] = (recorded_ends){.input = inputs[pass], .output = outputs[pass]};
    if (training)
        record_backward(out, c, place_replicate());
}

/* Forward: records the statistics of this stage's logits. Backward: from all stages' ones, the loss and its
 * gradients. */
static void record_head(recorded *out, const compiled *c)
{
    recorder *r = &out->r;
    layer_inputs in = inputs_of(r, c);
    const loss_layer *l = &c->model.vocabulary->loss;
    head_pass h[LAYER_HEAD_PASSES];
    for (int pass = 0; pass < passes_of(c, r); pass++) {
        recorder_layer(r, pass ? c->model.shape.layers : -1);
        out->of[pass].input = chunk_boundary(r, c, "input", place_shared(), false);
        h[pass] = layer_head(r, l, &in, pass, out->of[pass].input);
        out->of[pass].output = h[pass].statistics;
    }
    recorder_begin_backward(r);
    for (int pass = 0; pass < passes_of(c, r); pass++) {
        recorded_ends *ends = &out->of[pass];
        recorder_layer(r, pass ? c->model.shape.layers : -1);
        const tensor *own = ends->output;
        int64_t shape[] = {own->shape[0] * r->grid.group[AXIS_VOCABULARY].ranks, own->shape[1]};
        placements place = own->place;
        place.along[AXIS_COORDINATE_PIPELINE] = place_replicate();
        ends->output_cotangent = recorder_input(r, "statistics", DTYPE_FP32, 2, shape, place); /* all stages */
        ends->input_cotangent = layer_head_loss(r, l, &in, pass, &h[pass], ends->output_cotangent);
    }
    recorder_layer(r, -1);
}

void unroll_record(recorded *out, pool *p, const compiled *c, const unroll_what *what)
{
    *out = (recorded){0};
    recorder *r = &out->r;
    recorder_open(r, p, &c->around, precision_compute(c->options.precision), c->storage, c->model.numbers);
    r->tokens = tokens_count(&c->options).rank;
    r->training = what->training;
    r->split = what->split;
    r->recompute = what->recompute;
    r->drop = what->drop;
    r->bucket = what->bucket;
    r->whole = what->whole;
    int shared = what->chunk - c->model.chunk_count;
    if (shared >= 0)
        r->recompute = RECOMPUTE_NONE;
    if (shared == SCHEDULE_HEAD) {
        record_head(out, c);
    } else if (shared == SCHEDULE_EMBEDDING) {
        r->split = false; /* its weights' gradient comes first anyway */
        layer_inputs in = inputs_of(r, c);
        for (int pass = 0; pass < passes_of(c, r); pass++)
            out->of[pass].output = decoder_embed(r, &c->model, pass, &in);
        if (what->training)
            record_backward(out, c, place_partial());
    } else {
        record_forward(out, c, what->chunk, what->training);
    }
    for (int i = 0; i < PHASE_COUNT; i++)
        product_check_types(&r->body[i], c->options.precision);
    tensor *ends[2 * LAYER_HEAD_PASSES];
    for (int pass = 0; pass < LAYER_HEAD_PASSES; pass++) {
        ends[2 * pass] = out->of[pass].output;
        ends[2 * pass + 1] = out->of[pass].input_cotangent;
    }
    if (what->fuse)
        fuse_recorded(r, ends, 2 * LAYER_HEAD_PASSES);
}

void unroll_recorded_free(recorded *r)
{
    recorder_close(&r->r);
}

/* ---- instances ----------------------------------------------------------------------------------------------- */

typedef struct unroller {
    const compiled *c;
    compiled_program *out;
    const recorded *chunks;
    tensor ***map; /* [chunk * microbatches + micro-batch][id] */
    int microbatches;
} unroller;

/* The chunk of this stage that is `by` further along the model; -1: it is on another stage, or there is none. */
static int chunk_neighbour(const compiled *c, int chunk, int by)
{
    chunk_map map = compile_chunks(&c->options);
    int stage = c->options.grid.at[GRID_PIPELINE], g = chunk_map_global(map, stage, chunk) + by;
    bool here = chunk < map.chunks && g >= 0 && g < map.stages * map.chunks && chunk_map_stage(map, g) == stage;
    return here ? chunk_map_chunk(map, g) : -1;
}

static tensor *instance(unroller *u, tensor *t, int chunk, int microbatch);

/* Returns the tensor that one chunk hands to another of the same stage, without a message: the one that the maker's
 * body writes. NULL: `t` is not handed over. */
static tensor *handed_over(unroller *u, const tensor *t, int chunk, int microbatch)
{
    const recorded_ends *to = &u->chunks[chunk].of[0];
    int by = t == to->input ? -1 : t == to->output_cotangent ? 1 : 0;
    int maker = by ? chunk_neighbour(u->c, chunk, by) : -1;
    if (maker < 0)
        return NULL;
    const recorded_ends *from = &u->chunks[maker].of[0];
    tensor *n = instance(u, by < 0 ? from->output : from->input_cotangent, maker, microbatch);
    MUST(!n->base, "%s: a view is handed over", n->name);
    if (t->class == CLASS_KEPT)
        n->class = CLASS_KEPT;
    return n;
}

static tensor *instance(unroller *u, tensor *t, int chunk, int microbatch)
{
    if (!t || t->id < 0)
        return t;
    tensor ***slot = &u->map[chunk * u->microbatches + microbatch];
    if (!*slot)
        *slot = must_calloc((unsigned long)u->chunks[chunk].r.tensor_count, sizeof(tensor *));
    tensor **known = &(*slot)[t->id];
    if (!*known)
        *known = handed_over(u, t, chunk, microbatch);
    if (*known)
        return *known;
    tensor *n = pool_alloc(&u->out->pool, sizeof *n);
    *n = *t;
    *known = n;
    n->producer = NULL;
    u->out->tensors++;
    if (t->base) {
        n->base = instance(u, t->base, chunk, microbatch);
        const tensor *root = t->base;
        if (root->per_microbatch)
            n->offset += microbatch * (tensor_bytes(root) / root->shape[0]);
        if (tensor_persistent(root))
            n->address = root->address + n->offset;
    }
    return n;
}

static void play_body(unroller *u, int chunk, phase p, int microbatch)
{
    const program *body = &u->chunks[chunk].r.body[p];
    for (int i = 0; i < body->count; i++) {
        const op *of = body->ops[i];
        tensor *in[OP_MAX_IN], *out[OP_MAX_OUT];
        for (int k = 0; k < OP_MAX_IN; k++)
            in[k] = instance(u, of->in[k], chunk, microbatch);
        for (int k = 0; k < OP_MAX_OUT; k++)
            out[k] = instance(u, of->out[k], chunk, microbatch);
        op *o = op_make_copy(&u->out->pool, of, in, out);
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (out[k] && of->out[k]->producer == of)
                out[k]->producer = o;
        o->chunk = (int16_t)chunk;
        o->microbatch = microbatch;
        if (o->at.accumulate == OP_WRITES_FIRST)
            o->at.accumulate = microbatch > 0 ? OP_ADDS : OP_WRITES;
        if (op_has(o, OP_DRAWS))
            o->at.dropout.sample = microbatch * u->c->options.micro_batch;
        program_append(&u->out->list, o);
    }
}

static phase phase_of(action_kind kind)
{
    return kind == ACTION_FORWARD ? PHASE_FORWARD : kind == ACTION_BACKWARD_WEIGHT ? PHASE_WEIGHT : PHASE_BACKWARD;
}

/* Returns a message's tensor: in the chunk and micro-batch of the action that receives or made it. */
static tensor *message_tensor(unroller *u, const lowering_step *s)
{
    const recorded_ends *chunk = &u->chunks[s->action.chunk].of[0];
    bool receive = s->kind == LOWERING_RECEIVE, activation = s->payload == EXCHANGE_ACTIVATION;
    tensor *t = receive ? (activation ? chunk->input : chunk->output_cotangent)
                        : (activation ? chunk->output : chunk->input_cotangent);
    MUST(t, "%s has no tensor to %s", exchange_name(s->payload), lowering_kind_name(s->kind));
    return instance(u, t, s->action.chunk, s->action.microbatch);
}

static int peer_rank(const compiled *c, int stage)
{
    int at[GRID_AXES];
    for (int i = 0; i < GRID_AXES; i++)
        at[i] = c->options.grid.at[i];
    at[GRID_PIPELINE] = stage;
    return grid_rank_at(&c->options.grid, at);
}

/* Appends the wait for `o`. */
static void append_wait(compiled_program *out, const op *o)
{
    op wait = *o;
    wait.kind = OP_wait;
    program_append(&out->list, op_make(&out->pool, &wait, 0, NULL));
}

static op *append_message(compiled_program *out, bool receive, tensor *t, const op *like)
{
    op message = *like;
    message.kind = receive ? OP_receive : OP_send;
    message.site = like->label;
    message.layer = -1;
    message.where.axis = AXIS_PIPELINE;
    message.where.request = out->requests++;
    (receive ? message.out : message.in)[0] = t;
    op *o = op_make(&out->pool, &message, 0, NULL);
    program_append(&out->list, o);
    return o;
}

/* ---- exchanges among all stages ---------------------------------------------------------------------------------- */

/* Exchanges: one tensor is on all stages; the other is the stage's own with the first or the last layers, or for the
 * statistics each stage's part. */
static const struct {
    bool gathers; /* gathers from the other end; else sums onto it */
    bool backward;
    /* runs on all stages: SCHEDULE_HEAD, with the last layers as its other end, or SCHEDULE_EMBEDDING, with the first
     * layers and in the second pass the last */
    int body;
    size_t all, own; /* offsets in recorded_ends */
} meetings[EXCHANGES] = {
#define ENDS(all, own) offsetof(recorded_ends, all), offsetof(recorded_ends, own)
    [EXCHANGE_EMBEDDING] = {false, false, SCHEDULE_EMBEDDING, ENDS(output, input)},
    [EXCHANGE_HIDDEN] = {true, false, SCHEDULE_HEAD, ENDS(input, output)},
    [EXCHANGE_STATISTICS] = {true, false, SCHEDULE_HEAD, ENDS(output_cotangent, output)},
    [EXCHANGE_HIDDEN_COTANGENT] = {false, true, SCHEDULE_HEAD, ENDS(input_cotangent, output_cotangent)},
    [EXCHANGE_EMBEDDING_COTANGENT] = {true, true, SCHEDULE_EMBEDDING, ENDS(output_cotangent, input_cotangent)},
#undef ENDS
};

static tensor *tensor_of(unroller *u, int body, int pass, size_t which, int microbatch)
{
    tensor *const *t = (tensor *const *)(const void *)((const char *)&u->chunks[body].of[pass] + which);
    MUST(*t, "body %d has no such tensor to exchange", body);
    return instance(u, *t, body, microbatch);
}

/* Appends the exchange of all stages for one pass over the head. */
static op *append_exchange(unroller *u, int kind, int pass, int microbatch)
{
    chunk_map map = compile_chunks(&u->c->options);
    int body = map.chunks + meetings[kind].body;
    bool last = meetings[kind].body == SCHEDULE_HEAD || pass > 0; /* its own end: the last layers, not the first */
    op like = {.kind = meetings[kind].gathers ? OP_all_gather : OP_reduce_scatter,
               .phase = meetings[kind].backward ? PHASE_BACKWARD : PHASE_FORWARD,
               .chunk = (int16_t)body,
               .layer = -1,
               .microbatch = microbatch,
               .label = exchange_name(kind),
               .site = exchange_name(kind),
               .where = op_along(u->c->around.group, AXIS_VOCABULARY)};
    tensor *all = tensor_of(u, body, pass, meetings[kind].all, microbatch), *own = NULL;
    like.where.rows = all->shape[0];
    like.where.replicate = kind != EXCHANGE_HIDDEN;
    like.where.request = u->out->requests++;
    if (kind != EXCHANGE_STATISTICS)
        like.where.owner = chunk_map_stage(map, last ? map.stages * map.chunks - 1 : 0);
    if (like.where.owner < 0) {
        own = tensor_of(u, body, pass, meetings[kind].own, microbatch);
    } else if (like.where.owner == like.where.group_rank) {
        own = tensor_of(u, last ? map.chunks - 1 : 0, pass, meetings[kind].own, microbatch);
    } else { /* a stage that is not the owner has no rows of it */
        own = pool_alloc(&u->out->pool, sizeof *own);
        const int64_t shape[TENSOR_DIMS] = {0, all->shape[1]};
        tensor_describe(own, all->name, CLASS_TEMPORARY, (dtype)all->type, all->dims, shape);
        own->place = all->place;
        own->place.along[AXIS_COORDINATE_PIPELINE] = place_replicate();
    }
    like.in[0] = meetings[kind].gathers ? own : all;
    like.out[0] = meetings[kind].gathers ? all : own;
    op *o = op_make(&u->out->pool, &like, 0, NULL);
    program_append(&u->out->list, o);
    return o;
}

/* Ops launched together: a message, or a meeting's exchanges. */
typedef struct launched {
    op *of[LAYER_HEAD_PASSES];
} launched;

static launched append_meeting(unroller *u, int kind, int microbatch)
{
    launched l = {0};
    for (int pass = 0; pass < passes_of(u->c, &u->chunks[0].r); pass++)
        l.of[pass] = append_exchange(u, kind, pass, microbatch);
    return l;
}

static void append_waits(compiled_program *out, launched l)
{
    for (int pass = 0; pass < LAYER_HEAD_PASSES; pass++)
        if (l.of[pass])
            append_wait(out, l.of[pass]);
}

static void play_steps(unroller *u, const lowering_step *steps, int count)
{
    AUTO_FREE launched *launches = must_calloc((unsigned long)count, sizeof *launches);
    for (int i = 0; i < count; i++) {
        const lowering_step *s = &steps[i];
        if (s->kind == LOWERING_COMPUTE) {
            play_body(u, s->action.chunk, phase_of((action_kind)s->action.kind), s->action.microbatch);
            continue;
        }
        if (s->kind == LOWERING_WAIT) {
            append_waits(u->out, launches[s->pair]);
            continue;
        }
        if (s->kind == LOWERING_EXCHANGE) {
            launches[i] = append_meeting(u, s->payload, s->action.microbatch);
            continue;
        }
        op like = {.phase = (uint8_t)phase_of((action_kind)s->action.kind),
                   .chunk = s->action.chunk,
                   .microbatch = s->action.microbatch,
                   .label = exchange_name(s->payload),
                   .where.upstream = s->payload == EXCHANGE_COTANGENT,
                   .where.peer = peer_rank(u->c, s->peer)};
        launches[i].of[0] = append_message(u->out, s->kind == LOWERING_RECEIVE, message_tensor(u, s), &like);
    }
}

static void open_unroller(unroller *u, compiled_program *out, const compiled *c, const recorded *chunks,
                          int microbatches)
{
    *u = (unroller){.c = c, .out = out, .chunks = chunks, .microbatches = microbatches};
    u->map = must_calloc((unsigned long)(unroll_bodies(c) * microbatches), sizeof(tensor **));
}

static void close_unroller(unroller *u)
{
    for (int i = 0; i < unroll_bodies(u->c) * u->microbatches; i++)
        free(u->map[i]);
    free(u->map);
}

status unroll(compiled_program *out, const compiled *c, const recorded *chunks, const schedule *s)
{
    RELEASED_BY(lowering_free) lowering l = {0};
    RELEASED_BY(simulate_free) simulation timing = {0};
    double hop;
    AUTO_FREE simulate_cost *costs = s->shared ? compile_schedule_costs(&hop, &c->options, s) : NULL;
    TRY(schedule_check(s));
    /* the order of messages follows from a simulation: any positive times are safe, if all ranks use the same */
    TRY(costs ? simulate_run(&timing, s, costs, hop, 0) : simulate_uniform(&timing, s, (simulate_cost){1, 1, 1}, 0, 0));
    TRY(lowering_make(&l, &timing, LOWERING_DEFAULTS));
    TRY(lowering_check(&l, s));
    unroller u;
    int stage = c->options.grid.at[GRID_PIPELINE];
    open_unroller(&u, out, c, chunks, s->microbatches);
    play_steps(&u, l.steps[stage], l.counts[stage]);
    close_unroller(&u);
    return STATUS_OK;
}

/* One chunk's forward pass, with the messages before and after it. */
static void play_chunk(unroller *u, chunk_map map, int stage, int k, int microbatch)
{
    for (int send = 0; send < 2; send++) {
        if (send)
            play_body(u, k, PHASE_FORWARD, microbatch);
        int other = chunk_map_global(map, stage, k) + (send ? 1 : -1);
        bool model_ends = other < 0 || other == map.stages * map.chunks;
        if (model_ends || chunk_neighbour(u->c, k, send ? 1 : -1) >= 0)
            continue;
        op like = {.phase = PHASE_FORWARD, .label = exchange_name(EXCHANGE_ACTIVATION), .microbatch = -1};
        like.where.peer = peer_rank(u->c, chunk_map_stage(map, other));
        const recorded_ends *ends = &u->chunks[k].of[0];
        tensor *t = instance(u, send ? ends->output : ends->input, k, microbatch);
        append_wait(u->out, append_message(u->out, !send, t, &like));
    }
}

/* The forward actions of GPipe without its backward ones: messages only go down the stages, one micro-batch after
 * another, and each is waited for at once. */
/* All forward: evaluation of one micro-batch after another. */
static void unroll_forward(compiled_program *out, const compiled *c, const recorded *chunks, int microbatches)
{
    unroller u;
    open_unroller(&u, out, c, chunks, microbatches);
    chunk_map map = compile_chunks(&c->options);
    bool divided = c->model.vocabulary != NULL;
    int head = map.chunks + SCHEDULE_HEAD;
    for (int m = 0; m < microbatches; m++) {
        if (divided) {
            play_body(&u, map.chunks + SCHEDULE_EMBEDDING, PHASE_FORWARD, m);
            append_waits(out, append_meeting(&u, EXCHANGE_EMBEDDING, m));
        }
        for (int k = 0; k < map.chunks; k++)
            play_chunk(&u, map, c->options.grid.at[GRID_PIPELINE], k, m);
        if (divided) {
            append_waits(out, append_meeting(&u, EXCHANGE_HIDDEN, m));
            play_body(&u, head, PHASE_FORWARD, m);
            append_waits(out, append_meeting(&u, EXCHANGE_STATISTICS, m));
            play_body(&u, head, PHASE_BACKWARD, m);
        }
    }
    close_unroller(&u);
}

/* ---- programs --------------------------------------------------------------------------------------------------- */

/* True if it writes state that outlives the step, gradients excepted. A gather of weights only repeats others' rows. */
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

static void finish_program(compiled_program *out, const compiled *c, compile_order how, bool bound_only)
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
    update_zero_losses(out, c);
    tensor *const *whole = update_append_begin(out, c);
    int bodies = unroll_bodies(c);
    recorded *chunks = must_calloc((unsigned long)bodies, sizeof *chunks);
    for (int i = 0; i < bodies; i++)
        unroll_record(&chunks[i], &out->pool, c,
                      &(unroll_what){.chunk = i,
                                     .training = true,
                                     .split = schedule_splits(&s),
                                     .recompute = keep->how,
                                     .bucket = keep->bucket,
                                     .drop = keep->drop && i < o->layout.virtual_stages ? keep->drop[i] : NULL,
                                     .fuse = true,
                                     .whole = whole});
    status ok = unroll(out, c, chunks, &s);
    if (ok == STATUS_OK) {
        order_micro_batches(out, keep->order);
        update_append(out, c);
        finish_program(out, c, keep->order, bound_only);
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
    update_zero_losses(out, c);
    int bodies = unroll_bodies(c);
    recorded *chunks = must_calloc((unsigned long)bodies, sizeof *chunks);
    for (int i = 0; i < bodies; i++)
        unroll_record(&chunks[i], &out->pool, c,
                      &(unroll_what){.chunk = i, .bucket = CAPACITY_BUCKETS - 1, .fuse = true});
    unroll_forward(out, c, chunks, 1);
    compile_order how = o->order == ORDER_AS_LOWERED ? ORDER_AS_LOWERED : ORDER_EARLY;
    order_micro_batches(out, how);
    if (!o->decode_samples)
        update_append_loss(out, c);
    finish_program(out, c, how, false);
    close_bodies(chunks, bodies);
    return STATUS_OK;
}

void compile_program_gathers(compiled_program *out, const compiled *c)
{
    *out = (compiled_program){.first_change = -1};
    update_append_gathers(out, c);
    finish_program(out, c, c->options.order, false);
}
