#include "models/decoder.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels/heads.h"
#include "memory/log.h"
#include "models/names.h"

/* Padding adds a 32nd at most to a vocabulary, so that ranks divide its gradient and its state evenly. */
enum { VOCABULARY_MULTIPLE = 64, VOCABULARY_PADDED = 32 };

/* The standard deviation of initial weights. */
#define DEVIATION 0.02f

/* State of the building of one parameter. */
typedef struct builder {
    decoder *d;
    pool *pool;
    const decoder_layout *layout;
    int layer;         /* -1: of none */
    int expert;        /* index of the expert being stacked; -1: none */
    layer_shape shape; /* shape of `layer` */
    int chunk, number, capacity;
    int tensor, rank;
    int states, attending; /* numbers in the blocks so far: decoding states, and blocks that attend */
} builder;

static void enter_layer(builder *b, int layer)
{
    b->layer = layer;
    b->shape = shape_layer(&b->d->shape, layer);
}

static void append_parameter(builder *b, parameter *p)
{
    decoder *d = b->d;
    if (d->parameter_count == b->capacity) {
        int capacity = b->capacity ? 2 * b->capacity : 64;
        parameter **longer = pool_alloc(b->pool, (size_t)capacity * sizeof *longer);
        for (int i = 0; i < d->parameter_count; i++)
            longer[i] = d->parameters[i];
        d->parameters = longer;
        b->capacity = capacity;
    }
    d->parameters[d->parameter_count++] = p;
}

/* ---- a rank's part of a size -------------------------------------------------------------------------------- */

/* Elements along one side of a weight: this rank's, from `first` of the model's `all`. */
typedef struct extent {
    int64_t all, first, real, width; /* width: with padding. `real` is 0 or less where all is padding */
    bool copied;                     /* other ranks have the same elements */
} extent;

static int64_t rounded_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

int64_t decoder_vocabulary_rows(const model_shape *shape, int ranks, int shards)
{
    int64_t rows = rounded_up((shape->vocab_size + ranks - 1) / ranks, VOCABULARY_MULTIPLE), both = VOCABULARY_MULTIPLE;
    while (both % shards)
        both += VOCABULARY_MULTIPLE;
    int64_t even = rounded_up(rows, both);
    return even - rows <= rows / VOCABULARY_PADDED ? even : rows;
}

/* Returns part `index` of `all`, which is cut into equal parts of `width` each. */
static extent padded_part(int64_t all, int64_t width, int64_t index)
{
    extent e = {.all = all, .first = width * index, .width = width};
    e.real = all - e.first < width ? all - e.first : width;
    return e;
}

/* Returns this rank's part of the vocabulary, which the tensor ranks divide, of one stage or of all. */
static extent vocabulary_part(const builder *b)
{
    const axis_group *group = b->layout->grid.group, *stages = &group[AXIS_VOCABULARY];
    int64_t rows = decoder_vocabulary_rows(&b->d->shape, b->tensor * stages->ranks, group[AXIS_GRADIENT].ranks);
    return padded_part(b->d->shape.vocab_size, rows, b->rank + b->tensor * stages->rank);
}

/* Returns this rank's part, in whole heads. */
static extent heads_part(const builder *b, parts_extent heads)
{
    const int32_t count = (int32_t)heads.count;
    extent e = {.all = heads.count * heads.unit, .first = heads.count * b->rank / b->tensor * heads.unit};
    e.real = e.width = heads_of_rank(count, b->tensor) * heads.unit;
    e.copied = heads_copies(count, b->tensor) > 1;
    return e;
}

