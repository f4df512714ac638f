#include "engine/compile/compile.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile_parts.h"
#include "engine/compile/recompute.h"
#include "memory/log.h"
#include "parallel/partition.h"

/* How many tensor ranks hold the same key/value heads. */
static int kv_copies(const model_shape *shape, int tensor_ranks)
{
    return tensor_ranks > shape->kv_heads ? tensor_ranks / shape->kv_heads : 1;
}

/* ---- FLOPs ----------------------------------------------------------------------------------------------------- */

/* Weights that a token passes through in products: of one layer, and of the head. */
static double layer_weights(const model_shape *s)
{
    double h = (double)s->hidden_size, d = s->head_size;
    double attention = h * d * (2.0 * s->heads + 2.0 * s->kv_heads);
    return attention + h * (double)s->ffn_size * (shape_traits_of(s->architecture)->gated ? 3 : 2);
}

/* The mean number of keys a token attends to. */
static double mean_keys(const model_shape *s, int64_t sequence)
{
    double n = (double)sequence, w = (double)s->sliding_window;
    if (w <= 0 || w >= n)
        return (n + 1) / 2;
    return (w * (w + 1) / 2 + (n - w) * w) / n;
}

double compile_flops_per_token(const model_shape *s, int64_t sequence)
{
    double attention = 4.0 * s->heads * s->head_size * mean_keys(s, sequence);
    double layer = 2 * layer_weights(s) + attention;
    return 3 * (layer * s->layers + 2.0 * (double)s->hidden_size * (double)s->vocab_size);
}

/* ---- layers over chunks ----------------------------------------------------------------------------------------- */

static status divide_layers(compiled *c, int **first, int **count)
{
    const compile_options *o = &c->options;
    int stages = o->grid.size[GRID_PIPELINE], all = stages * o->chunks;
    if (o->shape.layers < all)
        return status_fail(STATUS_USAGE,
                           "parallel.pipeline x virtual_stages = %d chunks for model.layers = %d: each chunk "
                           "needs a layer; lower parallel.pipeline or parallel.virtual_stages",
                           all, o->shape.layers);
    int *counts = pool_alloc(&c->pool, (size_t)all * sizeof(int));
    if (o->layers_per_chunk) {
        TRY(partition_given(counts, o->layers_per_chunk, all, o->shape.layers, stages, o->chunks));
    } else {
        double layer = 2 * layer_weights(&o->shape) +
                       4.0 * o->shape.heads * o->shape.head_size * mean_keys(&o->shape, o->sequence);
        double head = 2.0 * (double)o->shape.hidden_size * (double)o->shape.vocab_size;
        partition_costs costs = {.first = 0, .last = head / layer};
        TRY(partition_automatic(counts, &costs, o->shape.layers, all));
    }
    *first = pool_alloc(&c->pool, (size_t)o->chunks * sizeof(int));
    *count = pool_alloc(&c->pool, (size_t)o->chunks * sizeof(int));
    int at = 0;
    for (int i = 0; i < all; i++) {
        if (i % stages == o->grid.at[GRID_PIPELINE]) {
            (*first)[i / stages] = at;
            (*count)[i / stages] = counts[i];
            c->stage_layers += counts[i];
        }
        at += counts[i];
    }
    return STATUS_OK;
}

static status check_axes(const grid *g)
{
    for (int i = 0; i < GRID_AXES; i++)
        if (axis_coordinates[i].divides == AXIS_DIVIDES_TOKENS && g->size[i] > 1)
            return status_fail(STATUS_USAGE,
                               "parallel.%s = %d: attention over samples that are divided by tokens is not built yet; "
                               "leave it at 1 and use parallel.tensor with parallel.sequence for long samples",
                               axis_coordinates[i].name, g->size[i]);
    return STATUS_OK;
}

static status build_model(compiled *c)
{
    const compile_options *o = &c->options;
    TRY(check_axes(&o->grid));
    TRY(decoder_check(&o->shape, o->grid.size[GRID_TENSOR]));
    c->options.grid.block[AXIS_KV] = kv_copies(&o->shape, o->grid.size[GRID_TENSOR]);
    int *first = NULL, *count = NULL;
    TRY(divide_layers(c, &first, &count));
    decoder_layout layout = {.compute = o->compute,
                             .chunk_count = o->chunks,
                             .first_layer = first,
                             .layers = count,
                             .total_layers = o->shape.layers,
                             .grid = {.tensor = o->grid.size[GRID_TENSOR],
                                      .tensor_rank = o->grid.at[GRID_TENSOR],
                                      .kv = grid_group_size(&o->grid, AXIS_KV),
                                      .kv_rank = grid_index(&o->grid, AXIS_KV),
                                      .sequence = o->sequence_parallel && o->grid.size[GRID_TENSOR] > 1}};
    decoder_open(&c->model, &c->pool, &o->shape, &layout);
    c->first_stage = c->model.chunks[0].embeds;
    c->last_stage = c->model.chunks[c->model.chunk_count - 1].loses;
    if (c->last_stage)
        c->model.chunks[c->model.chunk_count - 1].loss.loss = &c->inputs.loss;
    storage_describe(c);
    storage_place(c);
    return STATUS_OK;
}

