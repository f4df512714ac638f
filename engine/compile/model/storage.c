/* What has bytes of its own on this rank for as long as it runs: parameters, gradients, optimizer state, inputs. */
#include "engine/compile/model/storage.h"

#include <stdlib.h>

#include "engine/compile/model/compressed.h"
#include "engine/compile/model/offload.h"
#include "engine/compile/model/optimizer.h"
#include "kernels/exact_sum.h"
#include "memory/log.h"

static tensor *new_rows(compiled *c, const parameter *p, tensor_class class, dtype type, int64_t rows)
{
    tensor *t = pool_alloc(&c->pool, sizeof *t);
    int64_t shape[] = {p->vector ? rows * p->columns : rows, p->columns};
    tensor_describe(t, p->name, class, type, p->vector ? 1 : 2, shape);
    t->parameter = p;
    return t;
}

/* `rows` rows of `whole` from `first` on, as a view. */
static tensor *new_view(compiled *c, tensor *whole, const parameter *p, int64_t first, int64_t rows)
{
    tensor *v = pool_alloc(&c->pool, sizeof *v);
    *v = *whole;
    v->base = whole;
    v->offset = first * p->columns * dtype_bytes((dtype)whole->type);
    v->shape[0] = p->vector ? rows * p->columns : rows;
    return v;
}

/* ---- who owns what --------------------------------------------------------------------------------------------- */

/* What the rank at `me` of those whose gradients sum owns of a parameter. */
static void divide(int64_t *first, int64_t *rows, const compiled *c, const parameter *p, int me)
{
    const compile_options *o = &c->options;
    int data = grid_group_size(&o->grid, AXIS_GRADIENT), owner = c->owners[p->number];
    *first = 0;
    *rows = p->rows;
    if (owner >= 0)
        *rows = owner == me ? p->rows : 0;
    else if (data > 1 && o->zero > 0)
        shard_rows(first, rows, p->rows, data, me);
}

/* Larger first, then in the model's order. */
static int compare_sizes(const void *a, const void *b)
{
    const parameter *const *p = a, *const *q = b;
    int64_t x = (*p)->rows * (*p)->columns, y = (*q)->rows * (*q)->columns;
    return x != y ? (x < y) - (x > y) : ((*p)->number > (*q)->number) - ((*p)->number < (*q)->number);
}

/* Parameters that are updated whole belong to the rank that has least of them so far: the same on every tensor rank, whose
 * parts have the same sizes. */
static void deal_out(int *owners, const compiled *c, int data)
{
    const parameter **whole = must_alloc((unsigned long)(c->model.parameter_count + 1) * sizeof *whole);
    int64_t *load = must_calloc((unsigned long)data, sizeof *load);
    int count = 0;
    for (int i = 0; i < c->model.parameter_count; i++)
        if (optimizer_whole(&c->options, c->model.parameters[i]))
            whole[count++] = c->model.parameters[i];
    qsort(whole, (size_t)count, sizeof *whole, compare_sizes);
    for (int i = 0; i < count; i++) {
        int least = 0;
        for (int k = 1; k < data; k++)
            least = load[k] < load[least] ? k : least;
        owners[whole[i]->number] = least;
        load[least] += whole[i]->rows * whole[i]->columns;
    }
    free(load);
    free(whole);
}

/* Small parameters belong to one rank each; rows of the others are divided, unless the optimizer takes them whole. */
static const int *choose_owners(compiled *c)
{
    int data = grid_group_size(&c->options.grid, AXIS_GRADIENT);
    int *owners = pool_alloc(&c->pool, (size_t)(c->model.numbers + 1) * sizeof *owners);
    for (int i = 0; i < c->model.numbers; i++)
        owners[i] = -1;
    if (data == 1 || c->options.zero == 0)
        return owners;
    for (int i = 0; i < c->model.parameter_count; i++)
        if (c->model.parameters[i]->vector)
            owners[c->model.parameters[i]->number] = c->model.parameters[i]->number % data;
    deal_out(owners, c, data);
    return owners;
}

static int zero_of(const compile_options *o)
{
    return grid_group_size(&o->grid, AXIS_GRADIENT) > 1 ? o->zero : 0;
}

static bool shards_weight(const compile_options *o)
{
    return zero_of(o) == 3;
}

static bool shards_gradient(const compile_options *o)
{
    return zero_of(o) >= 2 && o->reduce_each;
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + COMPILE_ALIGNMENT - 1) / COMPILE_ALIGNMENT * COMPILE_ALIGNMENT;
}

