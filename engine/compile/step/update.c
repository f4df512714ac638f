/* A training step outside its micro-batches: weights are gathered before them; gradients are reduced after them, then
 * their norm over the grid, and the optimizer. With ZeRO 1 and 2 a rank updates the rows of a weight that it owns. The
 * others' rows stay the previous step's until the next step gathers them: so each gather may take until the first op
 * that reads the weight, not the end of a step. A gradient's reductions come right after the last op that adds to it,
 * so that they overlap with the rest of the backward pass; these ops are found in the unrolled list. A reduction in
 * place makes a new value on the same bytes, and later readers of the gradient read that value. */
#include "engine/compile/step/update.h"

#include <stdlib.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/model/storage.h"
#include "engine/compile/model/optimizer.h"
#include "kernels/exact_sum.h"
#include "kernels/record/operands.h"
#include "kernels/record/replicas.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "engine/compile/model/owner.h"

static const char *label_of(compiled_program *out, const parameter *p, const char *what)
{
    return pool_format(&out->pool, "%s/%s", p->name, what);
}

/* ---- offload ---------------------------------------------------------------------------------------------------- */

/* Optimizer state in host memory (memory.offload): masters and states of matrices are in the device's pinned memory,
 * and pass through windows in the arena, some rows of a matrix at a time. The next pieces are fetched while one is
 * updated and the ones before are stowed; the first are fetched while the last backward pass still computes. */

/* Windows hold a piece while it is fetched, updated and stowed. While piece i is updated, the next two are fetched and
 * the two before it are stowed, so that the bus is busy both ways. */
enum { WINDOWS = 4, AHEAD = WINDOWS - 2, OPERANDS = STORAGE_STATES + 1 };

/* Rows of a matrix, and each of its masters and states: where they are in host memory and in the arena. */
typedef struct row_range {
    const storage *s;
    int64_t first, rows;
    tensor *host[OPERANDS], *arena[OPERANDS]; /* NULL where there is none */
} row_range;

typedef struct offload {
    compiled_program *out;
    const compiled *c;
    row_range *pieces;
    int count, fetched;
    tensor *window[WINDOWS][OPERANDS]; /* apart, so that one is not waited for because of another */
} offload;

/* The master, if it is no weight, and the states. */
static tensor *state_operand(const storage *s, int k)
{
    if (k == 0)
        return s->master != s->own_weight ? s->master : NULL;
    return k <= s->states ? s->state[k - 1] : NULL;
}

/* Returns the rows that fit a window, or all where matrices are updated whole. Pieces begin where tensors would. */
static int64_t rows_at_a_time(const compiled *c, const storage *s)
{
    int64_t bytes = 0, step = 1;
    if (optimizer_whole(&c->options, s->of))
        return s->own_rows;
    for (int k = 0; k < OPERANDS; k++)
        if (state_operand(s, k))
            bytes += s->of->columns * dtype_bytes((dtype)state_operand(s, k)->type);
    while (step * s->of->columns * dtype_bytes(precision_compute(c->options.precision)) % COMPILE_ALIGNMENT)
        step++;
    int64_t rows = c->options.window / WINDOWS / bytes / step * step;
    return rows > step ? rows : step;
}

static void divide_all(offload *o)
{
    o->count = 0;
    for (int i = 0; i < o->c->model.parameter_count; i++) {
        const parameter *p = o->c->model.parameters[i];
        const storage *s = &o->c->storage[p->number];
        if (!optimizer_offloads(&o->c->options, p))
            continue;
        const int64_t all = owner_rows_of(o->c->around.group, s, OWNER_UPDATES).rows;
        const int64_t most = all > 0 ? rows_at_a_time(o->c, s) : 0;
        for (int64_t first = 0, rows; first < all; first += rows) {
            rows = first + most < all ? most : all - first;
            if (o->pieces)
                o->pieces[o->count] = (row_range){.s = s, .first = first, .rows = rows};
            o->count++;
        }
    }
}