/* ---- programs --------------------------------------------------------------------------------------------------- */

static void count_flops(compiled_program *p)
{
    for (int i = 0; i < p->list.count; i++) {
        const op *o = p->list.ops[i];
        if (o->kind != OP_wait)
            p->flops[o->phase] += op_row_of(o)->cost(o).flops;
    }
}

void compile_forget(compiled *c)
{
    for (int i = 0; i < c->model.parameter_count; i++) {
        parameter *p = c->model.parameters[i];
        p->written = false;
        if (tensor_persistent(&p->weight))
            continue;
        /* gathered at the step's begin: planned with the transient tensors, perhaps before */
        p->weight.base = NULL;
        p->weight.offset = 0;
        p->weight.address = -1;
        p->weight.id = p->weight.first = p->weight.last = -1;
    }
}

status compile_training(compiled_program *out, compiled *c, recompute how, uint8_t *const *drop, bool bound_only)
{
    const compile_options *o = &c->options;
    bool one = o->grid.size[GRID_PIPELINE] == 1; /* every schedule of one stage is the same list */
    schedule s = {0};
    TRY(schedule_make(&s, one ? SCHEDULE_1F1B : o->schedule, o->grid.size[GRID_PIPELINE], o->chunks, o->microbatches));
    bool split = s.kind == SCHEDULE_ZB_H1 && !one;
    recorded *chunks = must_calloc((unsigned long)o->chunks, sizeof *chunks);
    compile_forget(c);
    for (int i = 0; i < o->chunks; i++) {
        unroll_record(&chunks[i], c, i, true, split, how, drop ? drop[i] : NULL);
        unroll_fuse(&chunks[i]);
    }
    update_begin(out, c);
    status ok = unroll(out, c, chunks, &s);
    if (ok == STATUS_OK) {
        update_append(out, c);
        place_waits(out, c);
        place_transients(out, c, bound_only);
        count_flops(out);
    }
    for (int i = 0; i < o->chunks; i++)
        unroll_recorded_free(&chunks[i]);
    free(chunks);
    schedule_free(&s);
    return ok;
}

/* Evaluation of one micro-batch a rank, or decoding of one token: forward bodies only. */
static status compile_forward(compiled_program *out, compiled *c)
{
    const compile_options *o = &c->options;
    recorded *chunks = must_calloc((unsigned long)o->chunks, sizeof *chunks);
    bool gather_each = o->gather_each;
    c->options.gather_each = true; /* the whole weights of a step's begin belong to the training program */
    for (int i = 0; i < o->chunks; i++) {
        unroll_record(&chunks[i], c, i, false, false, RECOMPUTE_NONE, NULL);
        unroll_fuse(&chunks[i]);
    }
    c->options.gather_each = gather_each;
    status ok = unroll_forward(out, c, chunks, 1);
    if (ok == STATUS_OK) {
        if (!o->decode_samples)
            update_loss(out, c);
        place_waits(out, c);
        place_transients(out, c, false);
        count_flops(out);
    }
    for (int i = 0; i < o->chunks; i++)
        unroll_recorded_free(&chunks[i]);
    free(chunks);
    return ok;
}

static void widen(compiled *c, const compiled_program *p)
{
    if (c->persistent_bytes + p->transient_bytes > c->arena_bytes)
        c->arena_bytes = c->persistent_bytes + p->transient_bytes;
}

status compile_model(compiled *out, const compile_options *options)
{
    *out = (compiled){.options = *options};
    TRY(build_model(out));
    out->arena_bytes = out->persistent_bytes;
    return STATUS_OK;
}

