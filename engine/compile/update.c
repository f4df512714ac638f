/* What surrounds the micro-batches of a training step: gathers before, and after them the reduction of gradients, their
 * norm over the grid, the optimizer and the gathering of what it updated.
 *
 * A gradient's reductions stand right behind the last op that adds to it, so that they travel while the rest of the
 * backward pass computes; which ops those are is read off the unrolled list. */
#include "engine/compile/compile_parts.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/exact_sum.h"
#include "memory/log.h"

static op_attributes along(const compiled *c, axis a)
{
    const grid *g = &c->options.grid;
    return (op_attributes){
        .axis = (uint8_t)a, .group_size = grid_group_size(g, a), .group_rank = grid_index(g, a), .owner = -1};
}

static op_attributes along_gradient(const compiled *c, const parameter *p)
{
    op_attributes at = along(c, AXIS_GRADIENT);
    at.rows = p->vector ? p->columns : p->rows;
    at.owner = p->owner;
    return at;
}

static op *append(compiled_program *out, compiled *c, op_kind kind, const char *label, tensor *x, tensor *y,
                  const op_attributes *at)
{
    return unroll_append(out, c, kind, PHASE_UPDATE, label, &x, 1, &y, 1, at);
}

static tensor *new_view(compiled *c, tensor *of, int64_t first_row, int64_t rows)
{
    tensor *v = pool_alloc(&c->pool, sizeof *v);
    *v = *of;
    v->base = tensor_root(of);
    int64_t offset = first_row * of->pitch * dtype_bytes((dtype)of->type);
    v->offset = of->offset + offset;
    v->address = of->address >= 0 ? of->address + offset : -1;
    v->shape[0] = rows;
    return v;
}

/* ---- before ---------------------------------------------------------------------------------------------------- */

void update_begin(compiled_program *out, compiled *c)
{
    if (c->options.gather_each)
        return;
    for (int i = 0; i < c->model.parameter_count; i++) {
        parameter *p = c->model.parameters[i];
        if (!p->shard_weight)
            continue;
        op_attributes at = along_gradient(c, p);
        tensor *in = &p->shard, *whole = &p->weight;
        unroll_append(out, c, OP_all_gather, PHASE_BEGIN, pool_format(&c->pool, "%s/gather weight", p->name), &in, 1,
                      &whole, 1, &at);
    }
}

/* ---- reductions ------------------------------------------------------------------------------------------------ */

/* Rows [*first, *first + *count) of the copied key/value heads that the gradient tensor holds. */
static bool copied_rows(int64_t *first, int64_t *count, const parameter *p)
{
    if (p->copied_from < 0)
        return false;
    int64_t held_first = p->shard_gradient && !p->vector ? p->own_first : 0;
    int64_t held = p->gradient.shape[0], from = p->copied_from - held_first;
    *first = from > 0 ? from : 0;
    *count = held - *first;
    return *count > 0;
}

/* The sums of one parameter's gradient over the axes on which the ranks' gradients are shares of it. */
static void reduce(compiled_program *out, compiled *c, parameter *p)
{
    const grid *g = &c->options.grid;
    tensor *d = &p->gradient;
    const char *label = pool_format(&c->pool, "%s/reduce gradient", p->name);
    if (tensor_elements(d) > 0 && p->place.kind == PLACE_SHARED && g->size[GRID_TENSOR] > 1) {
        op_attributes at = along(c, AXIS_TENSOR);
        append(out, c, OP_all_reduce, label, d, d, &at);
    }
    int64_t first, count;
    if (copied_rows(&first, &count, p)) {
        op_attributes at = along(c, AXIS_KV);
        tensor *rows = new_view(c, d, first, count);
        append(out, c, OP_all_reduce, label, rows, rows, &at);
    }
    if (p->shard_gradient || grid_group_size(g, AXIS_GRADIENT) == 1)
        return;
    op_attributes at = along_gradient(c, p);
    if (c->options.zero == 0)
        append(out, c, OP_all_reduce, label, d, d, &at);
    else
        append(out, c, OP_reduce_scatter, label, d, &p->own_gradient, &at);
}