/* The windows, each for the largest piece. */
static void open_windows(offload *o)
{
    for (int k = 0; k < OPERANDS; k++) {
        int64_t most = 0;
        for (int i = 0; i < o->count; i++) {
            const tensor *t = state_operand(o->pieces[i].s, k);
            int64_t bytes = t ? o->pieces[i].rows * t->pitch * dtype_bytes((dtype)t->type) : 0;
            most = bytes > most ? bytes : most;
        }
        for (int w = 0; w < WINDOWS && most > 0; w++) {
            o->window[w][k] = pool_alloc(&o->out->pool, sizeof(tensor));
            tensor_describe(o->window[w][k], "window", CLASS_TEMPORARY, DTYPE_UINT8, 1, &most);
        }
    }
}

static void load_from_host(offload *o)
{
    int i = o->fetched++;
    row_range *q = &o->pieces[i];
    const char *label = label_of(o->out, q->s->of, "load_host");
    for (int k = 0; k < OPERANDS; k++) {
        tensor *t = state_operand(q->s, k);
        if (!t)
            continue;
        /* as if all of `t` were in the window, which begins with the piece's rows: only these are accessed */
        tensor *v = q->arena[k] = pool_alloc(&o->out->pool, sizeof *v);
        *v = *t;
        v->class = CLASS_TEMPORARY;
        v->base = o->window[i % WINDOWS][k];
        v->offset = -q->first * t->pitch * dtype_bytes((dtype)t->type);
        v->address = -1;
        q->host[k] = append_rows(o->out, t, q->first, q->rows);
        q->host[k]->base = NULL; /* a tensor of its own, independent of the matrix's other pieces */
        op copy = {.kind = OP_load_host, .in = {q->host[k]}};
        copy.out[0] = append_rows(o->out, q->arena[k], q->first, q->rows);
        append_op(o->out, PHASE_UPDATE, label, &copy, 0, NULL);
    }
}

/* The pieces of a program's update, in the program's pool; none without memory.offload. */
static offload *offload_make(compiled_program *out, const compiled *c)
{
    offload *o = pool_alloc(&out->pool, sizeof *o);
    *o = (offload){.out = out, .c = c};
    divide_all(o);
    o->pieces = pool_alloc(&out->pool, (size_t)(o->count + 1) * sizeof *o->pieces);
    divide_all(o);
    open_windows(o);
    return o;
}

/* Appends the fetches of the first pieces; once. */
static void offload_ahead(offload *o)
{
    while (o->fetched < AHEAD && o->fetched < o->count)
        load_from_host(o);
}

/* Appends the updates of all pieces: for each the fetch of a later piece, the optimizer's ops, and the store of the
 * piece. `gradient`: by number. peaks: qk_clip_gather()'s. */
static void offload_update(offload *o, tensor *const *gradient, tensor *control, tensor *max_logits)
{
    for (int i = 0; i < o->count; i++) {
        row_range *q = &o->pieces[i];
        while (o->fetched < o->count && o->fetched <= i + AHEAD)
            load_from_host(o);
        storage *s = pool_alloc(&o->out->pool, sizeof *s);
        *s = *q->s;
        s->master = q->arena[0] ? q->arena[0] : s->master;
        for (int k = 0; k < s->states; k++)
            s->state[k] = q->arena[1 + k];
        optimizer_append(&(optimizer_update){.out = o->out,
                                             .c = o->c,
                                             .s = s,
                                             .first = q->first,
                                             .rows = q->rows,
                                             .gradient = gradient[s->of->number],
                                             .control = control,
                                             .max_logits = max_logits});
        const char *label = label_of(o->out, s->of, "store_host");
        for (int k = 0; k < OPERANDS; k++) {
            if (!q->host[k])
                continue;
            op copy = {.kind = OP_store_host, .out = {q->host[k]}};
            copy.in[0] = append_rows(o->out, q->arena[k], q->first, q->rows);
            append_op(o->out, PHASE_UPDATE, label, &copy, 0, NULL);
        }
    }
}

