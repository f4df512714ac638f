#include "models/decoder.h"

#include <math.h>
#include <string.h>

#include "memory/log.h"
#include "models/names.h"

/* A vocabulary is padded by a 32nd, at most, to be divided evenly by those who share its gradient and its state. */
enum { VOCABULARY_MULTIPLE = 64, VOCABULARY_PADDED = 32 };

/* Everything the building of one parameter needs to know. */
typedef struct builder {
    decoder *d;
    pool *pool;
    const decoder_layout *layout;
    int layer, chunk, number;
    int64_t hidden;
    int tensor, rank;
    float deviation, residual_deviation; /* of weights, and of those that end a residual branch (GPT-2) */
} builder;

static const char *slot_name(const builder *b, names_slot slot)
{
    const char *format = names_format(b->d->shape.architecture, slot);
    MUST(format, "architecture %s has no parameter in slot %d", shape_traits_of(b->d->shape.architecture)->name, slot);
    const char *percent = strchr(format, '%');
    if (!percent)
        return format;
    return pool_format(b->pool, "%.*s%d%s", (int)(percent - format), format, b->layer, percent + 2);
}

static parameter *add(builder *b, const char *name, int64_t rows, int64_t columns, bool vector, placement place)
{
    parameter *p = pool_alloc(b->pool, sizeof *p);
    p->name = b->layer >= 0 ? pool_format(b->pool, "layer %d/%s", b->layer, name) : name;
    p->rows = rows;
    p->columns = columns;
    p->vector = vector;
    p->of_block = b->layer >= 0;
    p->place = place_along(AXIS_COORDINATE_TENSOR, b->tensor == 1 ? place_replicate() : place);
    for (int i = 0; i < AXIS_COORDINATES; i++) {
        if (b->layout->grid.divided >> i & 1)
            p->place.along[i] = place_shared();
        p->sums |= (unsigned)(p->place.along[i].kind == PLACE_SHARED) << i;
    }
    p->decay = !vector;
    p->init = vector ? INIT_ZERO : INIT_NORMAL;
    p->deviation = b->deviation;
    p->chunk = b->chunk;
    p->number = b->number++;
    p->copied_from = -1;
    p->shares = -1;
    b->d->parameters[b->d->parameter_count++] = p;
    return p;
}

/* A piece of a matrix (dims 2, as [out, in] whatever the file's order) or vector (dims 1: columns only). A matrix that is
 * all padding here has an empty one: every rank of a tensor group has the same matrices. */
static void piece(builder *b, parameter *p, names_slot slot, int64_t global_rows, int64_t global_columns,
                  int64_t start_row, int64_t start_column, int64_t rows, int64_t columns, int64_t row)
{
    if (p->vector && columns <= 0)
        return;
    rows = rows > 0 ? rows : 0;
    columns = columns > 0 ? columns : 0;
    MUST(p->piece_count < PARAMETER_PIECES, "%s: too many pieces", p->name);
    parameter_piece *q = &p->pieces[p->piece_count++];
    q->name = slot_name(b, slot);
    if (p->vector) { /* a piece's place counts elements */
        *q = (parameter_piece){.name = q->name,
                               .dims = 1,
                               .global = {global_columns},
                               .start = {start_column},
                               .size = {columns},
                               .column = row};
        return;
    }
    bool linear = slot != SLOT_EMBEDDING && slot != SLOT_POSITIONS && slot != SLOT_HEAD;
    q->transposed = linear && names_transposed(b->d->shape.architecture);
    q->dims = 2;
    int64_t global[] = {global_rows, global_columns}, start[] = {start_row, start_column}, size[] = {rows, columns};
    for (int i = 0; i < 2; i++) {
        int from = q->transposed ? 1 - i : i;
        q->global[i] = global[from];
        q->start[i] = start[from];
        q->size[i] = size[from];
    }
    q->row = row;
}

/* A vector that is whole on this rank. */
static const parameter *add_vector(builder *b, const char *name, int64_t count, placement place, names_slot slot,
                                   parameter_init init)
{
    parameter *p = add(b, name, 1, count, true, place);
    p->init = init;
    piece(b, p, slot, 1, count, 0, 0, 1, count, 0);
    return p;
}

static norm_layer build_norm(builder *b, const char *name, names_slot weight, names_slot bias)
{
    placement place = b->layout->grid.sequence ? place_shared() : place_replicate();
    norm_layer n = {.weight = add_vector(b, name, b->hidden, place, weight, INIT_ONE)};
    if (names_format(b->d->shape.architecture, bias))
        n.bias = add_vector(b, pool_format(b->pool, "%s bias", name), b->hidden, place, bias, INIT_ZERO);
    return n;
}

