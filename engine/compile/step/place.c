/* The last steps before a program can be played: waits for asynchronous ops, working memory, outputs in the storage of
 * inputs, lifetimes, and an address for every transient tensor. */
#include "engine/compile/step/place.h"

#include <limits.h>
#include <stdlib.h>

#include "engine/compile/step/alive.h"
#include "engine/compile/step/users.h"
#include "engine/compile/model/collective.h"
#include "kernels/record/op_make.h"
#include "memory/log.h"
#include "memory/planner.h"

/* The planner stops at this multiple of the lower bound. */
static const double PLACE_GOAL = 1.02;

/* Placements to try when the first orders miss that: a fraction of a second. */
static int64_t place_effort(int64_t blocks)
{
    int64_t effort = 90 * blocks < 180000 ? 90 * blocks : 180000;
    effort = effort < 20000 ? 20000 : effort;
    return effort < 2 * blocks ? 2 * blocks : effort;
}

/* The tensor whose bytes `t` has in the end. */
static tensor *bytes_of(tensor *t)
{
    while (t->base)
        t = t->base;
    return t;
}

static bool is_transient(tensor *t)
{
    return !tensor_persistent(bytes_of(t));
}

/* ---- waits ----------------------------------------------------------------------------------------------------- */

static bool starts(const op *o)
{
    return op_starts(o);
}

/* A message between stages: it has its request and its wait. */
static bool is_lowered(const op *o)
{
    return op_communicates(o) && axis_between_stages((axis)o->at.axis);
}

/* Of a gather of what ranks have updated: the first op behind all of those. */
static int after_gathers(const program *p, int at)
{
    while (at < p->count && p->ops[at]->phase == PHASE_BEGIN)
        at++;
    return at;
}

static op *wait_for(compiled_program *out, const op *o)
{
    op wait = *o;
    wait.kind = OP_wait;
    return op_make(&out->pool, &wait, 0, NULL);
}

void place_waits(compiled_program *out, compile_order how)
{
    program before = out->list;
    out->list = (program){0};
    unsigned long n = (unsigned long)before.count + 1;
    int *head = must_alloc(n * sizeof(int)), *next = must_alloc(n * sizeof(int));
    users *index = users_open(&before);
    for (int i = 0; i <= before.count; i++)
        head[i] = -1;
    for (int i = before.count - 1; i >= 0; i--) { /* descending: each list comes out in launch order */
        op *o = before.ops[i];
        if (!starts(o) || is_lowered(o))
            continue; /* where messages are waited for is decided by the lowering */
        bool updated = o->phase == PHASE_BEGIN && !is_transient(o->out[0]);
        int user = updated && how == ORDER_AS_LOWERED ? after_gathers(&before, i) : users_first(index, i);
        next[i] = head[user];
        head[user] = i;
    }
    for (int i = 0; i <= before.count; i++) {
        for (int k = head[i]; k >= 0; k = next[k])
            program_append(&out->list, wait_for(out, before.ops[k]));
        if (i == before.count)
            break;
        op *o = before.ops[i];
        if (starts(o) && !is_lowered(o))
            o->at.request = out->requests++;
        program_append(&out->list, o);
    }
    users_close(index);
    free(head);
    free(next);
    program_free(&before);
}

/* ---- working memory --------------------------------------------------------------------------------------------- */

static void add_scratch(compiled_program *out, const compiled *c)
{
    tensor **of_request = must_calloc((unsigned long)out->requests + 1, sizeof(tensor *));
    for (int i = 0; i < out->list.count; i++) {
        op *o = out->list.ops[i];
        int64_t bytes = 0, sent, messages;
        if (op_waits(o)) {
            o->scratch = of_request[o->at.request];
            continue;
        }
        const op_backend *backend = c->options.backend;
        if (op_has(o, OP_ROOM))
            o->at.workspace = c->workspace;
        bool communicates = op_communicates(o);
        if (communicates && !(backend && backend->communicates))
            collective_measure(&bytes, &sent, &messages, &out->list, i);
        else if (!starts(o) && backend && backend->scratch_bytes)
            bytes = backend->scratch_bytes(o, c->options.threads);
        if (bytes <= 0)
            continue;
        o->scratch = pool_alloc(&out->pool, sizeof(tensor));
        tensor_describe(o->scratch, o->label, CLASS_SCRATCH, DTYPE_UINT8, 1, &bytes);
        if (starts(o))
            of_request[o->at.request] = o->scratch;
    }
    free(of_request);
}

