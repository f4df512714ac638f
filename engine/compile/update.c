/* What surrounds the micro-batches of a training step: gathers before, and after them the reduction of gradients, their
 * norm over the grid, the optimizer and the gathering of what it updated.
 *
 * A gradient's reductions stand right behind the last op that adds to it, so that they travel while the rest of the
 * backward pass computes; which ops those are is read off the unrolled list. */
#include "engine/compile/compile_parts.h"

#include <stdlib.h>

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
    at.owner = c->storage[p->number].owner;
    return at;
}

static op *append(compiled_program *out, op_kind kind, const char *label, tensor *x, tensor *y, const op_attributes *at)
{
    return unroll_append(out, kind, PHASE_UPDATE, label, &x, 1, &y, 1, at);
}

static tensor *new_view(compiled_program *out, tensor *of, int64_t first_row, int64_t rows)
{
    tensor *v = pool_alloc(&out->pool, sizeof *v);
    *v = *of;
    v->base = tensor_root(of);
    int64_t offset = first_row * of->pitch * dtype_bytes((dtype)of->type);
    v->offset = of->offset + offset;
    v->address = of->address >= 0 ? of->address + offset : -1;
    v->shape[0] = rows;
    return v;
}

/* ---- before ---------------------------------------------------------------------------------------------------- */

tensor *const *update_whole(pool *p, const compiled *c)
{
    tensor **all = NULL;
    for (int i = 0; i < c->model.parameter_count && !c->options.gather_each; i++) {
        const storage *s = &c->storage[c->model.parameters[i]->number];
        if (!s->shard_weight)
            continue;
        if (!all)
            all = pool_alloc(p, (size_t)c->model.numbers * sizeof *all);
        tensor *whole = pool_alloc(p, sizeof *whole);
        *whole = *s->weight;
        whole->class = CLASS_TEMPORARY;
        all[s->of->number] = whole;
    }
    return all;
}

void update_begin(compiled_program *out, const compiled *c, tensor *const *whole)
{
    for (int i = 0; i < c->model.parameter_count && whole; i++) {
        const parameter *p = c->model.parameters[i];
        op_attributes at = along_gradient(c, p);
        unroll_append(out, OP_all_gather, PHASE_BEGIN, pool_format(&out->pool, "%s/gather weight", p->name),
                      &c->storage[p->number].shard, 1, &whole[p->number], 1, &at);
    }
}

/* ---- reductions ------------------------------------------------------------------------------------------------ */

/* Rows [*first, *first + *count) of the copied key/value heads that the gradient tensor holds. */
static bool copied_rows(int64_t *first, int64_t *count, const storage *s)
{
    const parameter *p = s->of;
    if (p->copied_from < 0)
        return false;
    int64_t held_first = s->shard_gradient && !p->vector ? s->own_first : 0;
    int64_t held = s->gradient->shape[0], from = p->copied_from - held_first;
    *first = from > 0 ? from : 0;
    *count = held - *first;
    return *count > 0;
}

/* The sums of one parameter's gradient over the axes on which the ranks' gradients are shares of it. */
static void reduce(compiled_program *out, const compiled *c, const parameter *p)
{
    const grid *g = &c->options.grid;
    const storage *s = &c->storage[p->number];
    tensor *d = s->gradient;
    const char *label = pool_format(&out->pool, "%s/reduce gradient", p->name);
    if (tensor_elements(d) > 0 && p->place.kind == PLACE_SHARED && g->size[GRID_TENSOR] > 1) {
        op_attributes at = along(c, AXIS_TENSOR);
        append(out, OP_all_reduce, label, d, d, &at);
    }
    int64_t first, count;
    if (copied_rows(&first, &count, s)) {
        op_attributes at = along(c, AXIS_KV);
        tensor *rows = new_view(out, d, first, count);
        append(out, OP_all_reduce, label, rows, rows, &at);
    }
    if (s->shard_gradient || grid_group_size(g, AXIS_GRADIENT) == 1)
        return;
    op_attributes at = along_gradient(c, p);
    if (c->options.zero == 0)
        append(out, OP_all_reduce, label, d, d, &at);
    else
        append(out, OP_reduce_scatter, label, d, s->own_gradient, &at);
}

static bool is_tied(const compiled *c, const parameter *p)
{
    const decoder_chunk *first = &c->model.chunks[0];
    return c->model.shape.tied_embeddings && c->options.grid.size[GRID_PIPELINE] > 1 &&
           (p->tied || (first->embeds && p == first->embedding.table));
}

/* The parameter whose gradient `t`, an op's output, is or is part of; or NULL. */
static const parameter *adds_to(const compiled *c, tensor *t)
{
    const parameter *p = t ? tensor_root(t)->parameter : NULL;
    return p && tensor_root(t) == c->storage[p->number].gradient ? p : NULL;
}

/* Insert each parameter's reductions behind the op that completes its gradient; the tied embedding's, which waits for
 * another stage, at the end. */
