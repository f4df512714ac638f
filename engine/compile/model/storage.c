/* Persistent storage of this rank: parameters, gradients, optimizer state, inputs. */
#include "engine/compile/model/storage.h"

#include <stdlib.h>

#include "engine/compile/model/optimizer.h"
#include "engine/compile/model/tokens.h"
#include "kernels/exact_sum.h"
#include "kernels/table/op.h"
#include "kernels/heads.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/decoder.h"
#include "models/rope.h"

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

/* ---- rows that ZeRO divides -------------------------------------------------------------------------------------- */

static int replicas_of(const compiled *c, const parameter *p)
{
    return c->around.group[p->replicas].ranks;
}

/* An expert's replicas are some of AXIS_GRADIENT's ranks and the tensor ranks: experts follow the dense model's
 * choice. */
bool storage_divides(const compile_options *o, tensor_class class)
{
    return grid_group_size(&o->grid, AXIS_GRADIENT) > 1 && storage_shares(o->layout.zero, class);
}

static bool is_shared(const compiled *c, const parameter *p, tensor_class class)
{
    return !p->counted && replicas_of(c, p) > 1 && storage_divides(&c->options, class);
}

int storage_level(const compile_options *o)
{
    return o->layout.zero;
}

static bool shards_gradient(const compiled *c, const parameter *p)
{
    return is_shared(c, p, CLASS_GRADIENT) && c->options.layout.zero_reduce == CONFIG_EACH_MICRO_BATCH;
}

/* ---- ownership --------------------------------------------------------------------------------------------------- */

typedef struct owned {
    int owner; /* the replica that owns all rows, or -1 */
    int64_t first, rows;
} owned;

static owned rows_of_owner(const parameter *p, int owner, int me, int ranks)
{
    owned s = {.owner = owner, .rows = owner == me ? p->rows : 0};
    if (owner < 0)
        shard_rows(&s.first, &s.rows, p->rows, ranks, me);
    return s;
}

/* Returns replica `me`'s share of a parameter. */
static owned divide_parameter(const compiled *c, const parameter *p, int me)
{
    if (!is_shared(c, p, CLASS_OPTIMIZER))
        return (owned){.owner = -1, .rows = p->rows};
    return rows_of_owner(p, c->owners[p->number], me, replicas_of(c, p));
}

static bool is_compressed(const compiled *c, const parameter *p)
{
    return c->options.compress.kind != COMPRESS_NONE && c->options.train && p->shares < 0 && !p->counted &&
           replicas_of(c, p) > 1;
}

/* Returns the rows of a compressed gradient that replica `me` sums. */
static owned divide_sum(const compiled *c, const parameter *p, int me)
{
    int ranks = replicas_of(c, p);
    if (is_shared(c, p, CLASS_OPTIMIZER))
        return divide_parameter(c, p, me);
    return rows_of_owner(p, p->vector || p->rows < ranks ? p->number % ranks : -1, me, ranks);
}

/* Larger first, then in the model's order. */
static int compare_sizes(const void *a, const void *b)
{
    const parameter *const *p = a, *const *q = b;
    int64_t x = (*p)->rows * (*p)->columns, y = (*q)->rows * (*q)->columns;
    return x != y ? (x < y) - (x > y) : ((*p)->number > (*q)->number) - ((*p)->number < (*q)->number);
}

/* Assigns each parameter that is updated whole along an axis to the least loaded replica: the same on every tensor
 * rank, since their parts have the same sizes. */
static void assign_owners(int *owners, const compiled *c, axis along)
{
    AUTO_FREE const parameter **whole = must_alloc((unsigned long)(c->model.parameter_count + 1) * sizeof *whole);
    int ranks = c->around.group[along].ranks, count = 0;
    AUTO_FREE int64_t *load = must_calloc((unsigned long)ranks + 1, sizeof *load);
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        if (p->replicas == along && is_shared(c, p, CLASS_OPTIMIZER) && optimizer_whole(&c->options, p))
            whole[count++] = p;
    }
    qsort(whole, (size_t)count, sizeof *whole, compare_sizes);
    for (int i = 0; i < count; i++) {
        int least = 0;
        for (int k = 1; k < ranks; k++)
            least = load[k] < load[least] ? k : least;
        owners[whole[i]->number] = least;
        load[least] += whole[i]->rows * whole[i]->columns;
    }
}