/* ---- lifetimes -------------------------------------------------------------------------------------------------- */

/* The ops that name one transient tensor. Uses of tensors in the same bytes are a chain, which begins with the tensor
 * that has the bytes; a tensor's id is the number of its use while outputs are put into the storage of inputs. */
typedef struct use {
    tensor *of;
    int first, last; /* ops; last -1: only its views are named */
    int next;        /* in the chain; -1: the last */
    bool pitched;    /* every one of those ops takes rows with gaps between them */
} use;

typedef struct uses {
    use *all;
    int count, capacity;
} uses;

static void add_use(uses *u, tensor *t)
{
    if (u->count == u->capacity) {
        u->capacity = u->capacity ? 2 * u->capacity : 1024;
        u->all = must_realloc(u->all, (unsigned long)u->capacity * sizeof *u->all);
    }
    t->id = u->count;
    u->all[u->count++] = (use){.of = t, .first = INT_MAX, .last = -1, .next = -1, .pitched = true};
}

/* Puts the chain that begins with `t` behind the first use of the chain of `root`. */
static void join_chains(uses *u, const tensor *root, const tensor *t)
{
    int last = t->id;
    while (u->all[last].next >= 0)
        last = u->all[last].next;
    u->all[last].next = u->all[root->id].next;
    u->all[root->id].next = t->id;
}

static void live_at(uses *u, tensor *t, const op *o)
{
    if (!t || !is_transient(t))
        return;
    tensor *s = bytes_of(t);
    if (s->first < 0) {
        s->first = o->index;
        add_use(u, s);
    }
    s->last = o->index;
    if (t != s && t->first < 0) {
        t->first = o->index;
        add_use(u, t);
        join_chains(u, s, t);
    }
    t->last = o->index;
    use *own = &u->all[t->id];
    own->first = o->index < own->first ? o->index : own->first;
    own->last = o->index;
    own->pitched &= (op_row_of(o)->flags & OP_PITCHED) != 0;
}

static void find_lifetimes(uses *u, program *p)
{
    for (int i = 0; i < p->count; i++) {
        op *o = p->ops[i];
        o->index = i;
        for (int k = 0; k < OP_MAX_IN; k++)
            live_at(u, o->in[k], o);
        for (int k = 0; k < OP_MAX_OUT; k++)
            live_at(u, o->out[k], o);
        live_at(u, o->scratch, o);
    }
}

/* ---- in place --------------------------------------------------------------------------------------------------- */

/* Bytes from the start of the storage that `t` lies in. */
static int64_t offset_of(const tensor *t)
{
    int64_t offset = 0;
    for (; t->base; t = t->base)
        offset += t->offset;
    return offset;
}

/* Do two tensors in the same bytes share any? Columns of rows that are equally far apart share none if they lie side by
 * side. */
static bool overlaps(const tensor *a, const tensor *b)
{
    int64_t from = offset_of(a), other = offset_of(b), pitch = a->pitch * dtype_bytes((dtype)a->type);
    bool rows = a->dims == 2 && b->dims == 2 && pitch > 0 && pitch == b->pitch * dtype_bytes((dtype)b->type);
    if (rows) {
        int64_t column = from % pitch, end = column + a->shape[1] * dtype_bytes((dtype)a->type);
        int64_t other_column = other % pitch, other_end = other_column + b->shape[1] * dtype_bytes((dtype)b->type);
        if (end <= pitch && other_end <= pitch && (end <= other_column || other_end <= column))
            return false;
    }
    return from < other + tensor_bytes(b) && other < from + tensor_bytes(a);
}

static int count_reads(const op *o, const tensor *x)
{
    int times = 0;
    for (int i = 0; i < OP_MAX_IN; i++)
        times += o->in[i] && bytes_of(o->in[i]) == x;
    return times;
}

/* May `y` take the storage of `x`, one of the inputs of `o`? It must die with the op (or, asynchronous, with its
 * wait). */
static bool may_take(const op *o, const int *wait_of, tensor *x, tensor *y)
{
    if (!is_transient(x) || x->base || y->base || !is_transient(y) || bytes_of(x) == bytes_of(y))
        return false;
    if (tensor_bytes(x) != tensor_bytes(y) || !tensor_contiguous(x) || y->first != o->index)
        return false;
    int end = starts(o) ? wait_of[o->at.request] : o->index;
    return count_reads(o, x) == 1 && x->last == end;
}

