#include "kernels/record/recorder.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/record/program.h"
#include "kernels/record/replicas.h"
#include "memory/log.h"

recorder_grid recorder_alone(void)
{
    recorder_grid g = {0};
    for (int a = 0; a < AXIS_COUNT; a++)
        g.group[a] = (axis_group){.ranks = 1};
    return g;
}

void recorder_part(int64_t *first, int64_t *count, const recorder_grid *g, axis a, int64_t rows)
{
    shard_rows(first, count, rows, g->group[a].ranks, g->group[a].rank);
}

void recorder_open(recorder *r, pool *p, const recorder_grid *grid, dtype compute, const storage *table, int parameters)
{
    *r =
        (recorder){.pool = p, .grid = *grid, .storage = table, .compute = compute, .phase = PHASE_FORWARD, .layer = -1};
    r->known = must_calloc((unsigned long)parameters + 1, sizeof *r->known);
    r->parameters = parameters;
}

void recorder_close(recorder *r)
{
    for (int i = 0; i < PHASE_COUNT; i++)
        program_free(&r->body[i]);
    free(r->known);
    free(r->tensors);
    free(r->cotangent);
    free(r->again);
    free(r->unwritten);
    free(r->divided);
    *r = (recorder){0};
}

void recorder_layer(recorder *r, int layer)
{
    r->layer = layer;
}

void recorder_keep(tensor *t)
{
    t->keep = true;
}

/* Makes "layer 3/mlp/up", and finds where its site, "mlp/up", begins. */
static const char *label(recorder *r, const char **site, int layer, const char *of, const char *name)
{
    int from = 0;
    char text[32] = "";
    if (layer >= 0)
        from = snprintf(text, sizeof text, "layer %d/", layer);
    const char *all = pool_format(r->pool, "%s%s%s%s", text, of ? of : "", of ? "/" : "", name);
    *site = all + from;
    return all;
}

/* Gives a tensor of this body its number. */
static void enter(recorder *r, tensor *t)
{
    if (r->tensor_count == r->tensor_capacity) {
        int capacity = r->tensor_capacity ? 2 * r->tensor_capacity : 256;
        r->tensors = must_realloc(r->tensors, (unsigned long)capacity * sizeof(tensor *));
        r->tensor_capacity = capacity;
    }
    t->id = r->tensor_count;
    r->tensors[r->tensor_count++] = t;
}

tensor *recorder_input(recorder *r, const char *name, dtype type, int dims, const int64_t *shape, placements place)
{
    tensor *t = pool_alloc(r->pool, sizeof *t);
    const char *site;
    tensor_describe(t, label(r, &site, r->layer, NULL, name), CLASS_TEMPORARY, type, dims, shape);
    t->place = place;
    enter(r, t);
    return t;
}

placements recorder_activation(const recorder_grid *g, placement place)
{
    placements all = place_along(AXIS_COORDINATE_TENSOR, place);
    for (int i = 0; i < AXIS_COORDINATES; i++)
        if (g->divided >> i & 1)
            all.along[i] = place_shard(0);
    return all;
}

tensor *recorder_rows(recorder *r, tensor *of, int64_t first, int64_t count)
{
    MUST(first >= 0 && count >= 0 && first + count <= of->shape[0], "rows %lld + %lld of %s, which has %lld",
         (long long)first, (long long)count, of->name, (long long)of->shape[0]);
    tensor *t = pool_alloc(r->pool, sizeof *t);
    *t = *of;
    t->base = tensor_root(of);
    t->offset = of->offset + first * of->pitch * dtype_bytes((dtype)of->type);
    t->shape[0] = count;
    t->keep = t->per_microbatch = false;
    enter(r, t);
    return t;
}

tensor *recorder_columns(recorder *r, tensor *of, int64_t first, int64_t count)
{
    MUST(of->dims == 2 && first >= 0 && count > 0 && first + count <= of->shape[1],
         "columns %lld + %lld of %s, which has %lld", (long long)first, (long long)count, of->name,
         (long long)of->shape[1]);
    tensor *t = recorder_rows(r, of, 0, of->shape[0]);
    t->offset += first * dtype_bytes((dtype)of->type);
    t->shape[1] = count;
    return t;
}

tensor *recorder_row(recorder *r, tensor *of, int64_t row)
{
    MUST(of->dims == 2, "%s is no matrix", of->name);
    tensor *t = recorder_rows(r, of, row, 1);
    t->dims = 1;
    for (int i = 0; i < TENSOR_SLOTS; i++)
        t->place.along[i].dim = 0; /* the one dimension that is left */
    t->shape[0] = of->shape[1];
    t->shape[1] = 0;
    t->pitch = 1;
    return t;
}

