#include "kernels/recorder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

void recorder_open(recorder *r, pool *p, const recorder_grid *grid, dtype compute)
{
    *r = (recorder){.pool = p, .grid = *grid, .compute = compute, .phase = PHASE_FORWARD, .gather_each = true};
}

void recorder_close(recorder *r)
{
    for (int i = 0; i < PHASE_COUNT; i++)
        program_free(&r->body[i]);
    for (int i = 0; i < r->touched_count; i++) {
        parameter *p = r->touched[i];
        p->uses = p->used = 0;
        p->partial = p->gathered = NULL;
    }
    free(r->touched);
    free(r->tensors);
    free(r->cotangent);
    free(r->again);
    *r = (recorder){0};
}

void recorder_label(recorder *r, const char *format, ...)
{
    r->prefix[0] = 0;
    if (!format)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->prefix, sizeof r->prefix, format, arguments);
    va_end(arguments);
}

static const char *label(recorder *r, const char *name)
{
    return r->prefix[0] ? pool_format(r->pool, "%s/%s", r->prefix, name) : pool_format(r->pool, "%s", name);
}

static tensor *new_tensor(recorder *r)
{
    if (r->tensor_count == r->tensor_capacity) {
        int capacity = r->tensor_capacity ? 2 * r->tensor_capacity : 256;
        r->tensors = must_realloc(r->tensors, (unsigned long)capacity * sizeof(tensor *));
        r->tensor_capacity = capacity;
    }
    tensor *t = pool_alloc(r->pool, sizeof *t);
    t->id = r->tensor_count;
    r->tensors[r->tensor_count++] = t;
    return t;
}

tensor *recorder_input(recorder *r, const char *name, dtype type, int dims, const int64_t *shape, placement place)
{
    tensor *t = new_tensor(r);
    int id = t->id;
    tensor_describe(t, label(r, name), CLASS_TEMPORARY, type, dims, shape);
    t->id = id;
    t->place = place;
    t->boundary = true;
    return t;
}

tensor *recorder_rows(recorder *r, tensor *of, int64_t first, int64_t count)
{
    MUST(first >= 0 && count >= 0 && first + count <= of->shape[0], "rows %lld + %lld of %s, which has %lld",
         (long long)first, (long long)count, of->name, (long long)of->shape[0]);
    tensor *t = new_tensor(r);
    int id = t->id;
    *t = *of;
    t->id = id;
    t->base = tensor_root(of);
    t->offset = of->offset + first * of->pitch * dtype_bytes((dtype)of->type);
    t->shape[0] = count;
    t->boundary = false;
    return t;
}

op *recorder_record(recorder *r, op_kind kind, const char *name, tensor *const *in, int inputs, unsigned outputs,
                    tensor *const *given, const op_attributes *at)
{
    op *o = pool_alloc(r->pool, sizeof *o);
    o->kind = (uint8_t)kind;
    o->label = label(r, name);
    o->microbatch = -1;
    if (at)
        o->at = *at;
    for (int i = 0; i < inputs; i++)
        o->in[i] = in[i];
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (given && given[i]) {
            o->out[i] = given[i];
        } else if (outputs >> i & 1) {
            tensor *t = new_tensor(r);
            t->name = o->label;
            t->class = CLASS_TEMPORARY;
            t->address = t->first = t->last = -1;
            o->out[i] = t;
        }
    }
    op_row_of(o)->infer(o);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (o->out[i] && !(given && given[i]))
            o->out[i]->producer = o;
    phase to = r->phase == PHASE_BACKWARD && r->split && (op_row_of(o)->flags & WEIGHT) ? PHASE_WEIGHT : r->phase;
    o->phase = (uint8_t)to;
    o->index = r->body[to].count;
    program_append(&r->body[to], o);
    return o;
}

/* ---- parameters ---------------------------------------------------------------------------------------------- */

static void touch(recorder *r, parameter *p)
{
    for (int i = 0; i < r->touched_count; i++)
        if (r->touched[i] == p)
            return;
    if (r->touched_count == r->touched_capacity) {
        r->touched_capacity = r->touched_capacity ? 2 * r->touched_capacity : 64;
        r->touched = must_realloc(r->touched, (unsigned long)r->touched_capacity * sizeof(parameter *));
    }
    r->touched[r->touched_count++] = p;
}