static extent part_of(const builder *b, parts_size size, bool divided)
{
    parts_extent e = parts_extent_of(size, &b->d->shape, &b->shape);
    int64_t all = e.count * e.unit;
    if (!divided)
        return (extent){.all = all, .real = all, .width = all};
    switch (e.rule) {
    case PARTS_RULE_HEADS:
        return heads_part(b, e);
    case PARTS_RULE_PADDED:
        return padded_part(all, (all + b->tensor - 1) / b->tensor, b->rank);
    case PARTS_RULE_VOCABULARY:
        return vocabulary_part(b);
    case PARTS_RULE_WHOLE:
        break;
    }
    MUST(0, "no weight is divided along size %d", (int)size);
}

/* ---- parameters ---------------------------------------------------------------------------------------------- */

static placement placement_of(const builder *b, parts_divided divided)
{
    const placement divisions[] = {
        [PARTS_ROWS] = place_shard(0),
        [PARTS_COLUMNS] = place_shard(1),
        [PARTS_STREAM] = b->layout->grid.sequence ? place_shared() : place_replicate(),
        [PARTS_COUNTED] = b->layout->grid.sequence ? place_shared() : place_replicate(),
        [PARTS_SHARED] = place_shared(),
        [PARTS_FIRST_RANK] = place_partial(),
        [PARTS_EXPERTS] = place_replicate(), /* and along AXIS_EXPERT a tensor of its own for each rank */
    };
    return b->tensor == 1 ? place_replicate() : divisions[divided];
}

/* Notes that rows from `from` on are on the other ranks along an axis, too. */
static void add_copies(parameter *p, axis along, int64_t from)
{
    MUST(p->copy_count < PARAMETER_COPIES, "%s: too many copies", p->name);
    p->copies[p->copy_count++] = (parameter_copies){along, from};
}

/* Notes the same, and that the gradient is the sum of theirs. */
static void add_summed_copies(parameter *p, axis along, int64_t from)
{
    add_copies(p, along, from);
    p->sums |= axis_slots(along);
}

/* Makes a parameter without its pieces, like the weight that begins it. */
static parameter *new_parameter(builder *b, const parts_row *row, const char *label)
{
    const bool offset = b->shape.traits >> TRAIT_NORM_OFFSET & 1;
    const parameter_init inits[] = {INIT_NORMAL, INIT_NORMAL, INIT_ZERO, offset ? INIT_ZERO : INIT_ONE};
    parameter *p = pool_alloc(b->pool, sizeof *p);
    p->name = b->layer >= 0 ? pool_format(b->pool, "layer %d/%s", b->layer, label) : label;
    p->vector = row->columns == PARTS_SIZE_VECTOR;
    p->of_block = b->layer >= 0;
    p->place = place_along(AXIS_COORDINATE_TENSOR, placement_of(b, row->divided));
    p->counted = row->divided == PARTS_COUNTED;
    const bool everywhere = row->divided == PARTS_STREAM || row->divided == PARTS_SHARED || p->counted;
    if (b->tensor > 1 && everywhere)
        add_copies(p, AXIS_TENSOR, 0);
    const axis_group *group = b->layout->grid.group;
    p->replicas = row->divided == PARTS_EXPERTS ? AXIS_EXPERT_DATA : AXIS_GRADIENT;
    /* True where tensor ranks have all tokens, and compute all experts: in generation. */
    bool alike = row->divided == PARTS_EXPERTS && b->tensor > 1 && !b->layout->grid.sequence;
    for (int i = 0; i < AXIS_SLOTS; i++) {
        if (!alike && group[p->replicas].slots >> i & 1)
            p->place.along[i] = place_shared();
        p->sums |= (unsigned)(p->place.along[i].kind == PLACE_SHARED) << i;
    }
    p->decay = row->decays;
    p->init = inits[row->initial];
    p->deviation = row->initial == PARTS_RESIDUAL ? DEVIATION / sqrtf(2.0f * (float)b->d->shape.layers) : DEVIATION;
    p->chunk = b->chunk;
    p->number = b->number++;
    p->shares = -1;
    append_parameter(b, p);
    return p;
}

/* Describes the place of a weight's rows and columns in the tensor of its name. Its matrices are [out, in] here,
 * whatever the file's order. */