/* Parts of an op's site: its layer, the op that it is a gradient of, and its name. */
typedef struct op_site {
    int layer;
    const char *of, *name;
} op_site;

static op *record(recorder *r, op_site where, const op *like, unsigned outputs, tensor *const *into)
{
    op made = *like;
    phase to = r->phase;
    if (to == PHASE_BACKWARD && r->split && op_has(like, OP_WEIGHT) && !(r->backward && r->backward->joined))
        to = PHASE_WEIGHT;
    made.phase = (uint8_t)to;
    made.layer = (int16_t)where.layer;
    made.label = label(r, &made.site, where.layer, where.of, where.name);
    made.microbatch = -1;
    made.joined = r->joined;
    made.index = r->body[to].count;
    made.lasting = made.index - r->recomputed_ops;
    made.recomputed = r->recomputed && to == PHASE_FORWARD;
    r->recomputed_ops += made.recomputed;
    op *o = op_make(r->pool, &made, outputs, into);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (o->out[i] && o->out[i]->producer == o)
            enter(r, o->out[i]);
    program_append(&r->body[to], o);
    return o;
}

op *recorder_record(recorder *r, const char *name, const op *like, unsigned outputs, tensor *const *into)
{
    op_site where = {r->layer, NULL, name};
    if (r->backward)
        where = (op_site){r->backward->layer, r->backward->site, name};
    return record(r, where, like, outputs, into);
}

/* ---- parameters ---------------------------------------------------------------------------------------------- */

tensor *recorder_weight(recorder *r, const parameter *p)
{
    if (!p)
        return NULL;
    MUST(p->number < r->parameters, "%s: parameter %d of %d", p->name, p->number, r->parameters);
    const storage *s = &r->storage[p->number];
    recorder_parameter *known = &r->known[p->number];
    known->uses++;
    if (!s->shard_weight)
        return s->weight;
    if (r->whole)
        return r->whole[p->number];
    if (known->gathered)
        return known->gathered;
    const op gather = replicas_gather(r->grid.group, s, s->shard);
    known->gathered = recorder_record(r, "gather weight", &gather, 1, NULL)->out[0];
    return known->gathered;
}

tensor *recorder_gradient(recorder *r, const tensor *w, uint8_t *accumulate)
{
    MUST(w->parameter, "%s is no parameter's weight", w->name);
    const storage *s = &r->storage[w->parameter->number];
    recorder_parameter *known = &r->known[w->parameter->number];
    if (!s->shard_gradient) {
        *accumulate = known->written ? OP_ADDS : OP_WRITES_FIRST;
        known->written = true;
        return s->gradient;
    }
    /* A gradient reduced each micro-batch has a tensor of its own until the last op has added its share. */
    *accumulate = known->partial ? OP_ADDS : OP_WRITES;
    if (!known->partial) {
        tensor *t = pool_alloc(r->pool, sizeof *t);
        tensor_describe(t, s->gradient->name, CLASS_TEMPORARY, DTYPE_FP32, s->weight->dims, s->weight->shape);
        t->place = parameter_gradient_place(s->of);
        t->parameter = s->of;
        enter(r, t);
        known->partial = t;
    }
    return known->partial;
}

void recorder_gradient_done(recorder *r, const tensor *w, bool weight_phase)
{
    const storage *s = &r->storage[w->parameter->number];
    recorder_parameter *known = &r->known[w->parameter->number];
    if (!s->shard_gradient || ++known->used < known->uses)
        return;
    phase before = r->phase;
    if (weight_phase && r->split && r->phase == PHASE_BACKWARD && !(r->backward && r->backward->joined))
        r->phase = PHASE_WEIGHT;
    tensor *sum = known->partial;
    const op scatter = replicas_sum(r->grid.group, s, s->of->replicas, sum);
    sum = recorder_record(r, "reduce gradient", &scatter, 1, NULL)->out[0];
    if (s->own_rows > 0) {
        op add = {.kind = OP_accumulate, .in = {sum}, .out = {s->own_gradient}};
        add.at.accumulate = known->written ? OP_ADDS : OP_WRITES_FIRST;
        recorder_record(r, "sum gradient", &add, 0, NULL);
    }
    known->written = true;
    known->partial = NULL;
    known->used = 0;
    r->phase = before;
}

/* ---- differentiation ----------------------------------------------------------------------------------------- */