/* Gives each small parameter to one rank; rows of the others are divided, unless the optimizer takes them whole. */
static const int *choose_owners(compiled *c)
{
    int *owners = pool_alloc(&c->pool, (size_t)(c->model.numbers + 1) * sizeof *owners);
    for (int i = 0; i < c->model.numbers; i++)
        owners[i] = -1;
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        if (p->vector && is_shared(c, p, CLASS_OPTIMIZER))
            owners[p->number] = p->number % replicas_of(c, p);
    }
    for (axis a = 0; a < AXIS_COUNT; a++)
        if (axis_rows[a].gradients == AXIS_SUMS_REPLICAS)
            assign_owners(owners, c, a);
    return owners;
}

static int64_t align_bytes(int64_t bytes)
{
    return (bytes + COMPILE_ALIGNMENT - 1) / COMPILE_ALIGNMENT * COMPILE_ALIGNMENT;
}

/* Returns the owned bytes of one parameter on the rank at `of`. */
static int64_t owned_bytes(const compiled *c, const parameter *p, const grid *of)
{
    const compile_options *o = &c->options;
    int me = grid_index(of, p->replicas);
    int64_t elements = divide_parameter(c, p, me).rows * p->columns, bytes = 0;
    if (shards_gradient(c, p))
        bytes += align_bytes(elements * dtype_bytes(DTYPE_FP32));
    if (p->shares >= 0 || p->counted)
        return bytes;
    if (!optimizer_offloads(o, p)) {
        bytes += optimizer_states(optimizer_of(o, p)) * align_bytes(elements * dtype_bytes(optimizer_state_type(o)));
        bytes += align_bytes(elements * (optimizer_has_master(o) ? dtype_bytes(c->options.optimizer.master) : 0));
    }
    if (is_shared(c, p, CLASS_WEIGHT))
        bytes += align_bytes(elements * dtype_bytes(precision_compute(o->precision)));
    if (is_compressed(c, p) && !is_shared(c, p, CLASS_OPTIMIZER))
        bytes += align_bytes(divide_sum(c, p, me).rows * p->columns * dtype_bytes(DTYPE_FP32));
    return bytes;
}

int64_t storage_owned_bytes(const compiled *c, const grid *of)
{
    int64_t bytes = 0;
    for (int i = 0; i < c->model.parameter_count; i++)
        bytes += owned_bytes(c, c->model.parameters[i], of);
    return bytes;
}

int64_t storage_feedback_bytes(const compiled *c)
{
    int64_t bytes = 0;
    for (int i = 0; i < c->model.parameter_count; i++) {
        const storage *s = &c->storage[c->model.parameters[i]->number];
        bytes += s->feedback ? align_bytes(tensor_bytes(s->feedback)) : 0;
        bytes += s->feedback_sum ? align_bytes(tensor_bytes(s->feedback_sum)) : 0;
    }
    return bytes;
}

/* Same as `whole`, but keeps only this rank's rows of those that the replicas divide. */
static placements place_divided(const compiled *c, const parameter *p, placements whole, int owner)
{
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (c->around.group[p->replicas].slots >> i & 1)
            whole.along[i] = owner >= 0 ? place_owned() : place_shard(0);
    return whole;
}

/* Places the gradient tensor as products leave it. */
static placements place_gradient(const compiled *c, const storage *s)
{
    placements place = parameter_gradient_place(s->of);
    if (!s->shard_gradient)
        return place;
    place = parameter_place_rows(s->of, place, s->of->vector ? 0 : s->own_first, s->gradient->shape[0]);
    return place_divided(c, s->of, place, s->owner);
}

/* Same as the gradient's placement, but partial only over the replicas. */
static placements place_feedback(const compiled *c, const storage *s)
{
    placements place = parameter_gradient_place(s->of);
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (!(c->around.group[s->of->replicas].slots >> i & 1) && place.along[i].kind == PLACE_PARTIAL)
            place.along[i] = place_replicate();
    return place;
}

/* Describes the weight, the rank's shard of it if there is one, placed as `own`, and the gradient. */
static void describe_weight(compiled *c, storage *s, placements own)
{
    const parameter *p = s->of;
    s->weight = new_rows(c, p, CLASS_WEIGHT, precision_compute(c->options.precision), p->rows);
    s->weight->place = p->place;
    if (s->shard_weight) {
        s->shard = new_rows(c, p, CLASS_WEIGHT, precision_compute(c->options.precision), s->own_rows);
        s->shard->place = own;
    }
    s->gradient = new_rows(c, p, CLASS_GRADIENT, DTYPE_FP32, s->shard_gradient ? s->own_rows : p->rows);
    s->gradient->place = place_gradient(c, s);
    s->own_gradient = new_view(c, s->gradient, p, s->shard_gradient ? 0 : s->own_first, s->own_rows);
}