static void insert_reductions(compiled_program *out, const compiled *c)
{
    program before = out->list;
    out->list = (program){0};
    int *last =
        must_calloc((unsigned long)c->model.numbers + 1, sizeof *last); /* by number: the op that completes it */
    for (int i = 0; i < c->model.numbers; i++)
        last[i] = -1;
    for (int i = 0; i < before.count; i++)
        for (int k = 0; k < OP_MAX_OUT; k++) {
            const parameter *p = adds_to(c, before.ops[i]->out[k]);
            if (p)
                last[p->number] = i;
        }
    for (int i = 0; i < before.count; i++) {
        program_append(&out->list, before.ops[i]);
        for (int k = 0; k < OP_MAX_OUT; k++) {
            const parameter *p = adds_to(c, before.ops[i]->out[k]);
            if (p && last[p->number] == i && !is_tied(c, p)) {
                reduce(out, c, p);
                last[p->number] = -2;
            }
        }
    }
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        tensor *d = c->storage[p->number].gradient;
        if (last[p->number] == -2)
            continue;
        if (is_tied(c, p) && tensor_elements(d) > 0) {
            op_attributes at = along(c, AXIS_TIE);
            append(out, OP_all_reduce, "embedding/reduce over both ends", d, d, &at);
        }
        reduce(out, c, p);
    }
    free(last);
    program_free(&before);
}

/* ---- norm ------------------------------------------------------------------------------------------------------ */

typedef struct squares {
    compiled_program *out;
    const compiled *c;
    bool any;
} squares;

static void add_squares(squares *s, const parameter *p, tensor *d, int64_t first, int64_t rows)
{
    if (rows <= 0)
        return;
    tensor *part = first == 0 && rows == d->shape[0] ? d : new_view(s->out, d, first, rows);
    op_attributes at = {.accumulate = s->any};
    append(s->out, OP_sum_squares, pool_format(&s->out->pool, "%s/norm", p->name), part, s->c->results.bins, &at);
    s->any = true;
}

/* Each gradient element is counted once over the grid: copies by the first rank that holds them, and over the ranks
 * whose gradients sum by the one that owns, or with ZeRO 0 would own, the rows. */
static void count_squares(squares *s, const parameter *p)
{
    const compiled *c = s->c;
    const storage *of = &c->storage[p->number];
    const grid *g = &c->options.grid;
    bool copy = p->place.kind == PLACE_REPLICATE || p->place.kind == PLACE_SHARED;
    if (p->tied || (copy && g->at[GRID_TENSOR] > 0))
        return;
    int data = grid_group_size(g, AXIS_GRADIENT), me = grid_index(g, AXIS_GRADIENT);
    tensor *d = of->own_gradient;
    int64_t first = 0, rows = d->shape[0], start = p->vector ? 0 : of->own_first;
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

static void append_norm(compiled_program *out, const compiled *c)
{
    squares s = {.out = out, .c = c};
    for (int i = 0; i < c->model.parameter_count; i++)
        count_squares(&s, c->model.parameters[i]);
    tensor *bins = c->results.bins;
    if (!s.any)
        unroll_append(out, OP_zero, PHASE_UPDATE, "norm/zero", NULL, 0, &bins, 1, NULL);
    if (c->options.grid.ranks > 1) {
        op_attributes at = along(c, AXIS_GRID);
        append(out, OP_all_reduce, "norm/reduce", bins, bins, &at);
    }
    tensor *operands[] = {bins, c->inputs.scalars};
    unroll_append(out, OP_clip, PHASE_UPDATE, "norm/clip", operands, 2, &c->results.control, 1, NULL);
}

/* ---- loss ------------------------------------------------------------------------------------------------------ */

void update_loss(compiled_program *out, const compiled *c)
{
    tensor *loss = c->results.loss, *total = c->results.loss_total;
    bool counts = c->last_stage && c->options.grid.at[GRID_TENSOR] == 0;
    if (counts)
        append(out, OP_copy, "loss/copy", loss, total, NULL);
    else
        unroll_append(out, OP_zero, PHASE_UPDATE, "loss/zero", NULL, 0, &total, 1, NULL);
    if (c->options.grid.ranks > 1) {
        op_attributes at = along(c, AXIS_GRID);
        append(out, OP_all_reduce, "loss/reduce", total, total, &at);
    }
}

/* ---- optimizer ------------------------------------------------------------------------------------------------- */

/* A device updates as many tensors in one launch as stand side by side: so many, before their gathers go out. */
enum { TOGETHER = 16 };

static void append_update(compiled_program *out, const compiled *c, const parameter *p)
{
    const storage *s = &c->storage[p->number];
    tensor *in[] = {s->own_gradient, c->inputs.scalars, c->results.control};
    tensor *weight = c->options.compute == DTYPE_FP32 ? NULL : s->own_weight;
    tensor *outs[] = {weight, s->master, s->state[0], s->state[1]};
    op_attributes at = {.decay = p->decay};
    if (s->own_rows > 0)
        unroll_append(out, OP_adamw, PHASE_UPDATE, pool_format(&out->pool, "%s/update", p->name), in, 3, outs, 4, &at);
}

static void append_gather(compiled_program *out, const compiled *c, const parameter *p)
{
    const storage *s = &c->storage[p->number];
    if (grid_group_size(&c->options.grid, AXIS_GRADIENT) == 1 || c->options.zero == 0 || s->shard_weight)
        return;
    op_attributes at = along_gradient(c, p);
    append(out, OP_all_gather, pool_format(&out->pool, "%s/gather updated", p->name), s->own_weight, s->weight, &at);
}

static void append_updates(compiled_program *out, const compiled *c)
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

void update_append(compiled_program *out, const compiled *c)
{
    insert_reductions(out, c);
    update_loss(out, c);
    append_norm(out, c);
    append_updates(out, c);
}
