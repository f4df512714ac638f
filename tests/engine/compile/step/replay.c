#include "tests/engine/compile/step/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/order/order.h"
#include "engine/compile/step/place.h"
#include "engine/compile/step/compile_program.h"
#include "engine/compile/step/update.h"
#include "memory/log.h"

enum { OPERANDS = OP_MAX_IN + OP_MAX_OUT };

static tensor *operand(const op *o, int k)
{
    return k < OP_MAX_IN ? o->in[k] : o->out[k - OP_MAX_IN];
}

static tensor *bottom(tensor *t)
{
    while (t->base)
        t = t->base;
    return t;
}

/* ---- compiling, with a copy of what is what
 * ------------------------------------------------------------------------ */

typedef struct known {
    tensor **key;
    int *id;
    size_t size;
} known;

static int id_of(known *k, replay_rank *r, tensor *t)
{
    size_t at = ((size_t)t >> 4) * 0x9E3779B97F4A7C15u % k->size;
    while (k->key[at] && k->key[at] != t)
        at = (at + 1) % k->size;
    if (!k->key[at]) {
        k->key[at] = t;
        k->id[at] = r->root_count++;
        r->root_bytes[k->id[at]] = tensor_bytes(t);
    }
    return k->id[at];
}

/* Parameters that share a weight have a tensor each, of the same bytes. */
static tensor *whose(const replay_rank *r, tensor *t)
{
    const parameter *p = tensor_persistent(t) && t->class == CLASS_WEIGHT ? t->parameter : NULL;
    return p && p->shares >= 0 && !r->c.storage[p->shares].shard_weight ? r->c.storage[p->shares].weight : t;
}

static void note_roots(replay_rank *r)
{
    int n = r->p.list.count;
    known k = {.size = (size_t)n * OPERANDS * 2 + 1};
    k.key = must_calloc(k.size, sizeof *k.key);
    k.id = must_calloc(k.size, sizeof *k.id);
    r->roots = must_alloc((unsigned long)n * OPERANDS * sizeof *r->roots);
    r->root_bytes = must_alloc((unsigned long)n * OPERANDS * sizeof *r->root_bytes);
    r->offsets = must_calloc((unsigned long)n * OPERANDS, sizeof *r->offsets);
    r->pitches = must_calloc((unsigned long)n * OPERANDS, sizeof *r->pitches);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < OPERANDS; j++) {
            tensor *t = operand(r->p.list.ops[i], j);
            r->roots[i * OPERANDS + j] = t ? id_of(&k, r, whose(r, bottom(t))) : -1;
            r->pitches[i * OPERANDS + j] = t ? t->pitch * dtype_bytes((dtype)t->type) : 0;
            for (const tensor *v = t; v && v->base; v = v->base)
                r->offsets[i * OPERANDS + j] += v->offset;
        }
    free(k.key);
    free(k.id);
}

status replay_lower(replay_rank *out, const compile_options *o)
{
    *out = (replay_rank){0};
    TRY(compile_model(&out->c, o));
    compiled *c = &out->c;
    schedule s = {0};
    TRY(compile_schedule(&s, o, o->microbatches));
    update_zero_losses(&out->p, c);
    tensor *const *whole = update_append_begin(&out->p, c);
    int bodies = unroll_bodies(c);
    recorded *chunks = must_calloc((unsigned long)bodies, sizeof *chunks);
    for (int i = 0; i < bodies; i++)
        unroll_record(&chunks[i], &out->p.pool, c,
                      &(unroll_what){.chunk = i,
                                     .training = true,
                                     .split = schedule_splits(&s),
                                     .recompute = o->recompute,
                                     .fuse = true,
                                     .whole = whole});
    status ok = unroll(&out->p, c, chunks, &s);
    for (int i = 0; i < bodies; i++)
        unroll_recorded_free(&chunks[i]);
    free(chunks);
    schedule_free(&s);
    return ok;
}