static op_attributes data_axis(const recorder *r, const parameter *p)
{
    return (op_attributes){.axis = AXIS_DATA,
                           .group_size = r->grid.data,
                           .group_rank = r->grid.data_rank,
                           .rows = p->vector ? p->columns : p->rows,
                           .owner = p->owner};
}

tensor *recorder_weight(recorder *r, parameter *p)
{
    touch(r, p);
    p->uses++;
    if (!p->shard_weight || !r->gather_each)
        return &p->weight;
    if (p->gathered)
        return p->gathered;
    tensor *in[] = {&p->shard};
    op_attributes at = data_axis(r, p);
    op *o = recorder_record(r, OP_all_gather, "gather weight", in, 1, 1, NULL, &at);
    o->out[0]->name = p->weight.name;
    o->out[0]->place = p->weight.place;
    o->out[0]->parameter = p;
    p->gathered = o->out[0];
    return p->gathered;
}

tensor *recorder_gradient(recorder *r, const tensor *w, uint8_t *accumulate)
{
    parameter *p = w->parameter;
    MUST(p, "%s is no parameter's weight", w->name);
    if (!p->shard_gradient) {
        *accumulate = p->written ? 1 : 2;
        p->written = true;
        return &p->gradient;
    }
    /* Reduced each micro-batch: a gradient of its own until the last op has added its share. */
    *accumulate = p->partial != NULL;
    if (!p->partial) {
        tensor *t = new_tensor(r);
        int id = t->id;
        tensor_describe(t, p->gradient.name, CLASS_TEMPORARY, DTYPE_FP32, p->weight.dims, p->weight.shape);
        t->id = id;
        t->place = place_cotangent(p->weight.place);
        p->partial = t;
    }
    return p->partial;
}

void recorder_gradient_done(recorder *r, const tensor *w, bool weight_phase)
{
    parameter *p = w->parameter;
    if (!p->shard_gradient || ++p->used < p->uses)
        return;
    phase before = r->phase;
    if (weight_phase && r->split && r->phase == PHASE_BACKWARD)
        r->phase = PHASE_WEIGHT;
    tensor *sum = p->partial;
    if (r->grid.data > 1) {
        op_attributes at = data_axis(r, p);
        sum = recorder_record(r, OP_reduce_scatter, "reduce gradient", &sum, 1, 1, NULL, &at)->out[0];
        sum->place = p->gradient.place;
    }
    if (p->own_rows > 0) {
        op_attributes at = {.accumulate = p->written ? 1 : 2};
        tensor *to[OP_MAX_OUT] = {&p->own_gradient};
        recorder_record(r, OP_accumulate, "sum gradient", &sum, 1, 0, to, &at);
    }
    p->written = true;
    p->partial = NULL;
    p->used = 0;
    r->phase = before;
}

/* ---- differentiation ----------------------------------------------------------------------------------------- */

static bool keep(const recorder *r, const tensor *t)
{
    const op *o = t->producer;
    if (t->boundary || !o)
        return true;
    uint8_t flags = op_row_of(o)->flags;
    if (flags & GATHER)
        return false;
    switch (r->recompute) {
    case RECOMPUTE_NONE:
        return true;
    case RECOMPUTE_SELECTIVE:
        return !(flags & CHEAP);
    case RECOMPUTE_FULL:
        return false;
    case RECOMPUTE_CHOSEN:
        return !r->drop[o->index];
    }
    return true;
}

/* Of a norm that adds a residual, the output that is the sum, if it is at hand for the backward pass; else -1. */
static int kept_sum(const recorder *r, const op *o)
{
    int sum = o->kind == OP_rmsnorm ? 2 : o->kind == OP_layernorm ? 3 : -1;
    if (sum < 0 || !o->out[sum] || !(keep(r, o->out[sum]) || r->again[o->out[sum]->id]))
        return -1;
    return sum;
}