static void describe_piece(const builder *b, parameter_block *q, parts_slot slot, extent rows, extent columns)
{
    names_span span = names_span_of(slot, &b->d->shape, &b->shape);
    bool vector = parts_row_of(slot)->columns == PARTS_SIZE_VECTOR;
    rectangle *of = &q->of;
    char name[NAMES_BYTES];
    of->name = pool_format(b->pool, "%s", names_write(name, b->d->shape.architecture, slot, b->layer, b->expert));
    of->dims = vector ? 1 : 2;
    q->transposed = names_transposed(b->d->shape.architecture, slot);
    int out = q->transposed, in = !out;
    of->global[out] = span.rows;
    of->part.start[out] = span.first + rows.first / span.unit * span.stride + rows.first % span.unit;
    of->part.size[out] = rows.real > 0 ? rows.real : 0;
    if (!vector) {
        of->global[in] = columns.all;
        of->part.start[in] = columns.first;
        of->part.size[in] = columns.real > 0 ? columns.real : 0;
    }
    if (b->expert < 0 || names_by_expert(b->d->shape.architecture, slot))
        return;
    q->stacked = b->shape.experts; /* stacked along the file's first dimension */
    of->part.start[0] += b->expert * of->global[0];
    of->global[0] *= q->stacked;
}

/* Adds the pieces of a weight that its array has from row (of a vector: element) `at` on. A vector has none where all
 * is padding, a matrix an empty one: every rank of a tensor group has the same matrices. */
static void add_pieces(const builder *b, parameter *p, parts_slot slot, extent rows, extent columns, int64_t at)
{
    names_span span = names_span_of(slot, &b->d->shape, &b->shape);
    int64_t from = 0;
    if (p->vector && rows.real <= 0)
        return;
    do {
        /* the part within one piece of the named tensor: it ends at most at the end of its unit */
        int64_t left = span.unit - (rows.first + from) % span.unit, count = rows.real - from;
        extent part = {.first = rows.first + from, .real = count < left ? count : left};
        parameter_block *q = &p->pieces[p->piece_count++];
        describe_piece(b, q, slot, part, columns);
        *(p->vector ? &q->column : &q->row) = at + from;
        from += part.real;
    } while (from < rows.real);
}

/* Adds a weight to the rows (of a vector: elements) of its array. */
static void stack_weight(const builder *b, parameter *p, parts_slot slot)
{
    const parts_row *row = parts_row_of(slot);
    extent rows = part_of(b, row->rows, row->divided == PARTS_ROWS);
    extent columns = part_of(b, row->columns, row->divided == PARTS_COLUMNS);
    int64_t at = p->vector ? p->columns : p->rows;
    add_pieces(b, p, slot, rows, columns, at);
    if (row->rows == PARTS_SIZE_VOCABULARY && b->layout->grid.group[AXIS_VOCABULARY].ranks > 1)
        p->place.along[AXIS_COORDINATE_PIPELINE] = place_shard(0);
    if (rows.copied && !(p->sums & axis_slots(AXIS_KV)))
        add_summed_copies(p, AXIS_KV, at);
    p->rows = p->vector ? 1 : at + rows.width;
    p->columns = p->vector ? at + rows.width : columns.width;
}

/* Builds the array of the weights in `slots`, neighbours in parts.def, of which the layer has the first: once, or once
 * for each expert that the rank has. */
static parameter *build_array(builder *b, const parts_slot *slots, int count, const char *label)
{
    parameter *p = new_parameter(b, parts_row_of(slots[0]), label);
    int64_t most = 0, first = -1, times = 1;
    if (parts_row_of(slots[0])->divided == PARTS_EXPERTS)
        recorder_part(&first, &times, &b->layout->grid, AXIS_EXPERT, b->shape.experts);
    for (int i = 0; i < count; i++) {
        const parts_row *row = parts_row_of(slots[i]);
        int64_t unit = names_span_of(slots[i], &b->d->shape, &b->shape).unit;
        most += times * (part_of(b, row->rows, row->divided == PARTS_ROWS).width / unit + 2);
    }
    p->pieces = pool_alloc(b->pool, (size_t)most * sizeof *p->pieces);
    for (b->expert = (int)first; b->expert < first + times; b->expert++)
        for (int i = 0; i < count; i++)
            stack_weight(b, p, slots[i]);
    b->expert = -1;
    return p;
}