/* Describes a weight shared with another parameter: ops name a weight by its owner. */
static storage describe_shared(compiled *c, const parameter *p, const storage *of)
{
    storage s = *of;
    s.of = p;
    s.states = 0;
    s.master = s.feedback = s.feedback_sum = NULL;
    describe_weight(c, &s, of->shard ? of->shard->place : p->place);
    return s;
}

static void describe_feedback(compiled *c, storage *s)
{
    if (!is_compressed(c, s->of))
        return;
    owned sum = divide_sum(c, s->of, c->around.group[s->of->replicas].rank);
    s->sum_owner = sum.owner;
    s->sum_first = sum.first;
    s->sum_rows = sum.rows;
    s->feedback = new_rows(c, s->of, CLASS_OPTIMIZER, DTYPE_FP32, s->of->rows);
    s->feedback->place = place_feedback(c, s);
    if (s->divided || sum.rows == 0)
        return;
    s->feedback_sum = new_rows(c, s->of, CLASS_OPTIMIZER, DTYPE_FP32, sum.rows);
    s->feedback_sum->place = place_divided(c, s->of, s->feedback->place, sum.owner);
}

/* Describes a counted parameter: all replicas have all of it; its gradient has no rows. */
static storage describe_counted(compiled *c, const parameter *p)
{
    storage s = {.of = p, .owner = -1, .own_rows = p->rows};
    s.weight = new_rows(c, p, CLASS_WEIGHT, DTYPE_FP32, p->rows);
    s.weight->place = p->place;
    s.master = s.own_weight = new_view(c, s.weight, p, 0, p->rows);
    s.gradient = new_rows(c, p, CLASS_GRADIENT, DTYPE_FP32, 0);
    s.own_gradient = new_view(c, s.gradient, p, 0, 0);
    return s;
}

static storage describe_parameter(compiled *c, const parameter *p)
{
    const compile_options *o = &c->options;
    if (p->counted)
        return describe_counted(c, p);
    owned own = divide_parameter(c, p, c->around.group[p->replicas].rank);
    storage s = {.of = p,
                 .divided = is_shared(c, p, CLASS_OPTIMIZER),
                 .owner = own.owner,
                 .own_first = own.first,
                 .own_rows = own.rows,
                 .shard_weight = is_shared(c, p, CLASS_WEIGHT),
                 .shard_gradient = shards_gradient(c, p),
                 .states = optimizer_states(optimizer_of(o, p))};
    const placements place = s.divided ? place_divided(c, p, p->place, s.owner) : p->place;
    describe_weight(c, &s, place);
    s.own_weight = s.shard ? new_view(c, s.shard, p, 0, s.own_rows) : new_view(c, s.weight, p, s.own_first, s.own_rows);
    s.own_weight->place = place;
    tensor_class class = optimizer_offloads(o, p) ? CLASS_HOST : CLASS_OPTIMIZER;
    for (int i = 0; i < s.states; i++) {
        s.state[i] = new_rows(c, p, class, optimizer_state_type(o), s.own_rows);
        s.state[i]->place = place;
    }
    s.master = !optimizer_has_master(o) ? s.own_weight : new_rows(c, p, class, o->optimizer.master, s.own_rows);
    s.master->place = place;
    describe_feedback(c, &s);
    return s;
}

static tensor *new_input(compiled *c, const char *name, dtype type, int dims, const int64_t *shape)
{
    tensor *t = pool_alloc(&c->pool, sizeof *t);
    tensor_describe(t, name, CLASS_INPUT, type, dims, shape);
    return t;
}

/* Ranks of the tokens in an input of ids (layers/inputs.def). */
typedef enum ids_of { IDS_OWN, IDS_ALL } ids_of;

static tensor *new_ids(compiled *c, const char *name, bool given, ids_of of)
{
    const compile_options *o = &c->options;
    const token_counts n = tokens_count(o);
    const int64_t shape[] = {!given ? 0 : o->train ? o->microbatches : 1, of == IDS_ALL ? n.micro_batch : n.rank};
    tensor *t = new_input(c, name, DTYPE_INT32, 2, shape);
    t->per_microbatch = true;
    for (int i = 0; i < AXIS_COORDINATES; i++)
        if (c->around.divided >> i & 1 && (of == IDS_OWN || axis_coordinates[i].divides != AXIS_DIVIDES_TOKENS))
            t->place.along[i] = place_shard(1);
    return t;
}