status replay_compile(replay_rank *out, const compile_options *o, bool place, void (*before)(replay_rank *r),
                      void (*after)(replay_rank *r))
{
    TRY(replay_lower(out, o));
    order_micro_batches(&out->p, o->order);
    update_append(&out->p, &out->c);
    place_waits(&out->p, o->order);
    note_roots(out);
    if (before)
        before(out);
    place_transients(&out->p, &out->c, !place);
    if (after)
        after(out);
    return STATUS_OK;
}

void replay_free(replay_rank *r)
{
    free(r->roots);
    free(r->root_bytes);
    free(r->offsets);
    free(r->pitches);
    compile_program_free(&r->p);
    compile_free(&r->c);
    *r = (replay_rank){0};
}

/* ---- memory
 * ---------------------------------------------------------------------------------------------------------- */

/* Who wrote last: an op's index; NOBODY before the first; while an asynchronous op is under way -2 - index. */
enum { NOBODY = -1 };

typedef struct shadow {
    const replay_rank *r;
    char *text;
    int *bytes;              /* of each granule of the arena: what is there */
    int **wanted;            /* [roots][granules of the root]: what should be there */
    int64_t granule;         /* bytes, so few that columns of a row have granules of their own */
    int64_t granules, arena; /* of both; host memory's are behind the arena's */
    int *started;            /* [requests] op that is under way, or -1 */
} shadow;

static bool fails(shadow *s, int at, const tensor *t, const char *what, int found)
{
    char text[256];
    const op *o = s->r->p.list.ops[at];
    snprintf(s->text, REPLAY_TEXT, "op %d (%s), micro-batch %d: %s %s (writer %d)", at, op_text(text, sizeof text, o),
             o->microbatch, t->name ? t->name : "?", what, found);
    return false;
}

static int64_t granule_of(const shadow *s, int64_t address)
{
    return address < TENSOR_HOST ? address / s->granule : s->arena + (address - TENSOR_HOST) / s->granule;
}

/* The granules of an operand: rows of them in the arena, and in its array's row of what is wanted. */
typedef struct cells {
    int64_t count, in_row, there, there_step;
    int *wanted;
    int64_t wanted_step;
} cells;

static int64_t cell_there(const cells *c, int64_t i)
{
    return c->there + i / c->in_row * c->there_step + i % c->in_row;
}

static int *cell_wanted(const cells *c, int64_t i)
{
    return c->wanted + i / c->in_row * c->wanted_step + i % c->in_row;
}

static int64_t row_bytes(const tensor *t)
{
    return t->shape[0] ? tensor_elements(t) / t->shape[0] * dtype_bytes((dtype)t->type) : 0;
}

static cells cells_of(shadow *s, int at, int k)
{
    const tensor *t = operand(s->r->p.list.ops[at], k);
    int which = at * OPERANDS + k, root = s->r->roots[which];
    int64_t bytes = tensor_bytes(t), begins = s->r->offsets[which] / s->granule;
    int64_t has = s->r->root_bytes[root] / s->granule + 2;
    cells c = {.there = granule_of(s, t->address)};
    if (tensor_contiguous(t)) {
        c.in_row = c.count = bytes ? granule_of(s, t->address + bytes - 1) - c.there + 1 : 0;
    } else {
        c.in_row = row_bytes(t) / s->granule;
        c.count = c.in_row * t->shape[0];
        c.there_step = t->pitch * dtype_bytes((dtype)t->type) / s->granule;
        c.wanted_step = s->r->pitches[which] / s->granule;
    }
    int64_t last = c.count ? begins + (c.count - 1) / c.in_row * c.wanted_step + c.in_row : 0;
    MUST(last <= has, "%s: a view beyond its array", t->name);
    if (!s->wanted[root]) {
        s->wanted[root] = must_alloc((unsigned long)has * sizeof(int));
        for (int64_t i = 0; i < has; i++)
            s->wanted[root][i] = NOBODY;
    }
    c.wanted = s->wanted[root] + begins;
    return c;
}

