#include "engine/compile/model/compile_model.h"

#include <stdlib.h>

#include "engine/compile/model/flops.h"
#include "engine/compile/model/storage.h"
#include "engine/compile/model/tokens.h"
#include "kernels/heads.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/partition.h"

schedule_kind compile_schedule_kind(const compile_options *o)
{
    return schedule_kind_over(o->layout.schedule, o->grid.size[GRID_PIPELINE]);
}

chunk_map compile_chunks(const compile_options *o)
{
    const schedule_kind kind = compile_schedule_kind(o);
    MUST(o->found || kind != SCHEDULE_AUTO, "which schedule was found?");
    return (chunk_map){.stages = o->grid.size[GRID_PIPELINE],
                       .chunks = o->layout.virtual_stages,
                       .folded = kind == SCHEDULE_AUTO ? o->found->folded : schedule_kind_folds(kind)};
}

/* ---- layers over chunks ----------------------------------------------------------------------------------------- */

bool compile_divides_vocabulary(const compile_options *o)
{
    return config_divides_vocabulary(&o->layout, o->grid.size[GRID_PIPELINE]);
}

/* Divides layers by the FLOPs of their forward pass, in units of the first layer's, plus the head's on the last
 * chunk. */
static status divide_by_cost(int *counts, const compile_options *o, int all)
{
    RELEASED_BY(flops_close) flops_model f = {0};
    flops_open(&f, &o->shape, o->sequence);
    double unit = f.kinds[0].products + f.kinds[0].attention;
    AUTO_FREE double *layers = must_alloc((unsigned long)o->shape.layers * sizeof *layers);
    for (int i = 0; i < o->shape.layers; i++) {
        const flops_layer *l = &f.kinds[f.kind_of[i]];
        layers[i] = (l->products + l->attention) / unit;
    }
    const double heads = compile_divides_vocabulary(o) ? 0 : shape_head_passes(&o->shape) * f.head;
    partition_costs costs = {.layers = layers, .last = (heads + f.mtp.products + f.mtp.attention) / unit};
    return partition_automatic(counts, &costs, o->shape.layers, all);
}

status compile_divide_layers(int *counts, const compile_options *o)
{
    const config_integers *given = &o->layout.layers_per_stage;
    int stages = o->grid.size[GRID_PIPELINE], chunks = o->layout.virtual_stages;
    return given->count ? partition_given(counts, given->item, given->count, o->shape.layers, stages, chunks)
                        : divide_by_cost(counts, o, stages * chunks);
}

static status divide_layers(compiled *c, int **first, int **count, int *const ends[2])
{
    const compile_options *o = &c->options;
    int all = o->grid.size[GRID_PIPELINE] * o->layout.virtual_stages, at = 0;
    int *counts = pool_alloc(&c->pool, (size_t)all * sizeof(int));
    TRY(compile_divide_layers(counts, o));
    *first = pool_alloc(&c->pool, (size_t)o->layout.virtual_stages * sizeof(int));
    *count = pool_alloc(&c->pool, (size_t)o->layout.virtual_stages * sizeof(int));
    chunk_map map = compile_chunks(o);
    *ends[0] = *ends[1] = -1;
    for (int i = 0; i < all; i++) {
        if (chunk_map_stage(map, i) == o->grid.at[GRID_PIPELINE]) {
            *ends[0] = i == 0 ? chunk_map_chunk(map, i) : *ends[0];
            *ends[1] = i == all - 1 ? chunk_map_chunk(map, i) : *ends[1];
            (*first)[chunk_map_chunk(map, i)] = at;
            (*count)[chunk_map_chunk(map, i)] = counts[i];
            c->stage_layers += counts[i];
        }
        at += counts[i];
    }
    return STATUS_OK;
}

static recorder_grid ranks_around(const compile_options *o)
{
    const grid *g = &o->grid;
    chunk_map map = compile_chunks(o);
    bool folded = chunk_map_stage(map, map.stages * map.chunks - 1) == 0; /* the last chunk is where the first is */
    bool divided = compile_divides_vocabulary(o), apart = g->size[GRID_PIPELINE] > 1 && !divided;
    recorder_grid around = {.ends_apart = apart && !folded,
                            .ends_folded = apart && folded,
                            .sequence = o->layout.sequence && g->size[GRID_TENSOR] > 1};
    for (int a = 0; a < AXIS_COUNT; a++)
        around.group[a] = grid_group(g, (axis)a);
    if (!divided)
        around.group[AXIS_VOCABULARY] = (axis_group){.ranks = 1};
    for (int i = 0; i < GRID_AXES; i++)
        around.divided |= (unsigned)(g->size[i] > 1 && axis_divides_activations(i)) << i;
    return around;
}