static void take_over(uses *u, tensor *x, tensor *y)
{
    y->base = x;
    y->offset = 0;
    if (y->last > x->last)
        x->last = y->last;
    if (x->class == CLASS_TEMPORARY)
        x->class = y->class;
    join_chains(u, x, y);
}

/* May `whole`, which has bytes of its own and no views, be moved to where the view `part` is, at `o`, which reads the
 * one and writes the other? Whoever names it must take rows with gaps, and the view's base must live as long, so that
 * nothing is held longer. */
static bool fits_columns(const uses *u, const op *o, tensor *whole, const tensor *part)
{
    const tensor *base = part->base ? bytes_of((tensor *)part) : NULL;
    if (!base || whole->base || tensor_persistent(base) || tensor_persistent(whole) || starts(o) || base == whole)
        return false;
    const use *own = &u->all[whole->id];
    bool alike = whole->dims == 2 && part->dims == 2 && whole->type == part->type &&
                 whole->shape[0] == part->shape[0] && whole->shape[1] == part->shape[1];
    return alike && own->next < 0 && own->pitched && base->first <= whole->first && whole->last <= base->last;
}

/* Does an op from `first` to `last` name any byte of `part`, but by the name of `part` itself? */
static bool named_between(const uses *u, tensor *part, int first, int last)
{
    for (int i = bytes_of(part)->id; i >= 0; i = u->all[i].next) {
        const use *other = &u->all[i];
        if (other->of != part && other->first <= last && other->last >= first && overlaps(other->of, part))
            return true;
    }
    return false;
}

static void move_to_columns(uses *u, tensor *whole, tensor *part)
{
    tensor *base = bytes_of(part);
    whole->base = part->base;
    whole->offset = part->offset;
    whole->pitch = part->pitch;
    if (base->class == CLASS_TEMPORARY)
        base->class = whole->class;
    join_chains(u, base, whole);
}

/* The output `y` takes the columns of the view `x`, although their base lives: nobody else names them from now on. */
static bool take_columns(uses *u, const op *o, tensor *x, tensor *y)
{
    if (!fits_columns(u, o, y, x) || y->first != o->index || x->last != o->index ||
        named_between(u, x, o->index, INT_MAX))
        return false;
    move_to_columns(u, y, x);
    return true;
}

/* The input `x` is made in the columns of the base for which the output `y` is the first to write them. */
static bool make_in_columns(uses *u, const op *o, tensor *x, tensor *y)
{
    if (!fits_columns(u, o, x, y) || y->first != o->index || x->last != o->index || count_reads(o, x) != 1 ||
        named_between(u, y, x->first, o->index))
        return false;
    move_to_columns(u, x, y);
    return true;
}

/* The k-th input of `o`, if its j-th output may be in that one's place. */
static tensor *paired(const op *o, int j, int k)
{
    return op_row_of(o)->takes[j] >> k & 1 ? o->in[k] : NULL;
}

/* Downwards, so that what an input was made from finds it in its columns. */
static void make_inputs_in_place(uses *u, const program *p)
{
    for (int i = p->count - 1; i >= 0; i--) {
        const op *o = p->ops[i];
        for (int j = 0; j < OP_MAX_OUT; j++) {
            bool made = !o->out[j];
            for (int k = 0; k < OP_MAX_IN && !made; k++)
                made = paired(o, j, k) && make_in_columns(u, o, paired(o, j, k), o->out[j]);
        }
    }
}

static void put_output_in_place(uses *u, const op *o, const int *wait_of, int j)
{
    tensor *y = o->out[j];
    for (int k = 0; y && k < OP_MAX_IN; k++) {
        tensor *x = paired(o, j, k);
        if (x && take_columns(u, o, x, y))
            return;
        /* x may itself be in another's storage: what counts is who holds the bytes now */
        if (x && x->base && x->offset == 0 && tensor_bytes(bytes_of(x)) == tensor_bytes(x))
            x = bytes_of(x);
        if (x && may_take(o, wait_of, x, y)) {
            take_over(u, x, y);
            return;
        }
    }
}