/* A gradient on its way. */
typedef struct travelling {
    const parameter *p;
    tensor *message; /* the last that was made of it */
    int steps;       /* done */
} travelling;

/* Kept by an op, for a feedback. */
typedef struct keeping {
    const parameter *p;
    tensor *kept, *feedback;
} keeping;

/* Parameters with gradients to be reduced together along one axis. */
typedef struct bucket {
    const parameter *of[COMM_SEGMENTS];
    int count;
    int64_t bytes;
} bucket;

typedef struct update {
    compiled_program *out;
    const compiled *c;
    tensor **gradient;  /* each parameter's value so far, by number; only owned rows once it is scattered */
    bucket *buckets;    /* [AXIS_COUNT] */
    travelling *on_way; /* sums over the replicas in compressed form; NULL: uncompressed */
    keeping *kept;
    int travel_count, kept_count;
    offload *offload;   /* parameters in host memory */
    bool counts;        /* something was added to the norm's bins */
    tensor *choices;    /* tokens by expert, of all ranks */
    tensor *max_logits; /* largest scores of attention, of all ranks; or NULL */
} update;

static tensor *append_update(compiled_program *out, const char *label, const op *like, tensor *into)
{
    return append_op(out, PHASE_UPDATE, label, like, 0, into)->out[0];
}

/* ---- compressed gradients --------------------------------------------------------------------------------------- */

/* Reduces gradients in compressed form (parallel.compress): the ops between a rank's gradient and the sum. Each rank
 * encodes its gradient plus the error feedback of earlier messages, in parts; every part goes to its owner, which sums
 * the messages in rank order. Without ZeRO the sum is encoded, too, with an error feedback of its own, and gathered:
 * compressed both ways (DoubleSqueeze, 1905.05957). So a rank's traffic shrinks by the same ratio however many ranks
 * there are. A bucket's messages travel while later ops compute: each step of a bucket is appended when the next bucket
 * comes. Everything is in the program's pool. */

static tensor *append_made(update *u, const parameter *p, const char *what, const op *like, unsigned outputs, int which)
{
    return append_op(u->out, PHASE_UPDATE, label_of(u->out, p, what), like, outputs, NULL)->out[which];
}

/* Returns an op that encodes or decodes a gradient: in parts, one per rank that sums. */
static op encoding_of(const update *u, const parameter *p, int64_t messages)
{
    op like = {.at.compression = {.messages = messages,
                                  .kind = (uint8_t)u->c->options.compress.kind,
                                  .density = (float)u->c->options.compress.density},
               .where = op_along(u->c->around.group, p->replicas)};
    like.where.owner = u->c->storage[p->number].sum_owner;
    return like;
}

/* A gradient's bytes for the value that comes there: placed along the axis as `place`. */
static tensor *gradient_rows(update *u, const parameter *p, int64_t first, int64_t rows, placement place)
{
    const compiled *c = u->c;
    const tensor *before = u->gradient[p->number];
    tensor *t = append_rows(u->out, c->storage[p->number].gradient, first, p->vector ? rows * p->columns : rows);
    t->place = before->place;
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (c->around.group[p->replicas].slots >> i & 1)
            t->place.along[i] = place;
    return t;
}

/* x and its feedback, written; the rest is kept. */
static tensor *append_encode(update *u, const parameter *p, tensor *x, tensor *feedback, op like, const char *what)
{
    like.kind = OP_compress;
    memcpy(like.in, (tensor *[]){x, feedback, u->c->values.scalars}, 3 * sizeof *like.in);
    op *o = append_op(u->out, PHASE_UPDATE, label_of(u->out, p, what), &like, 3, NULL);
    u->kept[u->kept_count++] = (keeping){p, o->out[1], feedback};
    return o->out[0];
}

