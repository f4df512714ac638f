/* What has bytes of its own on this rank for as long as it runs: parameters, gradients, optimizer state, inputs. */
#include "engine/compile/compile_parts.h"

#include "kernels/exact_sum.h"
#include "memory/log.h"

static void describe_rows(tensor *out, const parameter *p, tensor_class class, dtype type, int64_t rows)
{
    int64_t shape[] = {p->vector ? rows * p->columns : rows, p->columns};
    tensor_describe(out, p->name, class, type, p->vector ? 1 : 2, shape);
}

/* The owned rows of `whole`, as a view. */
static tensor own_view(tensor *whole, const parameter *p)
{
    tensor v = *whole;
    v.base = whole;
    v.offset = p->own_first * p->columns * dtype_bytes((dtype)whole->type);
    v.shape[0] = p->vector ? p->own_rows * p->columns : p->own_rows;
    return v;
}

/* What the rank at `me` of those whose gradients sum owns of a parameter. */
static void divide(int *owner, int64_t *first, int64_t *rows, const compile_options *o, const parameter *p, int me)
{
    int data = grid_group_size(&o->grid, AXIS_GRADIENT);
    bool shards = data > 1 && o->zero > 0;
    *owner = -1;
    *first = 0;
    *rows = p->rows;
    if (shards && p->vector) {
        *owner = p->number % data;
        *rows = *owner == me;
    } else if (shards) {
        shard_rows(first, rows, p->rows, data, me);
    }
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + COMPILE_ALIGNMENT - 1) / COMPILE_ALIGNMENT * COMPILE_ALIGNMENT;
}

int64_t storage_owned_bytes(const compiled *c, int gradient_rank)
{
    int64_t bytes = 0;
    int states = c->options.compute == DTYPE_FP32 ? 2 : 3; /* fp32 moments, and a master copy of narrower weights */
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        int owner;
        int64_t first, rows;
        divide(&owner, &first, &rows, &c->options, p, gradient_rank);
        bytes += states * aligned(rows * p->columns * 4);
        if (p->shard_gradient)
            bytes += aligned(rows * p->columns * 4);
        if (p->shard_weight)
            bytes += aligned(rows * p->columns * dtype_bytes(c->options.compute));
    }
    return bytes;
}

static void describe_parameter(compiled *c, parameter *p)
{
    const compile_options *o = &c->options;
    int data = grid_group_size(&o->grid, AXIS_GRADIENT);
    int zero = data > 1 ? o->zero : 0;
    divide(&p->owner, &p->own_first, &p->own_rows, o, p, grid_index(&o->grid, AXIS_GRADIENT));
    p->shard_weight = zero == 3;
    p->shard_gradient = zero >= 2 && o->reduce_each;
    placement cotangent = place_cotangent(p->place);

    p->weight.parameter = p;
    if (p->shard_weight) {
        describe_rows(&p->shard, p, CLASS_WEIGHT, o->compute, p->own_rows);
        p->shard.place = p->place;
        p->shard.parameter = p;
        p->own_weight = own_view(&p->shard, p);
        p->own_weight.offset = 0;
        p->weight.class = CLASS_TEMPORARY; /* gathered at the step's begin, or not at all */
    } else {
        p->own_weight = own_view(&p->weight, p);
    }
    if (p->shard_gradient) {
        describe_rows(&p->gradient, p, CLASS_GRADIENT, DTYPE_FP32, p->own_rows);
        p->own_gradient = own_view(&p->gradient, p);
        p->own_gradient.offset = 0;
    } else {
        describe_rows(&p->gradient, p, CLASS_GRADIENT, DTYPE_FP32, p->rows);
        p->own_gradient = own_view(&p->gradient, p);
    }
    p->gradient.place = p->own_gradient.place = cotangent;
    p->gradient.parameter = p->own_gradient.parameter = p;
    describe_rows(&p->moment1, p, CLASS_OPTIMIZER, DTYPE_FP32, p->own_rows);
    describe_rows(&p->moment2, p, CLASS_OPTIMIZER, DTYPE_FP32, p->own_rows);
    describe_rows(&p->master, p, CLASS_OPTIMIZER, DTYPE_FP32, p->own_rows);
    if (o->compute == DTYPE_FP32)
        p->master = p->own_weight;
}