/* ---- places -------------------------------------------------------------------------------------------------- */

/* Offsets of the weights' arrays in the structs of their places. */
#define STRUCT_EMBEDDING embedding_layer
#define STRUCT_FIRST     embedding_layer
#define STRUCT_BLOCK     block_layer
#define STRUCT_LAST      loss_layer
#define STRUCT_HEAD      loss_layer
static const size_t members[SLOT_COUNT] = {
#define PART(slot, place, member, ...) [SLOT_##slot] = offsetof(STRUCT_##place, member),
#include "models/parts.def"
};

static parts_place place_of(int slot)
{
    return parts_row_of((parts_slot)slot)->place;
}

/* Builds the weights of a struct, for the layer that the builder is in. */
static void build_place(builder *b, parts_place place, void *into)
{
    for (int i = 0; i < SLOT_COUNT;) {
        parts_slot slots[SLOT_COUNT];
        int first = i, count = 0;
        for (; i < SLOT_COUNT && place_of(i) == place_of(first) && members[i] == members[first]; i++)
            if (place_of(i) == place && parts_in((parts_slot)i, &b->shape))
                slots[count++] = (parts_slot)i;
        if (count == 0)
            continue;
        const parts_row *row = parts_row_of(slots[0]);
        if (row->divided == PARTS_FIRST_RANK && b->rank > 0)
            b->number++; /* the other ranks have its number only */
        else
            *(const parameter **)(void *)((char *)into + members[first]) = build_array(b, slots, count, row->label);
    }
}

static float norm_offset(const layer_shape *l)
{
    return (float)(l->traits >> TRAIT_NORM_OFFSET & 1);
}

capacity_shape decoder_capacity(const model_shape *shape)
{
    return (capacity_shape){.experts = shape->experts,
                            .active = shape->experts_per_token,
                            .capacity = shape->expert_capacity,
                            .spill = shape->expert_spill,
                            .drop = shape->expert_drop};
}

/* Returns the mixers of a layer, 1 << MIXER_name each. */
static unsigned mixers_of(const layer_shape *layer)
{
    unsigned mixers = 0;
#define HAS(name)                         UINT64_C(1) << TRAIT_##name
#define MIXER(name, sublayer, needs, ...) mixers |= (unsigned)((layer->traits & (needs)) != 0) << MIXER_##name;
#include "layers/mixers.def"
#undef HAS
    return mixers;
}

decoder_crossing decoder_crossing_of(const model_shape *shape)
{
    for (int i = 0; i < shape->layers; i++) {
        const layer_shape layer = shape_layer(shape, i);
        const unsigned mixers = mixers_of(&layer);
        for (int m = 0; m < MIXER_COUNT; m++)
            if (mixers >> m & 1 && layer_mixers[m].crossing != CROSSING_NOTHING)
                return (decoder_crossing){i, layer_mixers[m].crossing};
    }
    return (decoder_crossing){-1, CROSSING_NOTHING};
}

static void build_sublayers(builder *b, block_layer *block)
{
    const unsigned mixers = mixers_of(&b->shape);
    const float offset = norm_offset(&b->shape);
    for (int m = 0; m < MIXER_COUNT; m++)
        block->sub[layer_mixers[m].sublayer].mixers |= mixers & 1u << m;
    for (int i = 0; i < LAYER_SUBLAYERS; i++) {
        block->sub[i].norm.offset = block->sub[i].post_norm.offset = offset;
        block->sub[i].joins = i > 0 && b->shape.traits >> TRAIT_PARALLEL & 1;
    }
    layer_state kept[LAYER_STATES];
    block->state = b->states;
    b->states += layer_states(kept, block);
    block->attention.index = b->attending;
    b->attending += layer_attends(block);
}

