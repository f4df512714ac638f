/* A training step before and after its micro-batches: weights are gathered before; after them the reduction of
 * gradients, their norm over the grid, and the optimizer.
 *
 * With ZeRO 1 and 2 a rank updates the rows of a weight that it owns. The others' rows are those of the step before
 * until the next step gathers them: so each gather has until the first op that reads the weight, not the end of a step.
 *
 * A gradient's reductions come right after the last op that adds to it, so that they travel while the rest of the
 * backward pass computes; which ops those are is found in the unrolled list. A reduction in place makes a new value on
 * the same bytes, and what reads a gradient afterwards reads that value. */
#include "engine/compile/step/update.h"

#include <stdlib.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/model/compressed.h"
#include "engine/compile/model/storage.h"
#include "engine/compile/model/offload.h"
#include "engine/compile/model/optimizer.h"
#include "kernels/exact_sum.h"
#include "kernels/record/operands.h"
#include "kernels/record/replicas.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "engine/compile/model/duty.h"

/* Parameters whose gradients are to be reduced together along one axis. */
typedef struct bucket {
    const parameter *of[COMM_PIECES];
    int count;
    int64_t bytes;
} bucket;

typedef struct update {
    compiled_program *out;
    const compiled *c;
    tensor **gradient;      /* by number: each parameter's value so far, of the owned rows once it is scattered */
    bucket *buckets;        /* [AXIS_COUNT] */
    compressed *compressed; /* sums over the replicas in compressed form, or NULL */
    offload *offload;       /* of what is in host memory */
    bool counts;            /* something was added to the norm's bins */
    tensor *choices;        /* tokens by expert, of all ranks */
    tensor *peaks;          /* largest scores of attention, of all ranks; or NULL */
} update;

static tensor *append(compiled_program *out, const char *label, const op *like, tensor *into)
{
    return append_op(out, PHASE_UPDATE, label, like, 0, into)->out[0];
}

static const char *label_of(compiled_program *out, const parameter *p, const char *what)
{
    return pool_format(&out->pool, "%s/%s", p->name, what);
}

/* ---- before ---------------------------------------------------------------------------------------------------- */

static tensor *gather_weight(compiled_program *out, const compiled *c, const storage *s, tensor *own, tensor *into)
{
    const op gather = replicas_gather(c->around.group, s, own);
    return append_op(out, PHASE_BEGIN, label_of(out, s->of, "gather weight"), &gather, into ? 0 : 1, into)->out[0];
}

void update_gather(compiled_program *out, const compiled *c)
{
    for (int i = 0; i < c->model.parameter_count; i++) {
        const storage *s = &c->storage[c->model.parameters[i]->number];
        if (storage_is_gathered(s) && s->of->shares < 0)
            gather_weight(out, c, s, s->own_weight, s->weight);
    }
}

tensor *const *update_begin(compiled_program *out, const compiled *c)
{
    tensor **whole = NULL;
    if (tensor_elements(c->values.over) > 0)
        append_op(out, PHASE_BEGIN, "experts/no overflow", &(op){.kind = OP_zero, .out = {c->values.over}}, 0, NULL);
    if (tensor_elements(c->values.choices) > 0)
        append_op(out, PHASE_BEGIN, "experts/no tokens", &(op){.kind = OP_zero, .out = {c->values.choices}}, 0, NULL);
    update_gather(out, c);
    for (int i = 0; i < c->model.parameter_count && c->options.layout.zero_gather == CONFIG_EACH_STEP; i++) {
        const parameter *p = c->model.parameters[i];
        const storage *s = &c->storage[p->number];
        if (!s->shard_weight)
            continue;
        if (!whole)
            whole = pool_alloc(&out->pool, (size_t)c->model.numbers * sizeof *whole);
        whole[p->number] = gather_weight(out, c, s, s->shard, NULL);
    }
    return whole;
}

/* ---- reductions ------------------------------------------------------------------------------------------------ */

/* The sum along one axis, op `place` of `together` that are launched as one. Where the replicas divide the gradient,
 * each gets the rows that it owns. */
static tensor *reduce_along(update *u, const parameter *p, axis a, int place, int together)
{
    const storage *s = &u->c->storage[p->number];
    tensor *d = u->gradient[p->number], *into = d;
    op like = replicas_sum(u->c->around.group, s, a, d);
    if (together > 1) {
        like.at.bundle = (int16_t)place;
        like.at.bundle_of = (int16_t)together;
    }
    if (op_has(&like, OP_SCATTER)) /* a vector, one row, is owned whole or not at all */
        into = append_rows(u->out, d, p->vector ? 0 : s->own_first, s->own_gradient->shape[0]);
    return append(u->out, label_of(u->out, p, "reduce gradient"), &like, into);
}