static bool is_kept(const recorder *r, const tensor *t)
{
    const op *o = t->producer;
    if (t->keep || !o)
        return true;
    unsigned flags = op_row_of(o)->flags;
    if ((flags & OP_GATHER) || o->recomputed)
        return false;
    switch (r->recompute) {
    case RECOMPUTE_NONE:
        return true;
    case RECOMPUTE_SELECTIVE:
        return !(flags & OP_CHEAP);
    case RECOMPUTE_FULL:
        return false;
    case RECOMPUTE_CHOSEN:
        return !r->drop[o->lasting];
    }
    return true;
}

/* Index of the last name in a list like "x w residual?". */
static int last_of(const char *names)
{
    int n = 0;
    for (; *names; names++)
        n += *names == ' ';
    return n;
}

/* True if `t` is columns of a forward tensor: the base, not `t`, is made, kept, recomputed and differentiated. */
static bool is_columns(const recorder *r, const tensor *t)
{
    return t->base && t->producer == t->base->producer && recorder_wants(r, t->base) &&
           t->shape[0] == t->base->shape[0];
}

/* The columns of `base` that `t` is of its own. */
static tensor *same_columns(recorder *r, const tensor *t, tensor *base)
{
    tensor *columns = recorder_columns(r, base, 0, t->shape[1]);
    columns->offset = t->offset;
    return columns;
}

tensor *recorder_use(recorder *r, tensor *t)
{
    if (t->id < 0 || t->id >= r->forward_tensors)
        return t; /* persistent, or already a tensor of the backward pass */
    if (r->again[t->id])
        return r->again[t->id];
    if (is_columns(r, t)) {
        tensor *base = recorder_use(r, t->base);
        t->class = base->class;
        return base == t->base ? t : (r->again[t->id] = same_columns(r, t, base));
    }
    if (is_kept(r, t)) {
        tensor *root = tensor_root(t);
        if (root->id >= 0)
            root->class = CLASS_KEPT;
        t->class = root->class;
        return t;
    }
    const op *made = t->producer;
    MUST(!op_has(made, OP_STATEFUL), "%s cannot be recomputed", t->name);
    op again = {.kind = made->kind, .at = made->at, .where = made->where};
    unsigned outputs = 0;
    int sum = last_of(op_row_of(made)->out_names); /* the sum of inputs, if the backward pass has it; else -1 */
    if (!op_has(made, OP_SUMS) || !made->out[sum] || !(is_kept(r, made->out[sum]) || r->again[made->out[sum]->id]))
        sum = -1;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (made->out[i] && i != sum)
            outputs |= 1u << i;
    if (sum >= 0) { /* y from s alone: the terms of the sum s need not be recomputed */
        again.in[0] = recorder_use(r, made->out[sum]);
        for (int i = 1; i < last_of(op_row_of(made)->in_names); i++) /* all but the other summand, the last */
            again.in[i] = recorder_use(r, made->in[i]);
    }
    for (int i = 0; sum < 0 && i < OP_MAX_IN; i++)
        again.in[i] = made->in[i] ? recorder_use(r, made->in[i]) : NULL;
    op *o = record(r, (op_site){made->layer, NULL, made->site}, &again, outputs, NULL);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (o->out[i])
            r->again[made->out[i]->id] = o->out[i];
    return r->again[t->id];
}

/* Returns the cotangent of a base, written column by column. */
static tensor *divided_cotangent(recorder *r, const tensor *base)
{
    tensor **whole = &r->cotangent[base->id];
    if (!*whole) {
        *whole = pool_alloc(r->pool, sizeof **whole);
        tensor_describe(*whole, base->name, CLASS_TEMPORARY, (dtype)base->type, base->dims, base->shape);
        (*whole)->place = place_cotangent(base->place);
        enter(r, *whole);
        r->unwritten[base->id] = base->shape[1];
        r->divided[base->id] = true;
    }
    MUST(r->divided[base->id], "%s is read by columns and as a whole: its cotangent has no one place", base->name);
    return *whole;
}

tensor *recorder_flow_into(recorder *r, const tensor *of)
{
    if (!is_columns(r, of) || r->cotangent[of->id])
        return NULL;
    return same_columns(r, of, divided_cotangent(r, of->base));
}