static void append_decode(update *u, const parameter *p, tensor *messages, tensor *into, op like)
{
    like.kind = OP_decompress;
    memcpy(like.in, (tensor *[]){messages, u->c->values.scalars}, 2 * sizeof *like.in);
    like.out[0] = into;
    if (tensor_elements(into) > 0)
        append_made(u, p, "decompress", &like, 0, 0);
    u->gradient[p->number] = into;
}

/* Sends this rank's parts to the ranks that sum them. */
static void send_parts(update *u, travelling *t)
{
    const storage *s = &u->c->storage[t->p->number];
    tensor *message =
        append_encode(u, t->p, u->gradient[t->p->number], s->feedback, encoding_of(u, t->p, 0), "compress gradient");
    const op exchange = replicas_exchange(u->c->around.group, s, message);
    t->message = append_made(u, t->p, "exchange gradient", &exchange, 1, 0);
}

/* Sums this rank's rows of all messages; where every rank gets the whole sum, encodes them again. */
static void sum_messages(update *u, travelling *t)
{
    const storage *s = &u->c->storage[t->p->number];
    op one = encoding_of(u, t->p, 0);
    tensor *into = gradient_rows(u, t->p, t->p->vector ? 0 : s->sum_first, s->sum_rows,
                                 s->sum_owner >= 0 ? place_owned() : place_shard(0));
    one.at.compression.messages = one.where.group_size;
    one.where.rows = s->sum_owner >= 0 || t->p->vector ? 0 : t->p->rows;
    append_decode(u, t->p, t->message, into, one);
    if (s->divided)
        return;
    tensor *message = t->message; /* empty if another rank owns all */
    one.at.compression.messages = 0;
    if (s->sum_rows > 0)
        message = append_encode(u, t->p, into, s->feedback_sum, one, "compress sum");
    const op gather = replicas_gather_sums(u->c->around.group, s, message);
    t->message = append_made(u, t->p, "gather sum", &gather, 1, 0);
}

static void spread_sum(update *u, travelling *t)
{
    append_decode(u, t->p, t->message, gradient_rows(u, t->p, 0, t->p->rows, place_replicate()),
                  encoding_of(u, t->p, 1));
}

static void (*const steps[])(update *u, travelling *t) = {send_parts, sum_messages, spread_sum};

static bool advance_sum(update *u, travelling *t)
{
    if (t->steps == (u->c->storage[t->p->number].divided ? 2 : 3)) /* ranks that divide nothing get the whole sum */
        return false;
    steps[t->steps++](u, t);
    return true;
}

/* Begins the sums of `count` gradients. */
static void compressed_reduce(update *u, const parameter *const *of, int count)
{
    for (int i = 0; i < u->travel_count; i++)
        advance_sum(u, &u->on_way[i]);
    for (int i = 0; i < count; i++) {
        u->on_way[u->travel_count] = (travelling){.p = of[i]};
        advance_sum(u, &u->on_way[u->travel_count++]);
    }
}

/* ---- before ---------------------------------------------------------------------------------------------------- */

static tensor *gather_weight(compiled_program *out, const compiled *c, const storage *s, tensor *own, tensor *into)
{
    const op gather = replicas_gather(c->around.group, s, own);
    return append_op(out, PHASE_BEGIN, label_of(out, s->of, "gather weight"), &gather, into ? 0 : 1, into)->out[0];
}

void update_append_gathers(compiled_program *out, const compiled *c)
{
    for (int i = 0; i < c->model.parameter_count; i++) {
        const storage *s = &c->storage[c->model.parameters[i]->number];
        if (storage_is_gathered(s) && s->of->shares < 0)
            gather_weight(out, c, s, s->own_weight, s->weight);
    }
}