/* The largest power of two that divides where columns begin, how wide they are and how far apart their rows. */
static int64_t granule_for(const replay_rank *r)
{
    int64_t granule = COMPILE_ALIGNMENT;
    for (int i = 0; i < r->p.list.count; i++)
        for (int k = 0; k < OPERANDS; k++) {
            const tensor *t = operand(r->p.list.ops[i], k);
            if (!t || tensor_contiguous(t))
                continue;
            int64_t parts = t->address | row_bytes(t) | t->pitch * dtype_bytes((dtype)t->type) |
                            r->offsets[i * OPERANDS + k] | r->pitches[i * OPERANDS + k];
            while (parts % granule)
                granule /= 2;
        }
    return granule;
}

static bool check_read(shadow *s, int at, int k)
{
    tensor *t = operand(s->r->p.list.ops[at], k);
    const cells c = cells_of(s, at, k);
    for (int64_t i = 0; i < c.count; i++) {
        int64_t there = cell_there(&c, i);
        int wanted = *cell_wanted(&c, i);
        if (t->address < 0 || there >= s->granules)
            return fails(s, at, t, "lies outside the arena", 0);
        if (wanted == NOBODY && !tensor_persistent(bottom(t)))
            return fails(s, at, t, "is read before anything wrote it", NOBODY);
        if (s->bytes[there] != wanted)
            return fails(s, at, t, "was overwritten or is not there yet", s->bytes[there]);
    }
    return true;
}

static bool write_out(shadow *s, int at, int k, int there)
{
    tensor *t = operand(s->r->p.list.ops[at], k);
    const cells c = cells_of(s, at, k);
    for (int64_t i = 0; i < c.count; i++) {
        int64_t cell = cell_there(&c, i);
        if (t->address < 0 || cell >= s->granules)
            return fails(s, at, t, "lies outside the arena", 0);
        s->bytes[cell] = there;
        *cell_wanted(&c, i) = at;
    }
    return true;
}

static bool write_scratch(shadow *s, int at, int there)
{
    const tensor *t = s->r->p.list.ops[at]->scratch;
    int64_t count = t ? (tensor_bytes(t) + s->granule - 1) / s->granule : 0;
    for (int64_t i = 0; i < count; i++) {
        if (t->address < 0 || t->address / s->granule + i >= s->granules)
            return fails(s, at, t, "lies outside the arena", 0);
        s->bytes[t->address / s->granule + i] = there;
    }
    return true;
}

/* Is output k added to, so that it is read? The op table marks such outputs with a +. */
static bool adds_to(const op *o, int k)
{
    const char *name = op_row_of(o)->out_names;
    for (; k > 0 && *name; name++)
        k -= *name == ' ';
    size_t length = strcspn(name, " ");
    bool always = op_is(o, OP_CLASS_UPDATE) || o->kind == OP_attention_decode;
    return length > 0 && memchr(name, '+', length) && (always || o->at.accumulate);
}

static bool check_reads(shadow *s, int at)
{
    const op *o = s->r->p.list.ops[at];
    for (int k = 0; k < OPERANDS; k++) {
        bool reads = k < OP_MAX_IN ? o->in[k] != NULL : o->out[k - OP_MAX_IN] && adds_to(o, k - OP_MAX_IN);
        if (reads && !check_read(s, at, k))
            return false;
    }
    return true;
}

static bool write_outs(shadow *s, int at, int there)
{
    const op *o = s->r->p.list.ops[at];
    if (!write_scratch(s, at, there))
        return false;
    for (int k = OP_MAX_IN; k < OPERANDS; k++)
        if (operand(o, k) && !write_out(s, at, k, there))
            return false;
    return true;
}

/* At its wait, an asynchronous op must still find its inputs, and nobody in its outputs and scratch but itself. */
static bool finish(shadow *s, int at)
{
    const op *o = s->r->p.list.ops[at];
    for (int k = 0; k < OPERANDS; k++) {
        tensor *t = operand(o, k);
        if (!t)
            continue;
        const cells c = cells_of(s, at, k);
        for (int64_t i = 0; i < c.count; i++) {
            int there = s->bytes[cell_there(&c, i)];
            bool own = there == -2 - at;
            if (k < OP_MAX_IN ? !own && there != *cell_wanted(&c, i) : !own)
                return fails(s, at, t, "was touched while it was under way", there);
        }
    }
    const tensor *t = o->scratch;
    for (int64_t i = 0; t && i < (tensor_bytes(t) + s->granule - 1) / s->granule; i++)
        if (s->bytes[t->address / s->granule + i] != -2 - at)
            return fails(s, at, t, "(scratch) was touched while it was under way",
                         s->bytes[t->address / s->granule + i]);
    return write_outs(s, at, at);
}

