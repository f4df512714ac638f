#include "engine/compile/model/compressed.h"

#include <stdlib.h>

#include "engine/compile/model/optimizer.h"
#include "kernels/record/replicas.h"
#include "memory/log.h"

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

struct compressed {
    compiled_program *out;
    const compiled *c;
    tensor **gradient;
    travelling *on_way;
    keeping *kept;
    int count, kept_count;
};

compressed *compressed_make(compiled_program *out, const compiled *c, tensor **gradient)
{
    unsigned long all = (unsigned long)c->model.parameter_count + 1;
    compressed *q = must_calloc(1, sizeof *q);
    *q = (compressed){.out = out, .c = c, .gradient = gradient};
    q->on_way = must_calloc(all, sizeof *q->on_way);
    q->kept = must_calloc(2 * all, sizeof *q->kept);
    return q;
}

void compressed_free(compressed *q)
{
    free(q->on_way);
    free(q->kept);
    free(q);
}

/* ---- the ops ---------------------------------------------------------------------------------------------------- */

static tensor *append(compressed *q, const parameter *p, const char *what, const op *like, unsigned outputs, int which)
{
    const char *label = pool_format(&q->out->pool, "%s/%s", p->name, what);
    return append_op(q->out, PHASE_UPDATE, label, like, outputs, NULL)->out[which];
}

/* Does every rank get all of the sum, in messages of those that made it? */
static bool gathers(const compressed *q, const parameter *p)
{
    return !q->c->storage[p->number].divided;
}

/* How a gradient is written: in parts for those that make its sum. */
static op_attributes attributes_of(const compressed *q, const parameter *p)
{
    op_attributes at = op_along(q->c->around.group, p->replicas);
    at.owner = q->c->storage[p->number].sum_owner;
    at.compression.kind = (uint8_t)q->c->options.compress.kind;
    at.compression.density = (float)q->c->options.compress.density;
    return at;
}

/* A gradient's bytes for the value that comes there: placed along the axis as `place`. */
static tensor *room(compressed *q, const parameter *p, int64_t first, int64_t rows, placement place)
{
    const compiled *c = q->c;
    const tensor *before = q->gradient[p->number];
    tensor *t = append_rows(q->out, c->storage[p->number].gradient, first, p->vector ? rows * p->columns : rows);
    t->place = before->place;
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (c->around.group[p->replicas].slots >> i & 1)
            t->place.along[i] = place;
    return t;
}

/* x and its feedback, written; the rest is kept. */
static tensor *encode(compressed *q, const parameter *p, tensor *x, tensor *feedback, const op_attributes *at,
                      const char *what)
{
    op like = {.kind = OP_compress, .in = {x, feedback, q->c->values.scalars}, .at = *at};
    const char *label = pool_format(&q->out->pool, "%s/%s", p->name, what);
    op *o = append_op(q->out, PHASE_UPDATE, label, &like, 3, NULL);
    q->kept[q->kept_count++] = (keeping){p, o->out[1], feedback};
    return o->out[0];
}

static void decode(compressed *q, const parameter *p, tensor *messages, tensor *into, const op_attributes *at)
{
    op like = {.kind = OP_decompress, .in = {messages, q->c->values.scalars}, .out = {into}, .at = *at};
    if (tensor_elements(into) > 0)
        append(q, p, "decompress", &like, 0, 0);
    q->gradient[p->number] = into;
}

/* To those that make the sum. */
static void send(compressed *q, travelling *t)
{
    const storage *s = &q->c->storage[t->p->number];
    const op_attributes at = attributes_of(q, t->p);
    tensor *message = encode(q, t->p, q->gradient[t->p->number], s->feedback, &at, "compress gradient");
    const op exchange = replicas_exchange(q->c->around.group, s, message);
    t->message = append(q, t->p, "exchange gradient", &exchange, 1, 0);
}

/* The rows whose sum this rank makes, out of all messages; where all ranks get all of it, they are written again. */
static void sum(compressed *q, travelling *t)
{
    const storage *s = &q->c->storage[t->p->number];
    op_attributes one = attributes_of(q, t->p);
    tensor *into =
        room(q, t->p, t->p->vector ? 0 : s->sum_first, s->sum_rows, s->sum_owner >= 0 ? place_owned() : place_shard(0));
    one.compression.messages = one.group_size;
    one.rows = s->sum_owner >= 0 || t->p->vector ? 0 : t->p->rows;
    decode(q, t->p, t->message, into, &one);
    if (!gathers(q, t->p))
        return;
    tensor *message = t->message; /* of no bytes, where another rank owns all */
    one.compression.messages = 0;
    if (s->sum_rows > 0)
        message = encode(q, t->p, into, s->feedback_sum, &one, "compress sum");
    const op gather = replicas_gather_sums(q->c->around.group, s, message);
    t->message = append(q, t->p, "gather sum", &gather, 1, 0);
}

static void spread(compressed *q, travelling *t)
{
    op_attributes at = attributes_of(q, t->p);
    at.compression.messages = 1;
    decode(q, t->p, t->message, room(q, t->p, 0, t->p->rows, place_replicate()), &at);
}

static void (*const steps[])(compressed *q, travelling *t) = {send, sum, spread};

static bool advance(compressed *q, travelling *t)
{
    if (t->steps == (gathers(q, t->p) ? 3 : 2))
        return false;
    steps[t->steps++](q, t);
    return true;
}

void compressed_reduce(compressed *q, const parameter *const *of, int count)
{
    for (int i = 0; i < q->count; i++)
        advance(q, &q->on_way[i]);
    for (int i = 0; i < count; i++) {
        q->on_way[q->count] = (travelling){.p = of[i]};
        advance(q, &q->on_way[q->count++]);
    }
}

void compressed_finish(compressed *q)
{
    bool moved;
    do {
        moved = false;
        for (int i = 0; i < q->count; i++)
            moved |= advance(q, &q->on_way[i]);
    } while (moved);
}

void compressed_keep(compressed *q, tensor *control)
{
    for (int i = 0; i < q->kept_count; i++) {
        const keeping *k = &q->kept[i];
        op keep = {.kind = OP_store_feedback, .in = {k->kept, control}, .out = {k->feedback}};
        append(q, k->p, "keep", &keep, 0, 0);
    }
}