tensor *const *update_append_begin(compiled_program *out, const compiled *c)
{
    tensor **whole = NULL;
    if (tensor_elements(c->values.over) > 0)
        append_op(out, PHASE_BEGIN, "experts/no overflow", &(op){.kind = OP_zero, .out = {c->values.over}}, 0, NULL);
    if (tensor_elements(c->values.choices) > 0)
        append_op(out, PHASE_BEGIN, "experts/no tokens", &(op){.kind = OP_zero, .out = {c->values.choices}}, 0, NULL);
    update_append_gathers(out, c);
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
        like.where.bundle = (int16_t)place;
        like.where.bundle_of = (int16_t)together;
    }
    if (op_has(&like, OP_SCATTER)) /* a vector, one row, is owned whole or not at all */
        into = append_rows(u->out, d, p->vector ? 0 : s->own_first, s->own_gradient->shape[0]);
    return append_update(u->out, label_of(u->out, p, "reduce gradient"), &like, into);
}

/* parallel.bucket. A message costs its latency however short it is, and no computation is left to hide the last bucket:
 * many small ones cost latency, a large last one the time to send it. `phalanx plan` predicts for a step on 64 data
 * ranks of its default cluster, in ms:
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

/* Adds a gradient to the bucket of its next sum, and flushes the bucket if it is full. */
static void add_to_bucket(update *u, const parameter *p, axis after)
{
    const tensor *d = u->gradient[p->number];
    axis a = replicas_next_sum(p, d, after);
    if (a == AXIS_COUNT)
        return;
    bucket *b = &u->buckets[a];
    b->of[b->count++] = p;
    b->bytes += p->rows * p->columns * dtype_bytes((dtype)d->type); /* all rows, however ranks divide them */
    if (b->bytes >= u->c->options.layout.bucket || b->count == COMM_SEGMENTS)
        flush_bucket(u, a);
}

static void flush_bucket(update *u, axis a)
{
    bucket full = u->buckets[a];
    u->buckets[a] = (bucket){0};
    if (u->on_way && axis_rows[a].gradients == AXIS_SUMS_REPLICAS) {
        compressed_reduce(u, full.of, full.count);
        return;
    }
    for (int i = 0; i < full.count; i++)
        u->gradient[full.of[i]->number] = reduce_along(u, full.of[i], a, i, full.count);
    for (int i = 0; i < full.count; i++)
        add_to_bucket(u, full.of[i], a);
}

/* Returns the parameter with the same weight but a gradient of its own, or NULL. */
static const parameter *sharer_of(const compiled *c, const parameter *p)
{
    for (int i = 0; i < c->model.parameter_count; i++)
        if (c->model.parameters[i]->shares == p->number)
            return c->model.parameters[i];
    return NULL;
}

/* Returns the parameter of the gradient that `t`, an op's output, is (part of); or NULL. */
static const parameter *adds_to(const compiled *c, tensor *t)
{
    const parameter *p = t ? tensor_root(t)->parameter : NULL;
    return p && tensor_root(t) == c->storage[p->number].gradient ? p : NULL;
}

enum { NEVER = -1, REDUCED = -2 };

/* Returns, by number, the op of the list that completes the parameter's gradient. */
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
            /* a tied one's waits for another stage, or for another parameter's */
            if (p && last[p->number] == i && parameter_copied_from(p, AXIS_TIE) != 0 && p->shares < 0 &&
                !sharer_of(c, p)) {
                add_to_bucket(u, p, AXIS_COUNT);
                last[p->number] = REDUCED;
                complete++;
            }
        }
        /* half of the last backward pass's activations are freed by then, and the windows take their bytes */
        if (2 * complete >= c->model.parameter_count)
            offload_ahead(u->offload);
    }
    offload_ahead(u->offload);
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *p = c->model.parameters[i];
        if (last[p->number] == REDUCED || p->shares >= 0 || p->counted)
            continue;
        const parameter *other = sharer_of(c, p); /* its gradient is added, and then no longer used */
        if (other && tensor_elements(u->gradient[p->number]) > 0) {
            op add = {.kind = OP_accumulate, .in = {u->gradient[other->number]}, .out = {u->gradient[p->number]}};
            add.at.accumulate = OP_ADDS;
            append_update(u->out, label_of(u->out, p, "sum gradients"), &add, NULL);
        }
        add_to_bucket(u, p, AXIS_COUNT);
    }
    static const axis_gradients order[] = {AXIS_SUMS_COPIES,
                                           AXIS_SUMS_REPLICAS}; /* one fills the buckets of the other */
    for (int i = 0; i < 2; i++)
        for (axis a = 0; a < AXIS_COUNT; a++)
            if (axis_rows[a].gradients == order[i])
                flush_bucket(u, a);
    for (bool moved = true; moved;) { /* repeat until all compressed sums are complete */
        moved = false;
        for (int i = 0; i < u->travel_count; i++)
            moved |= advance_sum(u, &u->on_way[i]);
    }
    program_free(&before);
}