static void build_block(builder *b, block_layer *block)
{
    const layer_shape *l = &b->shape;
    build_place(b, PARTS_AT_BLOCK, block);
    block->attention.heads = (int)(part_of(b, PARTS_SIZE_QUERY, true).width / l->head_size);
    block->attention.kv_heads = (int)(part_of(b, PARTS_SIZE_KEY, true).width / l->head_size);
    block->attention.head_size = l->head_size;
    block->attention.v_head_size = shape_value_size(l);
    block->attention.latent.rank = l->kv_lora_rank;
    block->attention.latent.rotated = l->rope_head_size;
    block->attention.window = (int)l->window;
    const double factor = shape_scores_factor(&b->d->shape), own = l->attention_multiplier;
    block->attention.multiplier = factor == 1 ? own : factor * (own != 0 ? own : 1 / sqrt((double)l->head_size));
    block->attention.cap = l->attention_cap;
    block->multiplier = l->residual_multiplier;
    block->attention.rotary = l->rope_theta > 0;
    block->attention.interleaved = l->traits >> TRAIT_INTERLEAVED & 1;
    block->attention.shared = b->d->shape.kv_heads < b->d->shape.heads;
    block->attention.local = l->local;
    block->mlp.gated = l->traits >> TRAIT_GATED & 1;
    block->mlp.gelu = l->traits >> TRAIT_GELU_GATE & 1;
    block->mlp.exact = l->traits >> TRAIT_EXACT_GELU & 1;
    block->experts.gelu = block->mlp.gelu;
    block->experts.fp32_logits = l->traits >> TRAIT_FP32_ROUTER & 1;
    block->experts.limit = l->swiglu_limit;
    block->experts.slope = l->swiglu_alpha;
    block->experts.capacity = decoder_capacity(&b->d->shape);
    block->experts.index = shape_routers_before(&b->d->shape, b->layer);
    block->experts.routing = (op_routing){.experts = l->experts,
                                          .active = l->experts_per_token,
                                          .groups = l->router_groups,
                                          .groups_kept = l->router_groups_kept,
                                          .group_best = l->router_groups == 0                  ? 0
                                                        : l->traits >> TRAIT_GROUP_MAXIMUM & 1 ? 1
                                                                                               : 2,
                                          .scale = l->router_scale > 0 ? (float)l->router_scale : 1,
                                          .sigmoid = l->traits >> TRAIT_SIGMOID_ROUTER & 1,
                                          .renormalise = l->router_renormalise};
    const float offset = norm_offset(l);
    block->attention.norm_offset = offset;
    block->mtp.enorm.offset = block->mtp.hnorm.offset = block->mtp.norm.offset = offset;
    block->attention.width_norm = l->traits >> TRAIT_QK_WIDTH_NORM & 1;
    build_sublayers(b, block);
}

static parameter *build_table(builder *b, parts_slot slot, const char *label)
{
    enter_layer(b, -1);
    return build_array(b, &slot, 1, label);
}

static embedding_layer build_embedding(builder *b)
{
    parameter *table = build_table(b, SLOT_EMBEDDING, parts_row_of(SLOT_EMBEDDING)->label);
    const model_shape *s = &b->d->shape;
    const bool both = s->tied_embeddings || s->mtp_layers > 0; /* the head reads it, or the MTP module */
    if (both && b->layout->grid.ends_apart)
        add_summed_copies(table, AXIS_TIE, 0);
    return (embedding_layer){.table = table, .first = vocabulary_part(b).first};
}