/* Relation of the ranks' copies of a value (layers/values.def). */
typedef enum value_ranks { RANKS_SAME, RANKS_SUMMED, RANKS_COLUMNS, RANKS_APART } value_ranks;

static tensor *new_value(compiled *c, const char *name, dtype type, const int64_t size[2], value_ranks ranks)
{
    tensor *t = new_input(c, name, type, size[1] ? 2 : 1, size);
    for (int i = 0; i < AXIS_COORDINATES; i++)
        if (ranks == RANKS_SUMMED && c->options.grid.size[i] > 1)
            t->place.along[i] = place_partial();
        else if (ranks == RANKS_APART && c->options.grid.size[i] > 1)
            t->place.along[i] = place_shard(0);
    if (ranks == RANKS_COLUMNS && c->options.grid.size[GRID_TENSOR] > 1)
        t->place.along[GRID_TENSOR] = place_shard(1);
    return t;
}

static void describe_values(compiled *c)
{
    const compile_options *o = &c->options;
    const dtype compute = precision_compute(o->precision);
    const token_counts n = tokens_count(o);
    const bool ALWAYS = true, LOSS = o->decode_samples == 0, MTP = o->train && o->shape.mtp_layers > 0,
               MASK = LOSS && o->document_mask, DIVIDED = n.run > 0,
               BALANCES =
                   (o->shape.router_loss > 0 || o->shape.router_z_loss > 0) && o->router_over == LAYER_BALANCE_SEQUENCE,
               DRAWS = DIVIDED || (o->train && (BALANCES || o->shape.dropout > 0));
    const int64_t clips = o->train && o->optimizer.qk_clip > 0;
    layer_sizes sizes = {
        .compute = compute,
        .logits = {o->decode_samples,
                   decoder_vocabulary_rows(&o->shape, o->grid.size[GRID_TENSOR], c->around.group[AXIS_GRADIENT].ranks)},
        .over = o->train && (compile_buckets(o) > 1 || compile_room(o) > 0) ? CAPACITY_BUCKETS : 0,
        .routers = LOSS && o->shape.experts > 0,
        .mtp = MTP,
        .choices = o->train ? (int64_t)shape_routers(&o->shape) * o->shape.experts : 0,
        .clips = clips,
        .max_logits = {clips ? c->model.attending : 0, heads_of_rank(o->shape.heads, o->grid.size[GRID_TENSOR])}};
    const layer_sizes *v = &sizes;
    rope_size(sizes.rope, &o->shape, LOSS ? o->sequence : o->decode_positions);
    c->values = (layer_inputs){
#define INPUT(name, text, given, of) .name = new_ids(c, text, given, IDS_##of),
#include "layers/inputs.def"
#define VALUE(name, text, type, rows, columns, ranks, copied)                                                          \
    .name = new_value(c, text, type, (const int64_t[]){rows, columns}, RANKS_##ranks),
#include "layers/values.def"
        .sequence = (int)(o->decode_samples ? 1 : o->sequence),
        .micro_batch = n.micro_batch,
        .transfers = o->transfers,
        .run = (int)n.run,
        .zigzag = DIVIDED && o->layout.balance == CONFIG_BALANCE_ZIGZAG,
        .router_loss = o->shape.router_loss,
        .router_z_loss = o->shape.router_z_loss,
        .router_over = o->router_over,
        .routers = shape_routers(&o->shape),
        .epsilon = (float)o->shape.norm_epsilon,
        .dropout = (float)o->shape.dropout};
}

/* Describes the states that decoding keeps for a chunk's layers. */
static void describe_states(compiled *c, const decoder_chunk *chunk)
{
    const compile_options *o = &c->options;
    tensor **states = pool_alloc(&c->pool, (size_t)c->model.states * sizeof *states);
    for (int i = 0; i < chunk->layers; i++) {
        layer_state all[LAYER_STATES];
        const int count = layer_states(all, &chunk->blocks[i]);
        for (int k = 0; k < count; k++) {
            const layer_state *one = &all[k];
            const int64_t shape[] = {o->decode_samples, one->by_position ? o->decode_positions : one->size[0],
                                     one->size[!one->by_position]};
            tensor *t = new_input(c, pool_format(&c->pool, "layer %d/%s cache", i, one->name),
                                  one->wide ? DTYPE_FP32 : precision_compute(o->precision), 3, shape);
            if (o->grid.size[GRID_TENSOR] > 1 && one->divided)
                t->place.along[GRID_TENSOR] = place_shard(one->by_position ? 2 : 1);
            states[c->state_count++] = t;
        }
    }
    c->values.states = states;
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
    for (int i = 0; i < c->model.parameter_count && !c->feedback_section; i++) {
        const storage *one = &all[c->model.parameters[i]->number];
        const axis_group *replicas = &c->around.group[one->of->replicas];
        if (!one->feedback)
            continue;
        c->feedback_section = pool_format(&c->pool, "feedback_%d", replicas->rank);
        c->feedback_ranks = replicas->ranks;
    }
    describe_values(c);
    if (c->options.decode_samples)
        describe_states(c, &c->model.chunks[0]);
}

static void place_tensor(compiled *c, tensor *t)
{
    int64_t bytes = align_bytes(tensor_bytes(t));
    if (t->class == CLASS_HOST) {
        t->address = TENSOR_HOST + c->pinned_bytes;
        c->pinned_bytes += bytes;
    } else {
        t->address = c->persistent_bytes;
        c->persistent_bytes += bytes;
    }
    c->class_bytes[t->class] += bytes;
}

/* Shares the storage of the weight's parameter, which comes earlier. */
static void place_sharer(compiled *c, const storage *s)
{
    const storage *of = &c->storage[s->of->shares];
    if (s->shard_weight)
        s->shard->address = of->shard->address;
    else
        s->weight->address = of->weight->address;
    if (!c->options.train)
        return;
    place_tensor(c, s->gradient);
    s->own_gradient->address = s->gradient->address + s->own_gradient->offset;
}

static void place_parameter(compiled *c, const storage *s)
{
    if (s->of->shares >= 0) {
        place_sharer(c, s);
        return;
    }
    place_tensor(c, s->shard_weight ? s->shard : s->weight);
    s->own_weight->address = s->own_weight->base->address + s->own_weight->offset;
    if (!c->options.train)
        return;
    place_tensor(c, s->gradient);
    s->own_gradient->address = s->gradient->address + s->own_gradient->offset;
    if (s->master != s->own_weight)
        place_tensor(c, s->master);
    for (int i = 0; i < s->states; i++)
        place_tensor(c, s->state[i]);
    if (s->feedback)
        place_tensor(c, s->feedback);
    if (s->feedback_sum)
        place_tensor(c, s->feedback_sum);
}

void storage_place(compiled *c)
{
    for (int i = 0; i < INPUT_COUNT; i++)
        place_tensor(c, c->values.ids[i]);
    c->batch_bytes = c->persistent_bytes;
    for (int i = 0; i < VALUE_COUNT; i++)
        place_tensor(c, c->values.value[i]);
    c->mirror_bytes = c->persistent_bytes;
    c->pinned_bytes = align_bytes(c->mirror_bytes + (c->options.train ? c->batch_bytes : 0));
    for (int i = 0; i < c->state_count; i++)
        place_tensor(c, c->values.states[i]);
    for (int i = 0; i < c->model.parameter_count; i++)
        place_parameter(c, &c->storage[c->model.parameters[i]->number]);
}

/* ---- checkpoints ---- */

/* Bytes per element of the parameter in checkpoints, which have sections (engine/state/rank/state.h) for the weight,
 * the states and the master. */
static int64_t saved_bytes(const compile_options *o, const parameter *p)
{
    if (p->counted)
        return dtype_bytes(DTYPE_FP32);
    int64_t master = optimizer_has_master(o) ? dtype_bytes(o->optimizer.master) : 0;
    return dtype_bytes(precision_compute(o->precision)) + master +
           optimizer_states(optimizer_of(o, p)) * dtype_bytes(optimizer_state_type(o));
}

int64_t storage_checkpoint_bytes(const compile_options *o)
{
    const int first = 0, layers = o->shape.layers;
    RELEASED_BY(pool_free) pool p = {0};
    decoder whole;
    decoder_layout layout = {.grid = recorder_alone(),
                             .compute = precision_compute(o->precision),
                             .chunk_count = 1,
                             .first_layer = &first,
                             .layers = &layers};
    decoder_open(&whole, &p, &o->shape, &layout);
    int64_t sum = 0;
    for (int i = 0; i < whole.parameter_count; i++) { /* no padding is saved, and a shared head is the embedding's */
        const parameter *q = whole.parameters[i];
        for (int k = 0; k < q->piece_count && q->shares < 0; k++)
            sum += box_volume(q->pieces[k].of.dims, q->pieces[k].of.part.size) * saved_bytes(o, q);
    }
    return sum;
}