tensor *recorder_use(recorder *r, tensor *t)
{
    if (t->id < 0 || t->id >= r->forward_tensors)
        return t; /* persistent, or already of the backward pass */
    if (r->again[t->id])
        return r->again[t->id];
    if (keep(r, t)) {
        tensor *root = tensor_root(t);
        if (root->id >= 0)
            root->class = CLASS_KEPT;
        t->class = root->class;
        return t;
    }
    const op *made = t->producer;
    MUST(!(op_row_of(made)->flags & STATEFUL), "%s cannot be made again", t->name);
    tensor *in[OP_MAX_IN] = {0};
    unsigned outputs = 0;
    int sum = kept_sum(r, made);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (made->out[i] && i != sum)
            outputs |= 1u << i;
    if (sum >= 0) { /* y from s alone: what s was the sum of need not be made again */
        in[0] = recorder_use(r, made->out[sum]);
        for (int i = 1; i < sum; i++) /* weight, bias; the residual comes next */
            in[i] = recorder_use(r, made->in[i]);
    }
    for (int i = 0; sum < 0 && i < OP_MAX_IN; i++)
        in[i] = made->in[i] ? recorder_use(r, made->in[i]) : NULL;
    char prefix[sizeof r->prefix];
    memcpy(prefix, r->prefix, sizeof prefix);
    r->prefix[0] = 0;
    op *o = recorder_record(r, (op_kind)made->kind, made->label, in, OP_MAX_IN, outputs, NULL, &made->at);
    memcpy(r->prefix, prefix, sizeof prefix);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!o->out[i])
            continue;
        o->out[i]->place = made->out[i]->place;
        o->out[i]->parameter = made->out[i]->parameter;
        r->again[made->out[i]->id] = o->out[i];
    }
    return r->again[t->id];
}

void recorder_flow_set(recorder *r, const tensor *of, tensor *sum)
{
    if (of->id >= 0 && of->id < r->forward_tensors)
        r->cotangent[of->id] = sum;
}

tensor *recorder_flow_take(recorder *r, const tensor *of)
{
    return of->id >= 0 && of->id < r->forward_tensors ? r->cotangent[of->id] : NULL;
}

void recorder_flow(recorder *r, tensor *of, tensor *value)
{
    tensor *before = recorder_flow_take(r, of);
    if (before)
        value = recorder_record(r, OP_add, "add cotangents", (tensor *[]){before, value}, 2, 1, NULL, NULL)->out[0];
    recorder_flow_set(r, of, value);
}

bool recorder_wants(const recorder *r, const tensor *of)
{
    return of->id >= 0 && of->id < r->forward_tensors && dtype_is_float((dtype)of->type);
}

tensor *recorder_differentiate(recorder *r, tensor *input, tensor *output, tensor *cotangent)
{
    r->forward_tensors = r->tensor_count;
    unsigned long n = (unsigned long)r->tensor_count;
    r->cotangent = must_calloc(n, sizeof(tensor *));
    r->again = must_calloc(n, sizeof(tensor *));
    for (int i = 0; i < r->touched_count; i++)
        r->touched[i]->gathered = NULL;
    if (r->turned) {
        output = r->turned;
        cotangent = r->turned_cotangent;
        /* Made forward, read backward. */
        tensor_root(cotangent)->class = CLASS_KEPT;
        cotangent->class = CLASS_KEPT;
    }
    MUST(cotangent, "nothing to start the backward pass from");
    r->cotangent[output->id] = cotangent;
    r->phase = PHASE_BACKWARD;
    char prefix[sizeof r->prefix];
    memcpy(prefix, r->prefix, sizeof prefix);
    const program *forward = &r->body[PHASE_FORWARD];
    for (int i = forward->count - 1; i >= 0; i--) {
        const op *o = forward->ops[i];
        tensor *flow[OP_MAX_OUT] = {0};
        bool any = false;
        for (int k = 0; k < OP_MAX_OUT; k++) {
            flow[k] = o->out[k] ? recorder_flow_take(r, o->out[k]) : NULL;
            any |= flow[k] != NULL;
        }
        if (o->detached || !any)
            continue;
        snprintf(r->prefix, sizeof r->prefix, "%s", o->label);
        op_row_of(o)->gradient(r, o, flow);
    }
    memcpy(r->prefix, prefix, sizeof prefix);
    r->phase = PHASE_FORWARD;
    return input ? recorder_flow_take(r, input) : NULL;
}