int64_t storage_owned_bytes(const compiled *c, int gradient_rank)
{
    int64_t bytes = 0;
    int state_bytes = dtype_bytes(optimizer_state_type(&c->options));
    int master_bytes = optimizer_has_master(&c->options) ? dtype_bytes(DTYPE_FP32) : 0;
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        int64_t first, rows;
        divide(&first, &rows, c, p, gradient_rank);
        if (p->shares >= 0) {
            bytes += shards_gradient(&c->options) ? aligned(rows * p->columns * 4) : 0;
            continue;
        }
        if (!offload_takes(&c->options, p)) {
            bytes += optimizer_states(optimizer_of(&c->options, p)) * aligned(rows * p->columns * state_bytes);
            bytes += aligned(rows * p->columns * master_bytes);
        }
        if (shards_gradient(&c->options))
            bytes += aligned(rows * p->columns * 4);
        if (shards_weight(&c->options))
            bytes += aligned(rows * p->columns * dtype_bytes(c->options.compute));
        if (compressed_wanted(&c->options) && c->options.zero == 0) {
            int owner;
            compressed_share(&first, &rows, &owner, &c->options, p, gradient_rank);
            bytes += aligned(rows * p->columns * 4);
        }
    }
    return bytes;
}

int64_t storage_feedback_bytes(const compiled *c)
{
    int64_t bytes = 0;
    for (int i = 0; i < c->model.parameter_count; i++) {
        const storage *s = &c->storage[c->model.parameters[i]->number];
        bytes += s->feedback ? aligned(tensor_bytes(s->feedback)) : 0;
        bytes += s->feedback_sum ? aligned(tensor_bytes(s->feedback_sum)) : 0;
    }
    return bytes;
}

/* As `whole`, but of the rows that the ranks whose gradients sum divide, only those that this rank owns. */
static placements place_own(const compiled *c, placements whole, int owner)
{
    for (int i = 0; i < AXIS_COORDINATES && zero_of(&c->options) > 0; i++)
        if (c->around.divided >> i & 1)
            whole.along[i] = owner >= 0 ? place_owned() : place_shard(0);
    return whole;
}

/* Of the gradient tensor, as products leave it. */
static placements place_gradient(const compiled *c, const storage *s)
{
    placements place = parameter_gradient_place(s->of);
    if (!s->shard_gradient)
        return place;
    if (!parameter_has_copies(s->of, s->of->vector ? 0 : s->own_first, s->gradient->shape[0]))
        place.along[AXIS_SLOT_KV] = place_replicate();
    return place_own(c, place, s->owner);
}

/* As the gradient's, where it is a share of nothing but the sum over the data ranks. */
static placements place_feedback(const storage *s)
{
    placements place = parameter_gradient_place(s->of);
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (!(axis_slots(AXIS_GRADIENT) >> i & 1) && place.along[i].kind == PLACE_PARTIAL)
            place.along[i] = place_replicate();
    return place;
}

/* The same weight, as another parameter's: what ops know of a weight is whose it is. */
static storage describe_shared(compiled *c, const parameter *p, const storage *of)
{
    storage s = *of;
    s.of = p;
    s.states = 0;
    s.master = s.feedback = s.feedback_sum = NULL;
    s.weight = new_rows(c, p, CLASS_WEIGHT, c->options.compute, p->rows);
    s.weight->place = p->place;
    if (s.shard_weight) {
        s.shard = new_rows(c, p, CLASS_WEIGHT, c->options.compute, s.own_rows);
        s.shard->place = of->shard->place;
    }
    s.gradient = new_rows(c, p, CLASS_GRADIENT, DTYPE_FP32, s.shard_gradient ? s.own_rows : p->rows);
    s.gradient->place = place_gradient(c, &s);
    s.own_gradient = new_view(c, s.gradient, p, s.shard_gradient ? 0 : s.own_first, s.own_rows);
    return s;
}

static void describe_feedback(compiled *c, storage *s)
{
    const compile_options *o = &c->options;
    int64_t first, rows;
    int owner;
    if (!compressed_wanted(o))
        return;
    s->feedback = new_rows(c, s->of, CLASS_OPTIMIZER, DTYPE_FP32, s->of->rows);
    s->feedback->place = place_feedback(s);
    compressed_share(&first, &rows, &owner, o, s->of, grid_index(&o->grid, AXIS_GRADIENT));
    if (o->zero > 0 || rows == 0)
        return;
    s->feedback_sum = new_rows(c, s->of, CLASS_OPTIMIZER, DTYPE_FP32, rows);
    s->feedback_sum->place = s->feedback->place;
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (s->feedback->place.along[i].kind == PLACE_PARTIAL)
            s->feedback_sum->place.along[i] = owner >= 0 ? place_owned() : place_shard(0);
}