/* Copies the first chunk's table for the last chunk, with a gradient of its own, which is summed with the other's. */
static parameter *build_copy(builder *b, const parameter *embedding, const char *label)
{
    parameter *copy = build_table(b, SLOT_EMBEDDING, label);
    if (embedding)
        copy->shares = embedding->number;
    else
        add_summed_copies(copy, AXIS_TIE, 0);
    return copy;
}

/* True if one chunk has both ends, and they are not divided. */
static bool embeddings_are_tied(const builder *b, const parameter *embedding)
{
    const recorder_grid *g = &b->layout->grid;
    return embedding && !g->ends_folded && g->group[AXIS_VOCABULARY].ranks == 1;
}

/* A head that is tied is the embedding itself where one chunk has both and they are not divided. */
static void build_head(builder *b, loss_layer *l, const parameter *embedding)
{
    const char *label = parts_row_of(SLOT_HEAD)->label;
    bool tied = b->d->shape.tied_embeddings;
    extent rows = vocabulary_part(b);
    l->first = rows.first;
    l->count = rows.real > 0 ? rows.real : 0;
    l->chunk_tokens = b->layout->loss_tokens;
    l->cap = b->d->shape.logits_cap;
    if (!tied)
        l->head = build_table(b, SLOT_HEAD, label);
    else
        l->head = embeddings_are_tied(b, embedding) ? embedding : build_copy(b, embedding, label);
}

/* Builds the MTP module. Its table is the embedding itself where one chunk has both, a tied head, or a copy like that;
 * none where all stages divide it. */
static void build_mtp(builder *b, decoder_chunk *chunk, const parameter *embedding)
{
    const decoder *d = b->d;
    const parameter *table = d->vocabulary                       ? NULL
                             : d->shape.tied_embeddings          ? chunk->loss.head
                             : embeddings_are_tied(b, embedding) ? embedding
                                                                 : build_copy(b, embedding, "mtp/embedding");
    chunk->mtp = (mtp_module){
        .number = d->shape.layers,
        .block = &chunk->blocks[chunk->layers],
        .embedding = {.table = table, .first = vocabulary_part(b).first, .multiplier = d->shape.embedding_multiplier}};
}

static void build_chunk(builder *b, decoder_chunk *chunk, const parameter **embedding)
{
    decoder *d = b->d;
    if (chunk->has_embedding && !d->vocabulary) {
        chunk->embedding = build_embedding(b);
        *embedding = chunk->embedding.table;
    }
    enter_layer(b, -1);
    if (chunk->has_embedding) {
        build_place(b, PARTS_AT_FIRST, &chunk->embedding);
        chunk->embedding.multiplier = d->shape.embedding_multiplier;
        chunk->embedding.rounds = shape_has_key(d->shape.architecture, KEY_SCALED_EMBEDDING);
    }
    chunk->block_count = chunk->layers + (chunk->has_loss ? d->shape.mtp_layers : 0);
    chunk->blocks = pool_alloc(b->pool, (size_t)chunk->block_count * sizeof(block_layer));
    for (int i = 0; i < chunk->block_count; i++) {
        enter_layer(b, chunk->first_layer + i);
        build_block(b, &chunk->blocks[i]);
    }
    enter_layer(b, -1);
    if (chunk->has_loss) {
        build_place(b, PARTS_AT_LAST, &chunk->loss);
        chunk->loss.norm.offset = norm_offset(&b->shape);
        chunk->loss.multiplier = d->shape.logits_scaling != 0 ? 1 / d->shape.logits_scaling : 0;
    }
    if (chunk->has_loss && !d->vocabulary)
        build_head(b, &chunk->loss, *embedding);
    if (chunk->block_count > chunk->layers)
        build_mtp(b, chunk, *embedding);
}