static status build_model(compiled *c)
{
    const compile_options *o = &c->options;
    TRY(config_check_sizes(&o->shape, o->grid.size, o->layout.virtual_stages, o->sequence));
    c->options.grid.block[AXIS_KV] = heads_copies(o->shape.kv_heads, o->grid.size[GRID_TENSOR]);
    config_set_expert_blocks(&c->options.grid, &o->layout);
    int *first = NULL, *count = NULL, first_chunk, last_chunk;
    TRY(divide_layers(c, &first, &count, (int *const[]){&first_chunk, &last_chunk}));
    c->around = ranks_around(&c->options);
    decoder_layout layout = {.compute = precision_compute(o->precision),
                             .chunk_count = o->layout.virtual_stages,
                             .first_layer = first,
                             .layers = count,
                             .first_chunk = first_chunk,
                             .last_chunk = last_chunk,
                             .grid = c->around,
                             .loss_tokens = o->loss_tokens};
    decoder_open(&c->model, &c->pool, &o->shape, &layout);
    c->first_stage = c->model.chunks[0].has_embedding;
    c->last_stage = c->model.chunks[c->model.chunk_count - 1].has_loss;
    storage_describe(c);
    storage_place(c);
    return STATUS_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- */

status compile_model(compiled *out, const compile_options *options)
{
    *out = (compiled){.options = *options};
    if (!out->options.loss_tokens)
        out->options.loss_tokens = loss_chunk_by_price(options);
    TRY(build_model(out));
    out->arena_bytes = out->persistent_bytes;
    return STATUS_OK;
}

bool compile_same_sizes(const compiled *a, const compiled *b)
{
    token_counts x = tokens_count(&a->options), y = tokens_count(&b->options);
    if (x.rank != y.rank || x.between != y.between || a->model.parameter_count != b->model.parameter_count)
        return false;
    for (int i = 0; i < a->model.parameter_count; i++) {
        const parameter *p = a->model.parameters[i], *q = b->model.parameters[i];
        if (!parameter_same_sizes(p, q))
            return false;
    }
    return true;
}

int compile_largest_owner(const compiled *c, int64_t *spread)
{
    int largest = 0, ranks = grid_group_size(&c->options.grid, AXIS_GRADIENT);
    int64_t most = -1, least = INT64_MAX;
    for (int i = 0; i < ranks; i++) {
        const grid of = grid_for_rank(&c->options.grid, grid_member(&c->options.grid, AXIS_GRADIENT, i));
        int64_t bytes = storage_owned_bytes(c, &of);
        if (bytes > most) {
            most = bytes;
            largest = i;
        }
        least = bytes < least ? bytes : least;
    }
    *spread = most - least;
    return largest;
}

status compile_model_largest(compiled *largest, const compile_options *options)
{
    compile_options o = *options;
    int64_t spread;
    o.grid = grid_for_rank(&o.grid, grid_member(&o.grid, AXIS_TENSOR, 0));
    o.grid = grid_for_rank(&o.grid, grid_member(&o.grid, AXIS_GRADIENT, 0));
    TRY(compile_model(largest, &o));
    int owner = compile_largest_owner(largest, &spread);
    if (owner == 0)
        return STATUS_OK;
    compile_free(largest);
    o.grid = grid_for_rank(&o.grid, grid_member(&o.grid, AXIS_GRADIENT, owner));
    return compile_model(largest, &o);
}

void compile_program_free(compiled_program *p)
{
    program_free(&p->list);
    pool_free(&p->pool);
    *p = (compiled_program){0};
}

const compiled_program *compile_program_at(const compiled *c, int i)
{
    const compiled_program *const first[] = {&c->training, &c->evaluation, &c->decoding, &c->gathers};
    if (i < 4)
        return first[i];
    i -= 4;
    return i < COMPILE_RAMP ? &c->ramp[i]
                            : &c->higher[(i - COMPILE_RAMP) / COMPILE_HIGHER][(i - COMPILE_RAMP) % COMPILE_HIGHER];
}

const compiled_program *compile_program_of(const compiled *c, int microbatches, int bucket)
{
    for (int i = 0; i <= COMPILE_RAMP; i++)
        if ((i == 0 ? c->options.microbatches : c->options.ramp[i - 1]) == microbatches)
            return bucket > 0 ? &c->higher[i][bucket - 1] : i == 0 ? &c->training : &c->ramp[i - 1];
    MUST(0, "no training program of %d micro-batches", microbatches);
}

void compile_free(compiled *c)
{
    for (int i = 0; i < COMPILE_PROGRAMS; i++)
        compile_program_free((compiled_program *)compile_program_at(c, i));
    schedule_free(c->found);
    pool_free(&c->pool);
    *c = (compiled){0};
}