static storage describe_parameter(compiled *c, const parameter *p)
{
    const compile_options *o = &c->options;
    storage s = {.of = p,
                 .owner = c->owners[p->number],
                 .shard_weight = shards_weight(o),
                 .shard_gradient = shards_gradient(o),
                 .states = optimizer_states(optimizer_of(o, p))};
    divide(&s.own_first, &s.own_rows, c, p, grid_index(&o->grid, AXIS_GRADIENT));
    s.weight = new_rows(c, p, CLASS_WEIGHT, o->compute, p->rows);
    s.weight->place = p->place;
    if (s.shard_weight) {
        s.shard = new_rows(c, p, CLASS_WEIGHT, o->compute, s.own_rows);
        s.shard->place = place_own(c, p->place, s.owner);
        s.own_weight = new_view(c, s.shard, p, 0, s.own_rows);
    } else {
        s.own_weight = new_view(c, s.weight, p, s.own_first, s.own_rows);
        s.own_weight->place = place_own(c, p->place, s.owner);
    }
    s.gradient = new_rows(c, p, CLASS_GRADIENT, DTYPE_FP32, s.shard_gradient ? s.own_rows : p->rows);
    s.gradient->place = place_gradient(c, &s);
    s.own_gradient = new_view(c, s.gradient, p, s.shard_gradient ? 0 : s.own_first, s.own_rows);
    tensor_class class = offload_takes(o, p) ? CLASS_HOST : CLASS_OPTIMIZER;
    for (int i = 0; i < s.states; i++)
        s.state[i] = new_rows(c, p, class, optimizer_state_type(o), s.own_rows);
    s.master = !optimizer_has_master(o) ? s.own_weight : new_rows(c, p, class, DTYPE_FP32, s.own_rows);
    describe_feedback(c, &s);
    return s;
}

static tensor *new_input(compiled *c, const char *name, dtype type, int dims, const int64_t *shape)
{
    tensor *t = pool_alloc(&c->pool, sizeof *t);
    tensor_describe(t, name, CLASS_INPUT, type, dims, shape);
    return t;
}

static tensor *new_ids(compiled *c, const char *name, bool wanted)
{
    const compile_options *o = &c->options;
    int64_t tokens = o->decode_samples ? o->decode_samples : o->micro_batch * o->sequence;
    tensor *t = new_input(c, name, DTYPE_INT32, 2, (int64_t[]){!wanted ? 0 : o->train ? o->microbatches : 1, tokens});
    t->per_microbatch = true;
    for (int i = 0; i < AXIS_COORDINATES; i++)
        if (c->around.divided >> i & 1)
            t->place.along[i] = place_shard(1);
    return t;
}

/* Results of which each rank has a share, and the grid the sum. */
static tensor *new_sum(compiled *c, const char *name, dtype type, int64_t count)
{
    tensor *t = new_input(c, name, type, 1, &count);
    for (int i = 0; i < AXIS_COORDINATES; i++)
        if (c->options.grid.size[i] > 1)
            t->place.along[i] = place_partial();
    return t;
}

/* Like the head's rows, divided over the tensor ranks. */
static tensor *new_logits(compiled *c)
{
    const compile_options *o = &c->options;
    int ranks = o->grid.size[GRID_TENSOR];
    tensor *t = new_input(c, "logits", o->compute, 2,
                          (int64_t[]){o->decode_samples,
                                      decoder_vocabulary_rows(&o->shape, ranks, c->around.group[AXIS_GRADIENT].ranks)});
    if (ranks > 1)
        t->place.along[GRID_TENSOR] = place_shard(1);
    return t;
}

static void describe_inputs(compiled *c)
{
    const compile_options *o = &c->options;
    bool decodes = o->decode_samples > 0;
    int64_t positions = o->decode_positions ? o->decode_positions : o->sequence;
    if (!shape_has(&o->shape, TRAIT_ROTARY))
        positions = 0;
    c->inputs = (compiled_inputs){
        .tokens = new_ids(c, "tokens", true),
        .targets = new_ids(c, "targets", !decodes),
        .positions = new_ids(c, "positions", true),
        .document_start = new_ids(c, "document start", o->document_mask && !decodes),
        .rope_table = new_input(c, "rope table", DTYPE_FP32, 2, (int64_t[]){positions, o->shape.head_size}),
        .scalars = new_input(c, "scalars", DTYPE_UINT8, 1, (int64_t[]){sizeof(step_scalars)})};
    c->results = (compiled_results){.loss = new_sum(c, "loss", DTYPE_FP32, 1),
                                    .loss_total = new_sum(c, "loss over the grid", DTYPE_FP32, 1),
                                    .bins = new_sum(c, "norm bins", DTYPE_INT64, SUM_BINS),
                                    .control = new_input(c, "control", DTYPE_FP32, 1, (int64_t[]){CONTROL_COUNT}),
                                    .logits = new_logits(c)};
}