/* parallel.bucket. A message costs its latency however short it is, and nothing is left to hide the last bucket: many
 * small ones cost latency, a large last one the time to send it. What `phalanx plan` says of a step on 64 data ranks of
 * its default cluster, in ms:
 *
 *     bucket                         1 B     8 MiB    32 MiB   128 MiB   512 MiB     4 GiB
 *     llama-1b, ZeRO 0             246.62    246.30    246.14    246.26    247.44    259.22
 *     llama-1b, ZeRO 1             182.52    182.20    182.04    182.17    183.34    195.13
 *     llama-7b, tensor 8           327.67    327.03    326.39    326.87    331.41    364.85
 *     llama-8b, tensor 4 x stage 4 244.71    244.53    244.44    245.08    248.93    261.47
 *
 * Hence 32 MiB. Which gradients share a bucket follows from the program and from sizes that all ranks of an axis agree
 * about; no bit of a sum depends on it. */
static void flush_bucket(update *u, axis a);

/* Puts a gradient where its next sum is made, and makes that if enough have come. */
static void reduce(update *u, const parameter *p, axis after)
{
    const tensor *d = u->gradient[p->number];
    axis a = replicas_next_sum(p, d, after);
    if (a == AXIS_COUNT)
        return;
    bucket *b = &u->buckets[a];
    b->of[b->count++] = p;
    b->bytes += p->rows * p->columns * dtype_bytes((dtype)d->type); /* of all rows, however the ranks divide them */
    if (b->bytes >= u->c->options.layout.bucket || b->count == COMM_PIECES)
        flush_bucket(u, a);
}

static void flush_bucket(update *u, axis a)
{
    bucket full = u->buckets[a];
    u->buckets[a] = (bucket){0};
    if (u->compressed && axis_rows[a].gradients == AXIS_SUMS_REPLICAS) {
        compressed_reduce(u->compressed, full.of, full.count);
        return;
    }
    for (int i = 0; i < full.count; i++)
        u->gradient[full.of[i]->number] = reduce_along(u, full.of[i], a, i, full.count);
    for (int i = 0; i < full.count; i++)
        reduce(u, full.of[i], a);
}

/* The parameter that has the same weight and a gradient apart, or NULL. */
static const parameter *sharer_of(const compiled *c, const parameter *p)
{
    for (int i = 0; i < c->model.parameter_count; i++)
        if (c->model.parameters[i]->shares == p->number)
            return c->model.parameters[i];
    return NULL;
}

/* Does its gradient wait for another stage, or for another parameter's? */
static bool is_tied(const compiled *c, const parameter *p)
{
    return parameter_copied_from(p, AXIS_TIE) == 0 || p->shares >= 0 || sharer_of(c, p);
}

/* The parameter whose gradient `t`, an op's output, is or is part of; or NULL. */
static const parameter *adds_to(const compiled *c, tensor *t)
{
    const parameter *p = t ? tensor_root(t)->parameter : NULL;
    return p && tensor_root(t) == c->storage[p->number].gradient ? p : NULL;
}

enum { NEVER = -1, REDUCED = -2 };

/* By number: the op of the list that completes the parameter's gradient. */
static int *last_additions(const compiled *c, const program *list)
{
    int *last = must_alloc(((unsigned long)c->model.numbers + 1) * sizeof *last);
    for (int i = 0; i < c->model.numbers; i++)
        last[i] = NEVER;
    for (int i = 0; i < list->count; i++)
        for (int k = 0; k < OP_MAX_OUT; k++) {
            const parameter *p = adds_to(c, list->ops[i]->out[k]);
            if (p)
                last[p->number] = i;
        }
    return last;
}

/* Each parameter's reductions go after the op that completes its gradient; the tied embedding's, which waits for
 * another stage, to the end. */