/* This rank's rows of q, k and v among the model's. */
typedef struct head_split {
    int heads, kv_heads;
    int64_t q_first, kv_first; /* in heads */
} head_split;

static head_split split_heads(const builder *b)
{
    const model_shape *s = &b->d->shape;
    head_split h = {.heads = s->heads / b->tensor, .kv_heads = s->kv_heads >= b->tensor ? s->kv_heads / b->tensor : 1};
    h.q_first = (int64_t)h.heads * b->rank;
    h.kv_first = (int64_t)s->kv_heads * b->rank / b->tensor;
    return h;
}

/* q, k and v (weights or biases) of this rank, stacked; `width` is 1 row of a vector or the hidden size's columns. */
static void qkv_pieces(builder *b, parameter *p, head_split h, bool bias)
{
    const model_shape *s = &b->d->shape;
    int64_t d = s->head_size, q_all = s->heads * d, kv_all = s->kv_heads * d;
    int64_t first[3] = {h.q_first * d, h.kv_first * d, h.kv_first * d};
    int64_t count[3] = {h.heads * d, h.kv_heads * d, h.kv_heads * d};
    int64_t base[3] = {0, q_all, q_all + kv_all}, all[3] = {q_all, kv_all, kv_all};
    bool fused = names_format(s->architecture, SLOT_QKV) != NULL;
    int64_t row = 0;
    for (int i = 0; i < 3; i++) {
        names_slot slot = fused ? (bias ? SLOT_QKV_BIAS : SLOT_QKV) : (names_slot)((bias ? SLOT_Q_BIAS : SLOT_Q) + i);
        int64_t total = fused ? q_all + 2 * kv_all : all[i], start = first[i] + (fused ? base[i] : 0);
        if (bias)
            piece(b, p, slot, 1, total, 0, start, 1, count[i], row);
        else
            piece(b, p, slot, total, b->hidden, start, 0, count[i], b->hidden, row);
        row += count[i];
    }
    if (b->layout->grid.group[AXIS_KV].ranks > 1) {
        p->copied_from = count[0];
        p->sums |= axis_slots(AXIS_KV);
    }
}

/* The bias of a product whose partial sums are added: the group's first rank has it, the others only its number. */
static const parameter *add_end_bias(builder *b, const char *name, names_slot slot)
{
    if (b->rank == 0)
        return add_vector(b, name, b->hidden, place_partial(), slot, INIT_ZERO);
    b->number++;
    return NULL;
}

static attention_layer build_attention(builder *b)
{
    const model_shape *s = &b->d->shape;
    head_split h = split_heads(b);
    attention_layer a = {
        .heads = h.heads, .kv_heads = h.kv_heads, .head_size = s->head_size, .window = (int)s->sliding_window};
    int64_t d = s->head_size, rows = (h.heads + 2 * h.kv_heads) * d;
    parameter *qkv = add(b, "attention/qkv", rows, b->hidden, false, place_shard(0));
    qkv_pieces(b, qkv, h, false);
    a.qkv = qkv;
    if (shape_traits_of(s->architecture)->bias_qkv) {
        parameter *bias = add(b, "attention/qkv bias", 1, rows, true, place_shard(0));
        qkv_pieces(b, bias, h, true);
        a.qkv_bias = bias;
    }
    if (shape_traits_of(s->architecture)->qk_norm) {
        a.q_norm = add_vector(b, "attention/q norm", d, place_shared(), SLOT_Q_NORM, INIT_ONE);
        a.k_norm = add_vector(b, "attention/k norm", d, place_shared(), SLOT_K_NORM, INIT_ONE);
    }
    parameter *out = add(b, "attention/out", b->hidden, h.heads * d, false, place_shard(1));
    out->deviation = b->residual_deviation;
    piece(b, out, SLOT_OUT, b->hidden, s->heads * d, 0, h.q_first * d, b->hidden, h.heads * d, 0);
    a.out = out;
    if (shape_traits_of(s->architecture)->bias_linear)
        a.out_bias = add_end_bias(b, "attention/out bias", SLOT_OUT_BIAS);
    return a;
}