void decoder_open(decoder *d, pool *p, const model_shape *shape, const decoder_layout *layout)
{
    *d = (decoder){.shape = *shape, .chunk_count = layout->chunk_count};
    d->chunks = pool_alloc(p, (size_t)layout->chunk_count * sizeof(decoder_chunk));
    builder b = {.d = d, .pool = p, .layout = layout};
    b.tensor = layout->grid.group[AXIS_TENSOR].ranks;
    b.rank = layout->grid.group[AXIS_TENSOR].rank;
    const parameter *embedding = NULL;
    if (layout->grid.group[AXIS_VOCABULARY].ranks > 1) {
        d->vocabulary = pool_alloc(p, sizeof *d->vocabulary);
        b.chunk = layout->chunk_count;
        d->vocabulary->embedding = build_embedding(&b);
        embedding = d->vocabulary->embedding.table;
    }
    for (int c = 0; c < layout->chunk_count; c++) {
        decoder_chunk *chunk = &d->chunks[c];
        b.chunk = c;
        chunk->first_layer = layout->first_layer[c];
        chunk->layers = layout->layers[c];
        chunk->has_embedding = c == layout->first_chunk;
        chunk->has_loss = c == layout->last_chunk;
        build_chunk(&b, chunk, &embedding);
    }
    b.chunk = layout->chunk_count;
    if (d->vocabulary)
        build_head(&b, &d->vocabulary->loss, embedding);
    d->numbers = b.number;
    d->states = b.states;
    d->attending = b.attending;
}

/* ---- recording ----------------------------------------------------------------------------------------------- */

static stream record_blocks(recorder *r, const decoder_chunk *c, const layer_inputs *in, tensor *input)
{
    stream s = {.sum = input};
    if (in->router_over == LAYER_BALANCE_POOLED) {
        s.routers = pool_alloc(r->pool, sizeof *s.routers);
        *s.routers = (router_pool){.logits = pool_alloc(r->pool, (size_t)c->layers * sizeof(tensor *))};
    }
    if (c->has_embedding)
        s.sum = layer_embedded(r, &c->embedding, in, input ? input : layer_embed(r, &c->embedding, in->tokens));
    recorder_keep(s.sum);
    for (int i = 0; i < c->layers; i++) {
        recorder_layer(r, c->first_layer + i);
        layer_block(r, &s, &c->blocks[i], in);
    }
    recorder_layer(r, -1);
    if (s.routers)
        s.delta = layer_pooled_losses(r, in, s.routers, s.delta);
    return s;
}

int decoder_passes(const decoder *d, bool training)
{
    return training ? shape_head_passes(&d->shape) : 1;
}

void decoder_forward(recorder *r, tensor *out[LAYER_HEAD_PASSES], const decoder *d, int chunk, const layer_inputs *in,
                     tensor *const input[LAYER_HEAD_PASSES])
{
    const decoder_chunk *c = &d->chunks[chunk];
    const mtp_module *mtp = in->mtp && c->mtp.block ? &c->mtp : NULL;
    r->sites = LAYER_BLOCK_SITES * c->first_layer + (c->has_embedding ? 0 : LAYER_EMBEDDING_SITES);
    stream s = record_blocks(r, c, in, input[0]);
    out[0] = out[1] = NULL;
    if (c->has_loss && d->vocabulary)
        layer_last(r, out, &s, &c->loss, mtp, in, input[1]);
    else if (c->has_loss)
        layer_loss(r, &s, &c->loss, mtp, in);
    else
        out[0] = s.delta ? record_add(r, "hand over", s.sum, s.delta) : s.sum;
}

tensor *decoder_embed(recorder *r, const decoder *d, int pass, const layer_inputs *in)
{
    return layer_embed(r, &d->vocabulary->embedding, pass == 0 ? in->tokens : in->targets);
}

tensor *decoder_logits(recorder *r, const decoder *d, int chunk, const layer_inputs *in, tensor *input)
{
    const decoder_chunk *c = &d->chunks[chunk];
    MUST(c->has_loss && !d->vocabulary, "chunk %d has no head", chunk);
    stream s = record_blocks(r, c, in, input);
    return layer_logits(r, &s, &c->loss, in);
}