static void insert_reductions(update *u)
{
    const compiled *c = u->c;
    program before = u->out->list;
    u->out->list = (program){0};
    AUTO_FREE int *last = last_additions(c, &before);
    int complete = 0;
    for (int i = 0; i < before.count; i++) {
        program_append(&u->out->list, before.ops[i]);
        for (int k = 0; k < OP_MAX_OUT; k++) {
            const parameter *p = adds_to(c, before.ops[i]->out[k]);
            if (p && last[p->number] == i && !is_tied(c, p)) {
                reduce(u, p, AXIS_COUNT);
                last[p->number] = REDUCED;
                complete++;
            }
        }
        /* by then half of the last backward pass's activations are gone, and the windows take their bytes */
        if (2 * complete >= c->model.parameter_count)
            offload_ahead(u->offload);
    }
    offload_ahead(u->offload);
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        if (last[p->number] == REDUCED || p->shares >= 0 || p->counted)
            continue;
        const parameter *other = sharer_of(c, p); /* whose gradient is added, and then no longer of use */
        if (other && tensor_elements(u->gradient[p->number]) > 0) {
            op add = {.kind = OP_accumulate, .in = {u->gradient[other->number]}, .out = {u->gradient[p->number]}};
            add.at.accumulate = OP_ADDS;
            append(u->out, label_of(u->out, p, "sum gradients"), &add, NULL);
        }
        reduce(u, p, AXIS_COUNT);
    }
    static const axis_gradients order[] = {AXIS_SUMS_COPIES,
                                           AXIS_SUMS_REPLICAS}; /* one fills the buckets of the other */
    for (int i = 0; i < 2; i++)
        for (axis a = 0; a < AXIS_COUNT; a++)
            if (axis_rows[a].gradients == order[i])
                flush_bucket(u, a);
    if (u->compressed)
        compressed_finish(u->compressed);
    program_free(&before);
}

/* ---- norm ------------------------------------------------------------------------------------------------------ */

/* Each gradient element is counted once over the grid. */
static void count_squares(update *u, const parameter *p)
{
    const storage *s = &u->c->storage[p->number];
    tensor *d = u->gradient[p->number];
    duty_rows counted = duty_of(u->c->around.group, s, DUTY_COUNT);
    int64_t first = counted.first - (s->divided && !p->vector ? s->own_first : 0); /* of the rows at hand */
    if (counted.rows == 0 || p->counted)
        return;
    op add = {.kind = OP_sum_squares, .in = {d}, .out = {u->c->values.bins}};
    add.at.accumulate = u->counts ? OP_ADDS : OP_WRITES;
    if (first > 0 || counted.rows < d->shape[0])
        add.in[0] = append_rows(u->out, d, first, counted.rows);
    append(u->out, label_of(u->out, p, "norm"), &add, NULL);
    u->counts = true;
}

/* A step that had not room for all rows of experts, on any rank, has an infinite norm: nothing changes. */
static void count_overflow(update *u)
{
    tensor *over = u->c->values.over;
    if (tensor_elements(over) == 0)
        return;
    tensor *own = append_rows(u->out, over, LADDER_RUNGS - 1, 1);
    own->place = u->c->values.control->place; /* each rank counts what it has seen */
    op add = {.kind = OP_sum_squares, .in = {own}, .out = {u->c->values.bins}};
    add.at.accumulate = u->counts ? OP_ADDS : OP_WRITES;
    append(u->out, "experts/overflow", &add, NULL);
    u->counts = true;
    op reduce = {.kind = OP_all_reduce, .in = {over}, .at = op_along(u->c->around.group, AXIS_GRID)};
    append(u->out, "experts/sum overflow", &reduce, over);
}

/* Returns the control tensor that updates read. */
static tensor *append_norm(update *u)
{
    const compiled *c = u->c;
    tensor *bins = c->values.bins;
    for (int i = 0; i < c->model.parameter_count; i++)
        count_squares(u, c->model.parameters[i]);
    count_overflow(u);
    if (!u->counts)
        append(u->out, "norm/zero", &(op){.kind = OP_zero, .out = {bins}}, NULL);
    op_attributes at = op_along(c->around.group, AXIS_GRID);
    if (at.group_size > 1)
        bins = append(u->out, "norm/reduce", &(op){.kind = OP_all_reduce, .in = {bins}, .at = at}, bins);
    op clip = {.kind = OP_clip, .in = {bins, c->values.scalars}};
    return append(u->out, "norm/clip", &clip, c->values.control);
}

/* ---- loss ------------------------------------------------------------------------------------------------------ */