static mlp_layer build_mlp(builder *b)
{
    const model_shape *s = &b->d->shape;
    mlp_layer m = {.gated = shape_traits_of(s->architecture)->gated};
    bool biased = shape_traits_of(s->architecture)->bias_linear;
    int64_t width = (s->ffn_size + b->tensor - 1) / b->tensor; /* padded where it does not divide */
    int64_t first = width * b->rank, real = s->ffn_size - first < width ? s->ffn_size - first : width;
    parameter *up =
        add(b, m.gated ? "mlp/gate up" : "mlp/up", (m.gated ? 2 : 1) * width, b->hidden, false, place_shard(0));
    if (m.gated)
        piece(b, up, SLOT_GATE, s->ffn_size, b->hidden, first, 0, real, b->hidden, 0);
    piece(b, up, SLOT_UP, s->ffn_size, b->hidden, first, 0, real, b->hidden, m.gated ? width : 0);
    m.up = up;
    if (biased) {
        parameter *bias = add(b, "mlp/up bias", 1, width, true, place_shard(0));
        piece(b, bias, SLOT_UP_BIAS, 1, s->ffn_size, 0, first, 1, real, 0);
        m.up_bias = bias;
    }
    parameter *down = add(b, "mlp/down", b->hidden, width, false, place_shard(1));
    down->deviation = b->residual_deviation;
    piece(b, down, SLOT_DOWN, b->hidden, s->ffn_size, 0, first, b->hidden, real, 0);
    m.down = down;
    if (biased)
        m.down_bias = add_end_bias(b, "mlp/down bias", SLOT_DOWN_BIAS);
    return m;
}

/* ---- the two ends of the model ------------------------------------------------------------------------------- */

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

/* Who divides the vocabulary: the tensor ranks, of one stage or of all. */
static int64_t vocabulary_rows(const builder *b)
{
    const axis_group *group = b->layout->grid.group;
    return decoder_vocabulary_rows(&b->d->shape, b->tensor * group[AXIS_VOCABULARY].ranks, group[AXIS_GRADIENT].ranks);
}

static int64_t vocabulary_first(const builder *b)
{
    return vocabulary_rows(b) * (b->rank + b->tensor * b->layout->grid.group[AXIS_VOCABULARY].rank);
}

static parameter *build_vocabulary(builder *b, const char *name, names_slot slot)
{
    const model_shape *s = &b->d->shape;
    int64_t rows = vocabulary_rows(b), first = vocabulary_first(b);
    int64_t real = s->vocab_size - first < rows ? s->vocab_size - first : rows;
    parameter *p = add(b, name, rows, b->hidden, false, place_shard(0));
    if (b->layout->grid.group[AXIS_VOCABULARY].ranks > 1)
        p->place.along[AXIS_COORDINATE_PIPELINE] = place_shard(0);
    piece(b, p, slot, s->vocab_size, b->hidden, first, 0, real, b->hidden, 0);
    return p;
}

static embedding_layer build_embedding(builder *b)
{
    b->layer = -1;
    parameter *table = build_vocabulary(b, "embedding", SLOT_EMBEDDING);
    if (b->d->shape.tied_embeddings && b->layout->grid.ends_apart)
        table->sums |= axis_slots(AXIS_TIE);
    return (embedding_layer){.table = table, .first = vocabulary_first(b)};
}

static const parameter *build_positions(builder *b)
{
    const model_shape *s = &b->d->shape;
    b->layer = -1;
    if (!shape_traits_of(s->architecture)->learned_positions)
        return NULL;
    placement place = b->layout->grid.sequence ? place_shared() : place_replicate();
    parameter *positions = add(b, "positions", s->max_sequence, b->hidden, false, place);
    piece(b, positions, SLOT_POSITIONS, s->max_sequence, b->hidden, 0, 0, s->max_sequence, b->hidden, 0);
    return positions;
}

static norm_layer build_last_norm(builder *b)
{
    b->layer = -1;
    return build_norm(b, "final norm", SLOT_FINAL_NORM, SLOT_FINAL_NORM_BIAS);
}

/* A head that is tied is the embedding itself where one chunk has both and they are not divided. */
static void build_head(builder *b, loss_layer *l, const parameter *embedding)
{
    const model_shape *s = &b->d->shape;
    const recorder_grid *g = &b->layout->grid;
    int64_t rows = vocabulary_rows(b);
    l->first = vocabulary_first(b);
    int64_t real = s->vocab_size - l->first < rows ? s->vocab_size - l->first : rows;
    l->count = real > 0 ? real : 0;
    l->chunk_tokens = b->layout->loss_tokens;
    if (s->tied_embeddings && embedding && !g->ends_folded && g->group[AXIS_VOCABULARY].ranks == 1) {
        l->head = embedding;
        return;
    }
    parameter *head = build_vocabulary(b, "head", s->tied_embeddings ? SLOT_EMBEDDING : SLOT_HEAD);
    head->tied = s->tied_embeddings;
    if (head->tied && embedding)
        head->shares = embedding->number;
    else if (head->tied)
        head->sums |= axis_slots(AXIS_TIE);
    l->head = head;
}