/* ---- norm ------------------------------------------------------------------------------------------------------ */

/* Each gradient element is counted once over the grid. */
static void count_squares(update *u, const parameter *p)
{
    const storage *s = &u->c->storage[p->number];
    tensor *d = u->gradient[p->number];
    owner_rows counted = owner_rows_of(u->c->around.group, s, OWNER_COUNTS);
    int64_t first = counted.first - (s->divided && !p->vector ? s->own_first : 0); /* first of the rows at hand */
    if (counted.rows == 0 || p->counted)
        return;
    op add = {.kind = OP_sum_squares, .in = {d}, .out = {u->c->values.bins}};
    add.at.accumulate = u->counts ? OP_ADDS : OP_WRITES;
    if (first > 0 || counted.rows < d->shape[0])
        add.in[0] = append_rows(u->out, d, first, counted.rows);
    append_update(u->out, label_of(u->out, p, "norm"), &add, NULL);
    u->counts = true;
}

/* Makes the norm infinite if any rank had no room for all rows of experts, so that the step changes no state. */
static void count_overflow(update *u)
{
    tensor *over = u->c->values.over;
    if (tensor_elements(over) == 0)
        return;
    tensor *own = append_rows(u->out, over, CAPACITY_BUCKETS - 1, 1);
    own->place = u->c->values.control->place; /* each rank counts its own */
    op add = {.kind = OP_sum_squares, .in = {own}, .out = {u->c->values.bins}};
    add.at.accumulate = u->counts ? OP_ADDS : OP_WRITES;
    append_update(u->out, "experts/overflow", &add, NULL);
    u->counts = true;
    op reduce = {.kind = OP_all_reduce, .in = {over}, .where = op_along(u->c->around.group, AXIS_GRID)};
    operands_whole(append_update(u->out, "experts/sum overflow", &reduce, over));
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
        append_update(u->out, "norm/zero", &(op){.kind = OP_zero, .out = {bins}}, NULL);
    const op_where where = op_along(c->around.group, AXIS_GRID);
    if (where.group_size > 1)
        bins = append_update(u->out, "norm/reduce", &(op){.kind = OP_all_reduce, .in = {bins}, .where = where}, bins);
    op clip = {.kind = OP_clip, .in = {bins, c->values.scalars}};
    return append_update(u->out, "norm/clip", &clip, c->values.control);
}

/* ---- loss ------------------------------------------------------------------------------------------------------ */

/* Sums a loss over the grid, from the ranks that count. */
static void sum_losses(compiled_program *out, const compiled *c, const char *name, tensor *own, tensor *total,
                       bool counts)
{
    const op copy = {.kind = OP_copy, .in = {own}}, zero = {.kind = OP_zero, .out = {total}};
    if (counts)
        total = append_update(out, pool_format(&out->pool, "%s/copy", name), &copy, total);
    else
        append_update(out, pool_format(&out->pool, "%s/zero", name), &zero, NULL);
    op reduce = {.kind = OP_all_reduce, .in = {total}, .where = op_along(c->around.group, AXIS_GRID)};
    if (reduce.where.group_size > 1)
        total = append_update(out, pool_format(&out->pool, "%s/reduce", name), &reduce, total);
    operands_whole(total);
}