/* The sum over the grid of what the ranks have that count. */
static void sum_losses(compiled_program *out, const compiled *c, const char *name, tensor *own, tensor *total,
                       bool counts)
{
    const op copy = {.kind = OP_copy, .in = {own}}, zero = {.kind = OP_zero, .out = {total}};
    if (counts)
        total = append(out, pool_format(&out->pool, "%s/copy", name), &copy, total);
    else
        append(out, pool_format(&out->pool, "%s/zero", name), &zero, NULL);
    op reduce = {.kind = OP_all_reduce, .in = {total}, .at = op_along(c->around.group, AXIS_GRID)};
    if (reduce.at.group_size > 1)
        total = append(out, pool_format(&out->pool, "%s/reduce", name), &reduce, total);
    operands_whole(total);
}

void update_start_losses(compiled_program *out, const compiled *c)
{
    if (tensor_elements(c->values.router_losses) > 0)
        append_op(out, PHASE_BEGIN, "router loss/start", &(op){.kind = OP_zero, .out = {c->values.router_losses}}, 0,
                  NULL);
}

/* The ranks of a tensor group have the same logits of the vocabulary's loss; those of routers where they do not divide
 * the tokens. */
void update_loss(compiled_program *out, const compiled *c)
{
    bool first = c->options.grid.at[GRID_TENSOR] == 0;
    sum_losses(out, c, "loss", c->values.loss, c->values.loss_total, c->last_stage && first);
    if (tensor_elements(c->values.router_losses) > 0)
        sum_losses(out, c, "router loss", c->values.router_losses, c->values.router_total, first || c->around.sequence);
}

/* ---- optimizer ------------------------------------------------------------------------------------------------- */

/* The biases of this stage's layers, by what the tokens of all ranks have chosen. */
static void append_biases(update *u, tensor *control)
{
    const compiled *c = u->c;
    const int64_t experts = c->model.shape.experts;
    for (int i = 0; i < c->model.chunk_count; i++)
        for (int k = 0; k < c->model.chunks[i].block_count; k++) {
            const experts_layer *e = &c->model.chunks[i].blocks[k].experts;
            if (!e->bias || c->model.shape.router_bias_rate == 0)
                continue;
            op like = {.kind = OP_expert_bias,
                       .in = {append_rows(u->out, u->choices, e->index * experts, experts), control},
                       .out = {c->storage[e->bias->number].weight},
                       .at.scale = (float)c->model.shape.router_bias_rate};
            append(u->out, label_of(u->out, e->bias, "update"), &like, NULL);
        }
}

static void append_updates(update *u, tensor *control)
{
    append_biases(u, control);
    for (int i = 0; i < u->c->model.parameter_count; i++) {
        const parameter *p = u->c->model.parameters[i];
        const storage *s = &u->c->storage[p->number];
        tensor *d = u->gradient[p->number];
        if (!p->counted && duty_of(u->c->around.group, s, DUTY_UPDATE).rows > 0 && !offload_takes(&u->c->options, p))
            optimizer_append(&(optimizer_update){.out = u->out,
                                                 .c = u->c,
                                                 .s = s,
                                                 .rows = d->shape[0],
                                                 .gradient = d,
                                                 .control = control,
                                                 .peaks = u->peaks});
    }
    offload_update(u->offload, u->gradient, control, u->peaks);
}

void update_append(compiled_program *out, const compiled *c)
{
    update u = {
        .out = out, .c = c, .buckets = must_calloc(AXIS_COUNT, sizeof *u.buckets), .offload = offload_make(out, c)};
    u.gradient = must_calloc((unsigned long)c->model.numbers + 1, sizeof(tensor *));
    for (int i = 0; i < c->model.numbers; i++)
        u.gradient[i] = c->storage[i].gradient;
    if (c->feedback_section)
        u.compressed = compressed_make(out, c, u.gradient);
    insert_reductions(&u);
    update_loss(out, c);
    if (tensor_elements(c->values.mtp_loss) > 0)
        sum_losses(out, c, "mtp loss", c->values.mtp_loss, c->values.mtp_total,
                   c->last_stage && c->options.grid.at[GRID_TENSOR] == 0);
    /* each token is one rank's: those of a tensor group divide them where there are experts */
    u.choices = c->values.choices;
    op sum = {.kind = OP_all_reduce, .in = {u.choices}, .at = op_along(c->around.group, AXIS_GRID)};
    if (tensor_elements(u.choices) > 0 && sum.at.group_size > 1)
        u.choices = append(out, "experts/sum counts", &sum, u.choices);
    u.peaks = qk_clip_gather(out, c);
    tensor *control = append_norm(&u);
    if (u.compressed) {
        compressed_keep(u.compressed, control);
        compressed_free(u.compressed);
    }
    append_updates(&u, control);
    free(u.gradient);
    free(u.buckets);
}