static bool play(shadow *s, int at)
{
    const op *o = s->r->p.list.ops[at];
    if (op_waits(o)) {
        int start = s->started[o->where.request];
        s->started[o->where.request] = -1;
        return start >= 0 ? finish(s, start) : fails(s, at, &(tensor){.name = o->label}, "waits for nothing", 0);
    }
    bool asynchronous = op_starts(o);
    if (!check_reads(s, at) || !write_outs(s, at, asynchronous ? -2 - at : at))
        return false;
    if (asynchronous)
        s->started[o->where.request] = at;
    return true;
}

bool replay_memory(char text[REPLAY_TEXT], const replay_rank *r)
{
    shadow s = {.r = r, .text = text};
    s.granule = granule_for(r);
    s.arena = (r->c.persistent_bytes + r->p.transient_bytes) / s.granule;
    s.granules = s.arena + (r->c.pinned_bytes + s.granule - 1) / s.granule;
    s.bytes = must_alloc((unsigned long)(s.granules + 1) * sizeof(int));
    for (int64_t i = 0; i < s.granules; i++)
        s.bytes[i] = NOBODY;
    s.wanted = must_calloc((unsigned long)r->root_count + 1, sizeof *s.wanted);
    s.started = must_alloc((unsigned long)(r->p.requests + 1) * sizeof(int));
    for (int i = 0; i < r->p.requests; i++)
        s.started[i] = -1;
    bool ok = true;
    for (int i = 0; ok && i < r->p.list.count; i++)
        ok = play(&s, i);
    for (int i = 0; ok && i < r->p.requests; i++)
        if (s.started[i] >= 0)
            ok = fails(&s, s.started[i], &(tensor){.name = "it"}, "is never waited for", 0);
    for (int i = 0; i < r->root_count; i++)
        free(s.wanted[i]);
    free(s.wanted);
    free(s.bytes);
    free(s.started);
    return ok;
}

/* ---- messages
 * -------------------------------------------------------------------------------------------------------- */

typedef struct queue {
    const op **launched; /* in order */
    int head, tail;
    bool *done; /* [requests] */
    int at;     /* next op of the program */
} queue;

typedef struct parties {
    const replay_rank *ranks;
    queue *queues;
    int count;
    char *text;
    int *members;
} parties;

static int members_of(int *members, const replay_rank *r, axis a)
{
    return grid_members(members, &r->c.options.grid, a);
}

static const op *head_of(const parties *p, int rank)
{
    const queue *q = &p->queues[rank];
    return q->head < q->tail ? q->launched[q->head] : NULL;
}

static void pass(parties *p, int rank)
{
    queue *q = &p->queues[rank];
    q->done[q->launched[q->head++]->where.request] = true;
}

static bool disagree(parties *p, int a, int b)
{
    char x[200], y[200];
    snprintf(p->text, REPLAY_TEXT, "rank %d has %s where rank %d has %s", a, op_text(x, sizeof x, head_of(p, a)), b,
             op_text(y, sizeof y, head_of(p, b)));
    return false;
}

static int64_t elements_of(const op *o)
{
    const tensor *whole = o->kind == OP_all_gather || o->kind == OP_receive ? o->out[0] : o->in[0];
    return tensor_elements(whole);
}

static bool same_collective(const op *a, const op *b)
{
    const tensor *x = a->in[0], *y = b->in[0];
    return a->kind == b->kind && elements_of(a) == elements_of(b) && x->type == y->type &&
           a->where.rows == b->where.rows && a->where.owner == b->where.owner &&
           a->where.group_size == b->where.group_size && a->where.bundle == b->where.bundle &&
           a->where.bundle_of == b->where.bundle_of;
}