static void describe_inputs(compiled *c)
{
    const compile_options *o = &c->options;
    compiled_inputs *in = &c->inputs;
    int64_t tokens = o->decode_samples ? o->decode_samples : o->micro_batch * o->sequence;
    int64_t batch[] = {o->train ? o->microbatches : 1, tokens};
    struct {
        tensor *t;
        const char *name;
        bool wanted;
    } ids[] = {{&in->tokens, "tokens", true},
               {&in->targets, "targets", !o->decode_samples},
               {&in->positions, "positions", true},
               {&in->document_start, "document start", o->document_mask && !o->decode_samples}};
    for (int i = 0; i < 4; i++) {
        if (!ids[i].wanted)
            batch[0] = 0;
        tensor_describe(ids[i].t, ids[i].name, CLASS_INPUT, DTYPE_INT32, 2, batch);
        ids[i].t->boundary = true; /* divided over the micro-batches when unrolled */
        batch[0] = o->train ? o->microbatches : 1;
    }
    int64_t table[] = {shape_traits_of(o->shape.architecture)->learned_positions ? 0
                       : o->decode_positions                                     ? o->decode_positions
                                                                                 : o->sequence,
                       o->shape.head_size};
    tensor_describe(&in->rope_table, "rope table", CLASS_INPUT, DTYPE_FP32, 2, table);
    tensor_describe(&in->scalars, "scalars", CLASS_INPUT, DTYPE_UINT8, 1, (int64_t[]){sizeof(step_scalars)});
    tensor_describe(&in->loss, "loss", CLASS_INPUT, DTYPE_FP32, 1, (int64_t[]){1});
    tensor_describe(&in->loss_total, "loss over the grid", CLASS_INPUT, DTYPE_FP32, 1, (int64_t[]){1});
    tensor_describe(&in->bins, "norm bins", CLASS_INPUT, DTYPE_INT64, 1, (int64_t[]){SUM_BINS});
    tensor_describe(&in->control, "control", CLASS_INPUT, DTYPE_FP32, 1, (int64_t[]){CONTROL_COUNT});
    int64_t logits[] = {o->decode_samples, decoder_vocabulary_rows(&o->shape, 1)};
    tensor_describe(&in->logits, "logits", CLASS_INPUT, o->compute, 2, logits);
}

static void describe_caches(compiled *c)
{
    const compile_options *o = &c->options;
    if (!o->decode_samples)
        return;
    decoder_chunk *chunk = &c->model.chunks[0];
    c->cache_count = 2 * chunk->layers;
    c->caches = pool_alloc(&c->pool, (size_t)c->cache_count * sizeof(tensor *));
    for (int i = 0; i < c->cache_count; i++) {
        attention_layer *a = &chunk->blocks[i / 2].attention;
        int64_t shape[] = {o->decode_samples, o->decode_positions, (int64_t)a->kv_heads * a->head_size};
        c->caches[i] = pool_alloc(&c->pool, sizeof(tensor));
        tensor_describe(c->caches[i], pool_format(&c->pool, "layer %d/%s cache", i / 2, i % 2 ? "v" : "k"), CLASS_INPUT,
                        o->compute, 3, shape);
        *(i % 2 ? &a->v_cache : &a->k_cache) = c->caches[i];
    }
}

void storage_describe(compiled *c)
{
    for (int i = 0; i < c->model.parameter_count; i++)
        describe_parameter(c, c->model.parameters[i]);
    describe_inputs(c);
    describe_caches(c);
}

static void place(compiled *c, tensor *t)
{
    if (!tensor_persistent(t))
        return;
    t->address = c->persistent_bytes;
    int64_t bytes = aligned(tensor_bytes(t));
    c->persistent_bytes += bytes;
    c->class_bytes[t->class] += bytes;
}

static void place_view(tensor *t)
{
    if (t->base && t->base->address >= 0)
        t->address = t->base->address + t->offset;
}

void storage_place(compiled *c)
{
    compiled_inputs *in = &c->inputs;
    tensor *ids[] = {&in->tokens, &in->targets, &in->positions, &in->document_start};
    /* what goes in before a program, or out behind it, stands side by side */
    tensor *others[] = {&in->scalars, &in->loss_total, &in->control,   &in->logits,
                        &in->loss,    &in->bins,       &in->rope_table};
    for (unsigned i = 0; i < sizeof ids / sizeof *ids; i++)
        place(c, ids[i]);
    c->batch_bytes = c->persistent_bytes;
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        place(c, others[i]);
    c->mirror_bytes = c->persistent_bytes;
    c->pinned_bytes = c->mirror_bytes + (c->options.train ? c->batch_bytes : 0);
    for (int i = 0; i < c->cache_count; i++)
        place(c, c->caches[i]);
    bool train = c->options.train;
    for (int i = 0; i < c->model.parameter_count; i++) {
        parameter *p = c->model.parameters[i];
        place(c, p->shard_weight ? &p->shard : &p->weight);
        place_view(&p->own_weight);
        if (!train)
            continue;
        place(c, &p->gradient);
        place_view(&p->own_gradient);
        if (c->options.compute == DTYPE_FP32)
            place_view(&p->master);
        else
            place(c, &p->master);
        place(c, &p->moment1);
        place(c, &p->moment2);
    }
}