/* `sum` in the columns that are the cotangent of the columns `of`: copied, unless an op has written it there. */
static tensor *finish_column_sums(recorder *r, const tensor *of, tensor *sum)
{
    tensor *whole = divided_cotangent(r, of->base);
    if (!r->cotangent[of->id])
        r->unwritten[of->base->id] -= of->shape[1];
    if (sum->base == whole && sum->offset == of->offset)
        return sum;
    op copy = {.kind = OP_copy, .in = {sum}};
    tensor *into[OP_MAX_OUT] = {same_columns(r, of, whole)};
    return recorder_record(r, "copy cotangent", &copy, 1, into)->out[0];
}

void recorder_flow_set(recorder *r, const tensor *of, tensor *sum)
{
    MUST(of->id >= 0 || !of->parameter,
         "%s is a weight: the gradient of an op that reads it is for recorder_gradient()", of->name);
    if (of->id < 0 || of->id >= r->forward_tensors)
        return;
    MUST(!r->divided[of->id], "%s is read by columns and as a whole: its cotangent has no one place", of->name);
    r->cotangent[of->id] = is_columns(r, of) ? finish_column_sums(r, of, sum) : sum;
}

tensor *recorder_flow_take(recorder *r, const tensor *of)
{
    return of->id >= 0 && of->id < r->forward_tensors ? r->cotangent[of->id] : NULL;
}

void recorder_flow(recorder *r, tensor *of, tensor *value)
{
    op add = {.kind = OP_add, .in = {recorder_flow_take(r, of), value}};
    tensor *into[OP_MAX_OUT] = {is_columns(r, of) ? add.in[0] : NULL};
    if (add.in[0])
        value = recorder_record(r, "add cotangents", &add, 1, into)->out[0];
    recorder_flow_set(r, of, value);
}

bool recorder_wants(const recorder *r, const tensor *of)
{
    return of->id >= 0 && of->id < r->forward_tensors && dtype_is_float((dtype)of->type);
}

void recorder_begin_backward(recorder *r)
{
    r->forward_tensors = r->tensor_count;
    unsigned long n = (unsigned long)r->tensor_count;
    r->cotangent = must_calloc(n, sizeof(tensor *));
    r->again = must_calloc(n, sizeof(tensor *));
    r->unwritten = must_calloc(n, sizeof *r->unwritten);
    r->divided = must_calloc(n, sizeof *r->divided);
    for (int i = 0; i < r->parameters; i++)
        r->known[i].gathered = NULL; /* gathered again where the backward pass reads it */
    r->phase = PHASE_BACKWARD;
}

tensor *recorder_cotangent(recorder *r, const tensor *t)
{
    tensor *whole = recorder_flow_take(r, t);
    MUST(!whole || r->unwritten[t->id] == 0, "%s: %lld of its %lld columns have no cotangent", t->name,
         (long long)r->unwritten[t->id], (long long)t->shape[1]);
    return whole;
}

void recorder_begin_at(recorder *r, tensor *t, tensor *cotangent)
{
    MUST(r->backward_starts < RECORDER_BACKWARD_STARTS,
         "%s: the backward pass of the recording begins in too many places", t->name);
    r->backward_start[r->backward_starts] = t;
    r->backward_start_cotangent[r->backward_starts++] = cotangent;
}

/* Keeps the cotangent: it is made in the forward pass and read in the backward pass. */
void recorder_start_backward(recorder *r, tensor *t, tensor *cotangent)
{
    tensor_root(cotangent)->class = CLASS_KEPT;
    cotangent->class = CLASS_KEPT;
    recorder_begin_at(r, t, cotangent);
}

tensor *recorder_differentiate(recorder *r, tensor *input, tensor *output, tensor *cotangent)
{
    recorder_begin_backward(r);
    MUST(cotangent || r->backward_starts > 0, "nothing to start the backward pass from");
    for (int i = 0; i < r->backward_starts; i++)
        r->cotangent[r->backward_start[i]->id] = r->backward_start_cotangent[i];
    if (cotangent)
        r->cotangent[output->id] = cotangent;
    const program *forward = &r->body[PHASE_FORWARD];
    for (int i = forward->count - 1; i >= 0; i--) {
        const op *o = forward->ops[i];
        tensor *flow[OP_MAX_OUT] = {0};
        bool any = false;
        for (int k = 0; k < OP_MAX_OUT; k++) {
            flow[k] = o->out[k] ? recorder_cotangent(r, o->out[k]) : NULL;
            any |= flow[k] != NULL;
        }
        if (o->detached || !any)
            continue;
        r->backward = o;
        op_row_of(o)->gradient(r, o, flow);
    }
    r->backward = NULL;
    r->phase = PHASE_FORWARD;
    return input ? recorder_cotangent(r, input) : NULL;
}