/* Does the collective at the head of `rank`'s queue head all its members' queues? Then it passes. *moved says so. */
static bool try_collective(parties *p, int rank, bool *moved)
{
    const op *o = head_of(p, rank);
    int n = members_of(p->members, &p->ranks[rank], (axis)o->where.axis);
    if (n != o->where.group_size || p->members[o->where.group_rank] != rank) {
        snprintf(p->text, REPLAY_TEXT, "rank %d, %s: group of %d, the grid says %d", rank, o->label,
                 o->where.group_size, n);
        return false;
    }
    for (int i = 0; i < n; i++) {
        const op *other = head_of(p, p->members[i]);
        if (!other || op_has(other, OP_MESSAGE) || other->where.axis != o->where.axis)
            return true;
        if (!same_collective(o, other))
            return disagree(p, rank, p->members[i]);
    }
    for (int i = 0; i < n; i++)
        pass(p, p->members[i]);
    *moved = true;
    return true;
}

static bool try_message(parties *p, int rank, bool *moved)
{
    const op *o = head_of(p, rank), *other = head_of(p, o->where.peer);
    if (o->kind != OP_send || !other || other->kind != OP_receive || other->where.peer != rank)
        return true;
    if (elements_of(o) != elements_of(other) || o->in[0]->type != other->out[0]->type ||
        o->microbatch != other->microbatch || strcmp(o->label, other->label) != 0 ||
        o->where.upstream != other->where.upstream || o->where.upstream != (o->phase != PHASE_FORWARD))
        return disagree(p, rank, o->where.peer);
    int peer = o->where.peer;
    pass(p, rank);
    pass(p, peer);
    *moved = true;
    return true;
}

static bool advance(parties *p, int rank)
{
    const program *list = &p->ranks[rank].p.list;
    queue *q = &p->queues[rank];
    bool moved = false;
    for (; q->at < list->count; q->at++) {
        const op *o = list->ops[q->at];
        if (op_waits(o) && !q->done[o->where.request])
            break;
        if (op_communicates(o))
            q->launched[q->tail++] = o;
        if (op_copies(o))
            q->done[o->where.request] = true;
        moved = true;
    }
    return moved;
}

static bool play_all(parties *p)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < p->count; i++) {
            moved |= advance(p, i);
            for (bool passed = true; passed && head_of(p, i);) {
                passed = false;
                const op *o = head_of(p, i);
                bool message = op_has(o, OP_MESSAGE);
                if (!(message ? try_message(p, i, &passed) : try_collective(p, i, &passed)))
                    return false;
                moved |= passed;
            }
        }
    }
    for (int i = 0; i < p->count; i++) {
        queue *q = &p->queues[i];
        if (q->at < p->ranks[i].p.list.count || q->head < q->tail) {
            char text[200];
            snprintf(p->text, REPLAY_TEXT, "rank %d waits for ever at op %d of %d, its queue's head is %s", i, q->at,
                     p->ranks[i].p.list.count, head_of(p, i) ? op_text(text, sizeof text, head_of(p, i)) : "nothing");
            return false;
        }
    }
    return true;
}

bool replay_messages(char text[REPLAY_TEXT], const replay_rank *ranks, int count)
{
    parties p = {.ranks = ranks, .count = count, .text = text};
    p.members = must_alloc((unsigned long)count * sizeof(int));
    p.queues = must_calloc((unsigned long)count, sizeof *p.queues);
    for (int i = 0; i < count; i++) {
        p.queues[i].launched = must_calloc((unsigned long)ranks[i].p.list.count + 1, sizeof(op *));
        p.queues[i].done = must_calloc((unsigned long)ranks[i].p.requests + 1, sizeof(bool));
    }
    bool ok = play_all(&p);
    for (int i = 0; i < count; i++) {
        free(p.queues[i].launched);
        free(p.queues[i].done);
    }
    free(p.queues);
    free(p.members);
    return ok;
}