void update_zero_losses(compiled_program *out, const compiled *c)
{
    if (tensor_elements(c->values.router_losses) > 0)
        append_op(out, PHASE_BEGIN, "router loss/start", &(op){.kind = OP_zero, .out = {c->values.router_losses}}, 0,
                  NULL);
}

/* Sums the losses: ranks of a tensor group have the same logits for the vocabulary's loss, and the same routers' logits
 * unless they divide the tokens. */
void update_append_loss(compiled_program *out, const compiled *c)
{
    bool first = c->options.grid.at[GRID_TENSOR] == 0;
    sum_losses(out, c, "loss", c->values.loss, c->values.loss_total, c->last_stage && first);
    if (tensor_elements(c->values.router_losses) > 0)
        sum_losses(out, c, "router loss", c->values.router_losses, c->values.router_total, first || c->around.sequence);
}

/* ---- optimizer ------------------------------------------------------------------------------------------------- */

/* Updates the biases of this stage's layers from the expert choices of all ranks' tokens. */
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
                       .at.balance.scale = (float)c->model.shape.router_bias_rate};
            append_update(u->out, label_of(u->out, e->bias, "update"), &like, NULL);
        }
}

static void append_updates(update *u, tensor *control)
{
    append_biases(u, control);
    for (int i = 0; i < u->c->model.parameter_count; i++) {
        const parameter *p = u->c->model.parameters[i];
        const storage *s = &u->c->storage[p->number];
        tensor *d = u->gradient[p->number];
        if (!p->counted && owner_rows_of(u->c->around.group, s, OWNER_UPDATES).rows > 0 &&
            !optimizer_offloads(&u->c->options, p))
            optimizer_append(&(optimizer_update){.out = u->out,
                                                 .c = u->c,
                                                 .s = s,
                                                 .rows = d->shape[0],
                                                 .gradient = d,
                                                 .control = control,
                                                 .max_logits = u->max_logits});
    }
    offload_update(u->offload, u->gradient, control, u->max_logits);
}

void update_append(compiled_program *out, const compiled *c)
{
    update u = {.out = out, .c = c, .offload = offload_make(out, c)};
    u.buckets = pool_alloc(&out->pool, AXIS_COUNT * sizeof *u.buckets);
    u.gradient = pool_alloc(&out->pool, ((size_t)c->model.numbers + 1) * sizeof *u.gradient);
    for (int i = 0; i < c->model.numbers; i++)
        u.gradient[i] = c->storage[i].gradient;
    if (c->feedback_section) {
        size_t all = (size_t)c->model.parameter_count + 1;
        u.on_way = pool_alloc(&out->pool, all * sizeof *u.on_way);
        u.kept = pool_alloc(&out->pool, 2 * all * sizeof *u.kept);
    }
    insert_reductions(&u);
    update_append_loss(out, c);
    if (tensor_elements(c->values.mtp_loss) > 0)
        sum_losses(out, c, "mtp loss", c->values.mtp_loss, c->values.mtp_total,
                   c->last_stage && c->options.grid.at[GRID_TENSOR] == 0);
    /* each token is counted on one rank: the ranks of a tensor group divide the tokens if there are experts */
    u.choices = c->values.choices;
    op sum = {.kind = OP_all_reduce, .in = {u.choices}, .where = op_along(c->around.group, AXIS_GRID)};
    if (tensor_elements(u.choices) > 0 && sum.where.group_size > 1)
        u.choices = append_update(out, "experts/sum counts", &sum, u.choices);
    if (tensor_elements(u.choices) > 0)
        operands_whole(u.choices);
    u.max_logits = qk_clip_gather(out, c);
    tensor *control = append_norm(&u);
    for (int i = 0; i < u.kept_count; i++) { /* keep the error feedback for the next step, unless this one is skipped */
        op keep = {.kind = OP_store_feedback, .in = {u.kept[i].kept, control}, .out = {u.kept[i].feedback}};
        append_made(&u, u.kept[i].p, "keep", &keep, 0, 0);
    }
    append_updates(&u, control);
}