static void share_in_place(uses *u, compiled_program *out)
{
    program *p = &out->list;
    int *wait_of = must_calloc((unsigned long)out->requests + 1, sizeof(int));
    for (int i = 0; i < p->count; i++)
        if (op_waits(p->ops[i]))
            wait_of[p->ops[i]->at.request] = i;
    make_inputs_in_place(u, p);
    for (int i = 0; i < p->count; i++)
        for (int j = 0; j < OP_MAX_OUT; j++)
            put_output_in_place(u, p->ops[i], wait_of, j);
    free(wait_of);
}

/* Outputs in the storage of inputs, and from when to when each storage is needed. */
static void find_storage(compiled_program *out)
{
    uses u = {0};
    find_lifetimes(&u, &out->list);
    share_in_place(&u, out);
    for (int i = 0; i < u.count; i++)
        u.all[i].of->id = -1;
    free(u.all);
}

/* ---- addresses -------------------------------------------------------------------------------------------------- */

typedef struct blocks {
    planner_block *item;
    tensor **of;
    int64_t count, capacity;
} blocks;

static void collect(blocks *b, tensor *t)
{
    if (!t || !is_transient(t))
        return;
    tensor *s = bytes_of(t);
    if (s->id >= 0)
        return;
    if (b->count == b->capacity) {
        b->capacity = b->capacity ? 2 * b->capacity : 1024;
        b->item = must_realloc(b->item, (unsigned long)b->capacity * sizeof *b->item);
        b->of = must_realloc(b->of, (unsigned long)b->capacity * sizeof *b->of);
    }
    s->id = (int32_t)b->count;
    b->of[b->count] = s;
    b->item[b->count++] = (planner_block){.bytes = tensor_bytes(s), .first = s->first, .last = s->last};
}

static int64_t address_of(tensor *t)
{
    int64_t offset = 0;
    tensor *s = t;
    for (; s->base; s = s->base)
        offset += s->offset;
    return s->address + offset;
}

static void each_operand(const program *p, void (*visit)(void *context, tensor *t), void *context)
{
    for (int i = 0; i < p->count; i++) {
        op *o = p->ops[i];
        for (int k = 0; k < OP_MAX_IN; k++)
            if (o->in[k])
                visit(context, o->in[k]);
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (o->out[k])
                visit(context, o->out[k]);
        if (o->scratch)
            visit(context, o->scratch);
    }
}

static void visit_collect(void *context, tensor *t)
{
    collect(context, t);
}

static void visit_address(void *context, tensor *t)
{
    (void)context;
    if (is_transient(t)) /* persistent ones have their addresses, and belong to the model */
        t->address = address_of(t);
}

/* What is alive at the peak: the parts of the lower bound. */
static void find_peak(compiled_program *out)
{
    unsigned long n = (unsigned long)out->list.count + 1;
    int64_t *kept = must_alloc(n * sizeof *kept), *rest = must_alloc(n * sizeof *rest);
    alive_find(kept, rest, out);
    out->peak_kept = out->peak_temporary = 0;
    for (int i = 0; i < out->list.count; i++)
        if (kept[i] + rest[i] > out->peak_kept + out->peak_temporary) {
            out->peak_kept = kept[i];
            out->peak_temporary = rest[i];
        }
    out->lower_bound = out->peak_kept + out->peak_temporary;
    free(kept);
    free(rest);
}

void place_transients(compiled_program *out, const compiled *c, bool bound_only)
{
    add_scratch(out, c);
    find_storage(out);
    blocks b = {0};
    each_operand(&out->list, visit_collect, &b);
    out->placed = b.count;
    find_peak(out);
    if (!bound_only && b.count > 0) {
        planner_result result;
        double goal = (double)out->enough / (double)(out->lower_bound ? out->lower_bound : 1);
        planner_place(b.item, &result, b.count, COMPILE_ALIGNMENT, goal > PLACE_GOAL ? goal : PLACE_GOAL,
                      place_effort(b.count));
        int64_t one, two;
        MUST(planner_check(b.item, b.count, result.arena_bytes, &one, &two), "the plan lets %s and %s share bytes",
             b.of[one]->name, b.of[two]->name);
        out->transient_bytes = result.arena_bytes;
        for (int64_t i = 0; i < b.count; i++)
            b.of[i]->address = c->persistent_bytes + b.item[i].offset;
        each_operand(&out->list, visit_address, NULL);
    }
    free(b.item);
    free(b.of);
}