status decoder_check(const model_shape *s, int ranks)
{
    if (s->heads % ranks)
        return status_fail(STATUS_USAGE,
                           "parallel.tensor = %d does not divide model.heads = %d: choose a divisor of the heads",
                           ranks, s->heads);
    if (s->kv_heads % ranks && ranks % s->kv_heads)
        return status_fail(STATUS_USAGE,
                           "parallel.tensor = %d and model.kv_heads = %d: one must be a multiple of the other", ranks,
                           s->kv_heads);
    return STATUS_OK;
}

void decoder_open(decoder *d, pool *p, const model_shape *shape, const decoder_layout *layout)
{
    *d = (decoder){.shape = *shape, .chunk_count = layout->chunk_count};
    int layers = 0, index = 0;
    for (int c = 0; c < layout->chunk_count; c++)
        layers += layout->layers[c];
    d->parameters = pool_alloc(p, (size_t)(layers * 12 + 8) * sizeof(parameter *));
    d->chunks = pool_alloc(p, (size_t)layout->chunk_count * sizeof(decoder_chunk));
    builder b = {.d = d, .pool = p, .layout = layout, .hidden = shape->hidden_size};
    b.tensor = layout->grid.group[AXIS_TENSOR].ranks;
    b.rank = layout->grid.group[AXIS_TENSOR].rank;
    b.deviation = 0.02f;
    b.residual_deviation = 0.02f / sqrtf(2.0f * (float)shape->layers);
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
        chunk->embeds = chunk->first_layer == 0;
        chunk->loses = chunk->first_layer + chunk->layers == layout->total_layers;
        if (chunk->embeds && !d->vocabulary) {
            chunk->embedding = build_embedding(&b);
            embedding = chunk->embedding.table;
        }
        if (chunk->embeds)
            chunk->embedding.positions = build_positions(&b);
        chunk->blocks = pool_alloc(p, (size_t)chunk->layers * sizeof(block_layer));
        for (int i = 0; i < chunk->layers; i++) {
            block_layer *block = &chunk->blocks[i];
            b.layer = chunk->first_layer + i;
            block->norm1 = build_norm(&b, "norm 1", SLOT_NORM1, SLOT_NORM1_BIAS);
            block->attention = build_attention(&b);
            block->attention.index = index++;
            block->norm2 = build_norm(&b, "norm 2", SLOT_NORM2, SLOT_NORM2_BIAS);
            block->mlp = build_mlp(&b);
        }
        if (chunk->loses)
            chunk->loss.norm = build_last_norm(&b);
        if (chunk->loses && !d->vocabulary)
            build_head(&b, &chunk->loss, embedding);
    }
    if (d->vocabulary) {
        b.chunk = layout->chunk_count;
        b.layer = -1;
        build_head(&b, &d->vocabulary->loss, embedding);
    }
    d->numbers = b.number;
}

/* ---- recording ----------------------------------------------------------------------------------------------- */

int64_t decoder_rows_between(const recorder_grid *grid, int64_t tokens)
{
    if (!grid->sequence)
        return tokens;
    int64_t first, count;
    recorder_part(&first, &count, grid, AXIS_TENSOR, tokens);
    return count;
}

static stream record_blocks(recorder *r, const decoder_chunk *c, const layer_inputs *in, tensor *input)
{
    stream s = {.sum = input};
    if (c->embeds)
        s.sum = layer_embedded(r, &c->embedding, in, input ? input : layer_embed(r, &c->embedding, in));
    recorder_keep(s.sum);
    for (int i = 0; i < c->layers; i++) {
        recorder_layer(r, c->first_layer + i);
        layer_block(r, &s, &c->blocks[i], in);
    }
    recorder_layer(r, -1);
    return s;
}

tensor *decoder_forward(recorder *r, const decoder *d, int chunk, const layer_inputs *in, tensor *input)
{
    const decoder_chunk *c = &d->chunks[chunk];
    r->sites = 2 * c->first_layer + !c->embeds; /* dropout sites are numbered over the whole model */
    stream s = record_blocks(r, c, in, input);
    if (c->loses && d->vocabulary)
        return layer_norm(r, &s, &c->loss.norm, in);
    if (c->loses) {
        layer_loss(r, &s, &c->loss, in);
        return NULL;
    }
    return s.delta ? record_add(r, "hand over", s.sum, s.delta) : s.sum;
}

tensor *decoder_embed(recorder *r, const decoder *d, const layer_inputs *in)
{
    return layer_embed(r, &d->vocabulary->embedding, in);
}

tensor *decoder_logits(recorder *r, const decoder *d, int chunk, const layer_inputs *in, tensor *input)
{
    const decoder_chunk *c = &d->chunks[chunk];
    MUST(c->loses && !d->vocabulary, "chunk %d has no head", chunk);
    stream s = record_blocks(r, c, in, input);
    return layer_logits(r, &s, &c->loss, in);
}