bool compile_same_sizes(const compiled *a, const compiled *b)
{
    const grid *x = &a->options.grid, *y = &b->options.grid;
    int64_t tokens = a->options.micro_batch * a->options.sequence, first, rows_x, rows_y;
    shard_rows(&first, &rows_x, tokens, x->size[GRID_TENSOR], x->at[GRID_TENSOR]);
    shard_rows(&first, &rows_y, tokens, y->size[GRID_TENSOR], y->at[GRID_TENSOR]);
    if (rows_x != rows_y || a->model.parameter_count != b->model.parameter_count)
        return false;
    for (int i = 0; i < a->model.parameter_count; i++) {
        const parameter *p = a->model.parameters[i], *q = b->model.parameters[i];
        if (p->rows != q->rows || p->columns != q->columns || p->copied_from != q->copied_from)
            return false;
    }
    return true;
}

int compile_largest_owner(const compiled *c, int64_t *spread)
{
    int largest = 0, ranks = grid_group_size(&c->options.grid, AXIS_GRADIENT);
    int64_t most = -1, least = INT64_MAX;
    for (int i = 0; i < ranks; i++) {
        int64_t bytes = storage_owned_bytes(c, i);
        if (bytes > most) {
            most = bytes;
            largest = i;
        }
        least = bytes < least ? bytes : least;
    }
    *spread = most - least;
    return largest;
}

status compile(compiled *out, const compile_options *options)
{
    TRY(compile_model(out, options));
    if (options->train) {
        TRY(recompute_compile(out));
        widen(out, &out->training);
    }
    if (options->evaluate) {
        TRY(compile_forward(&out->evaluation, out));
        widen(out, &out->evaluation);
    }
    if (options->decode_samples) {
        TRY(compile_forward(&out->decoding, out));
        widen(out, &out->decoding);
    }
    /* What was decided for the neediest rank of the stage by the training program must hold for this one, all told. */
    if (options->train && options->budget > 0 && out->arena_bytes > options->budget)
        return status_fail(
            STATUS_USAGE,
            "memory.budget = %lld bytes: rank %d needs %lld bytes, %lld more; raise the budget, or lower "
            "train.micro_batch",
            (long long)options->budget, options->grid.rank, (long long)out->arena_bytes,
            (long long)(out->arena_bytes - options->budget));
    return STATUS_OK;
}

void compile_free(compiled *c)
{
    program_free(&c->training.list);
    program_free(&c->evaluation.list);
    program_free(&c->decoding.list);
    pool_free(&c->pool);
    *c = (compiled){0};
}

status compile_options_from(compile_options *out, const config *c, const grid *g, const op_backend *backend,
                            int threads)
{
    static const dtype types[] = {[CONFIG_FP32] = DTYPE_FP32, [CONFIG_BF16] = DTYPE_BF16, [CONFIG_FP16] = DTYPE_FP16};
    static const schedule_kind kinds[] = {[CONFIG_GPIPE] = SCHEDULE_GPIPE,
                                          [CONFIG_1F1B] = SCHEDULE_1F1B,
                                          [CONFIG_INTERLEAVED] = SCHEDULE_INTERLEAVED,
                                          [CONFIG_ZB_H1] = SCHEDULE_ZB_H1};
    static const recompute ways[] = {
        [CONFIG_KEEP] = RECOMPUTE_NONE, [CONFIG_SELECTIVE] = RECOMPUTE_SELECTIVE, [CONFIG_FULL] = RECOMPUTE_FULL};
    int data = grid_group_size(g, AXIS_SAMPLES);
    *out = (compile_options){.shape = c->model.shape,
                             .compute = types[c->train.precision],
                             .sequence = c->train.sequence,
                             .micro_batch = c->train.micro_batch,
                             .microbatches = c->train.global_batch / (c->train.micro_batch * data),
                             .document_mask = c->data.document_mask,
                             .grid = *g,
                             .schedule = kinds[c->parallel.schedule],
                             .chunks = g->size[GRID_PIPELINE] > 1 ? c->parallel.virtual_stages : 1,
                             .layers_per_chunk =
                                 c->parallel.layers_per_stage.count ? c->parallel.layers_per_stage.item : NULL,
                             .sequence_parallel = c->parallel.sequence,
                             .zero = c->parallel.zero,
                             .gather_each = c->parallel.zero_gather == CONFIG_EACH_MICRO_BATCH,
                             .reduce_each = c->parallel.zero_reduce == CONFIG_EACH_MICRO_BATCH,
                             .recompute = ways[c->memory.recompute],
                             .budget = c->memory.budget,
                             .backend = backend,
                             .threads = threads,
                             .train = true,
                             .evaluate = true};
    if (out->microbatches < 1)
        return status_fail(STATUS_USAGE, "train.global_batch = %d holds no micro-batch of %d for each of %d data ranks",
                           c->train.global_batch, c->train.micro_batch, data);
    return STATUS_OK;
}