static bool is_tied(const compiled *c, const parameter *p)
{
    const decoder_chunk *first = &c->model.chunks[0];
    return c->model.shape.tied_embeddings && c->options.grid.size[GRID_PIPELINE] > 1 &&
           (p->tied || (first->embeds && p == first->embedding.table));
}

/* Insert each parameter's reductions behind the op that completes its gradient; the tied embedding's, which waits for
 * another stage, at the end. */
static void insert_reductions(compiled_program *out, compiled *c)
{
    program before = out->list;
    out->list = (program){0};
    int n = c->model.parameter_count;
    int *last = must_calloc((unsigned long)n, sizeof(int));
    for (int i = 0; i < n; i++)
        last[i] = -1;
    for (int i = 0; i < n; i++)
        c->model.parameters[i]->used = i; /* index, for the sweep below */
    for (int i = 0; i < before.count; i++)
        for (int k = 0; k < OP_MAX_OUT; k++) {
            tensor *t = before.ops[i]->out[k];
            parameter *p = t && before.ops[i]->kind != OP_all_gather ? tensor_root(t)->parameter : NULL;
            if (p && (tensor_root(t) == &p->gradient))
                last[p->used] = i;
        }
    for (int i = 0; i < before.count; i++) {
        program_append(&out->list, before.ops[i]);
        for (int k = 0; k < OP_MAX_OUT; k++) {
            tensor *t = before.ops[i]->out[k];
            parameter *p = t ? tensor_root(t)->parameter : NULL;
            if (p && tensor_root(t) == &p->gradient && last[p->used] == i && !is_tied(c, p)) {
                reduce(out, c, p);
                last[p->used] = -2;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        parameter *p = c->model.parameters[i];
        if (last[i] == -2)
            continue;
        if (is_tied(c, p) && tensor_elements(&p->gradient) > 0) {
            op_attributes at = along(c, AXIS_TIE);
            append(out, c, OP_all_reduce, "embedding/reduce over both ends", &p->gradient, &p->gradient, &at);
        }
        reduce(out, c, p);
    }
    for (int i = 0; i < n; i++)
        c->model.parameters[i]->used = 0;
    free(last);
    program_free(&before);
}

/* ---- norm ------------------------------------------------------------------------------------------------------ */

typedef struct squares {
    compiled_program *out;
    compiled *c;
    bool any;
} squares;

static void add_squares(squares *s, parameter *p, tensor *d, int64_t first, int64_t rows)
{
    if (rows <= 0)
        return;
    tensor *part = first == 0 && rows == d->shape[0] ? d : new_view(s->c, d, first, rows);
    op_attributes at = {.accumulate = s->any};
    append(s->out, s->c, OP_sum_squares, pool_format(&s->c->pool, "%s/norm", p->name), part, &s->c->inputs.bins, &at);
    s->any = true;
}

/* Each gradient element is counted once over the grid: copies by the first rank that holds them, and over the ranks
 * whose gradients sum by the one that owns, or with ZeRO 0 would own, the rows. */
static void count_squares(squares *s, parameter *p)
{
    compiled *c = s->c;
    const grid *g = &c->options.grid;
    bool copy = p->place.kind == PLACE_REPLICATE || p->place.kind == PLACE_SHARED;
    if (p->tied || (copy && g->at[GRID_TENSOR] > 0))
        return;
    int data = grid_group_size(g, AXIS_GRADIENT), me = grid_index(g, AXIS_GRADIENT);
    tensor *d = &p->own_gradient;
    int64_t first = 0, rows = d->shape[0], start = p->vector ? 0 : p->own_first;
    if (data > 1 && c->options.zero == 0) {
        if (p->vector && p->number % data != me)
            return;
        if (!p->vector)
            shard_rows(&first, &rows, p->rows, data, me);
        start = first;
    }
    if (p->copied_from >= 0 && grid_index(g, AXIS_KV) > 0 && rows > 0) {
        int64_t own = p->copied_from - start; /* of the rows at hand, those that are no copies */
        rows = own < 0 ? 0 : own < rows ? own : rows;
    }
    add_squares(s, p, d, first, rows);
}

static void append_norm(compiled_program *out, compiled *c)
{
    squares s = {.out = out, .c = c};
    for (int i = 0; i < c->model.parameter_count; i++)
        count_squares(&s, c->model.parameters[i]);
    compiled_inputs *in = &c->inputs;
    if (!s.any) {
        tensor *bins = &in->bins;
        unroll_append(out, c, OP_zero, PHASE_UPDATE, "norm/zero", NULL, 0, &bins, 1, NULL);
    }
    if (c->options.grid.ranks > 1) {
        op_attributes at = along(c, AXIS_GRID);
        append(out, c, OP_all_reduce, "norm/reduce", &in->bins, &in->bins, &at);
    }
    tensor *operands[] = {&in->bins, &in->scalars}, *control = &in->control;
    unroll_append(out, c, OP_clip, PHASE_UPDATE, "norm/clip", operands, 2, &control, 1, NULL);
}

/* ---- loss ------------------------------------------------------------------------------------------------------ */

void update_loss(compiled_program *out, compiled *c)
{
    tensor *loss = &c->inputs.loss, *total = &c->inputs.loss_total;
    bool counts = c->last_stage && c->options.grid.at[GRID_TENSOR] == 0;
    if (counts)
        append(out, c, OP_copy, "loss/copy", loss, total, NULL);
    else
        unroll_append(out, c, OP_zero, PHASE_UPDATE, "loss/zero", NULL, 0, &total, 1, NULL);
    if (c->options.grid.ranks > 1) {
        op_attributes at = along(c, AXIS_GRID);
        append(out, c, OP_all_reduce, "loss/reduce", total, total, &at);
    }
}

/* ---- optimizer ------------------------------------------------------------------------------------------------- */

/* A device updates as many tensors in one launch as stand side by side: so many, before their gathers go out. */
enum { TOGETHER = 16 };

static void append_update(compiled_program *out, compiled *c, parameter *p)
{
    tensor *in[] = {&p->own_gradient, &c->inputs.scalars, &c->inputs.control};
    tensor *weight = c->options.compute == DTYPE_FP32 ? NULL : &p->own_weight;
    tensor *outs[] = {weight, &p->master, &p->moment1, &p->moment2};
    op_attributes at = {.decay = p->decay};
    if (p->own_rows > 0)
        unroll_append(out, c, OP_adamw, PHASE_UPDATE, pool_format(&c->pool, "%s/update", p->name), in, 3, outs, 4, &at);
}

static void append_gather(compiled_program *out, compiled *c, parameter *p)
{
    if (grid_group_size(&c->options.grid, AXIS_GRADIENT) == 1 || c->options.zero == 0 || p->shard_weight)
        return;
    op_attributes at = along_gradient(c, p);
    append(out, c, OP_all_gather, pool_format(&c->pool, "%s/gather updated", p->name), &p->own_weight, &p->weight, &at);
}

static void append_updates(compiled_program *out, compiled *c)
{
    int all = c->model.parameter_count;
    for (int first = 0; first < all; first += TOGETHER) {
        int end = first + TOGETHER < all ? first + TOGETHER : all;
        for (int i = first; i < end; i++)
            append_update(out, c, c->model.parameters[i]);
        for (int i = first; i < end; i++)
            append_gather(out, c, c->model.parameters[i]);
    }
}

void update_append(compiled_program *out, compiled *c)
{
    insert_reductions(out, c);
    update_loss(out, c);
    append_norm(out, c);
    append_updates(out, c);
}