static void describe_caches(compiled *c)
{
    const compile_options *o = &c->options;
    if (!o->decode_samples)
        return;
    const decoder_chunk *chunk = &c->model.chunks[0];
    c->cache_count = 2 * chunk->layers;
    c->caches = pool_alloc(&c->pool, (size_t)c->cache_count * sizeof(tensor *));
    for (int i = 0; i < c->cache_count; i++) {
        const attention_layer *a = &chunk->blocks[i / 2].attention;
        int64_t shape[] = {o->decode_samples, o->decode_positions, (int64_t)a->kv_heads * a->head_size};
        c->caches[i] =
            new_input(c, pool_format(&c->pool, "layer %d/%s cache", i / 2, i % 2 ? "v" : "k"), o->compute, 3, shape);
        if (o->grid.size[GRID_TENSOR] > 1)
            c->caches[i]->place.along[GRID_TENSOR] = place_shard(2);
    }
}

void storage_describe(compiled *c)
{
    c->owners = choose_owners(c);
    storage *all = pool_alloc(&c->pool, (size_t)(c->model.numbers + 1) * sizeof *all);
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        all[p->number] = p->shares >= 0 ? describe_shared(c, p, &all[p->shares]) : describe_parameter(c, p);
    }
    c->storage = all;
    if (compressed_wanted(&c->options))
        c->feedback_section = pool_format(&c->pool, "feedback_%d", grid_index(&c->options.grid, AXIS_GRADIENT));
    describe_inputs(c);
    describe_caches(c);
}

static void place(compiled *c, tensor *t)
{
    int64_t bytes = aligned(tensor_bytes(t));
    if (t->class == CLASS_HOST) {
        t->address = TENSOR_HOST + c->pinned_bytes;
        c->pinned_bytes += bytes;
    } else {
        t->address = c->persistent_bytes;
        c->persistent_bytes += bytes;
    }
    c->class_bytes[t->class] += bytes;
}

static void place_view(tensor *t)
{
    t->address = t->base->address + t->offset;
}

/* Storage of the parameter whose weight this is comes before it. */
static void place_sharer(compiled *c, const storage *s)
{
    const storage *of = &c->storage[s->of->shares];
    if (s->shard_weight)
        s->shard->address = of->shard->address;
    else
        s->weight->address = of->weight->address;
    if (!c->options.train)
        return;
    place(c, s->gradient);
    place_view(s->own_gradient);
}

static void place_parameter(compiled *c, const storage *s)
{
    if (s->of->shares >= 0) {
        place_sharer(c, s);
        return;
    }
    place(c, s->shard_weight ? s->shard : s->weight);
    place_view(s->own_weight);
    if (!c->options.train)
        return;
    place(c, s->gradient);
    place_view(s->own_gradient);
    if (s->master != s->own_weight)
        place(c, s->master);
    for (int i = 0; i < s->states; i++)
        place(c, s->state[i]);
    if (s->feedback)
        place(c, s->feedback);
    if (s->feedback_sum)
        place(c, s->feedback_sum);
}

void storage_place(compiled *c)
{
    const compiled_inputs *in = &c->inputs;
    const compiled_results *out = &c->results;
    tensor *ids[] = {in->tokens, in->targets, in->positions, in->document_start};
    /* what is copied in before a program, or out after it, is adjacent */
    tensor *others[] = {in->scalars, out->loss_total, out->control, out->logits, out->loss, out->bins, in->rope_table};
    for (unsigned i = 0; i < sizeof ids / sizeof *ids; i++)
        place(c, ids[i]);
    c->batch_bytes = c->persistent_bytes;
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        place(c, others[i]);
    c->mirror_bytes = c->persistent_bytes;
    c->pinned_bytes = aligned(c->mirror_bytes + (c->options.train ? c->batch_bytes : 0));
    for (int i = 0; i < c->cache_count; i++)
        place(c, c->caches[i]);
    for (int i = 0; i < c->model.parameter_count; i++)
        place_parameter(c, &c->storage[c->model.parameters[i]->number]);
}
