/* The last steps before a program can be played: waits for asynchronous ops, working memory, outputs in the storage of
 * inputs, lifetimes, and an address for every transient tensor. */
#include "engine/compile/step/place.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/collective.h"
#include "kernels/record/program.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/planner.h"

/* ---- which ops read or write which bytes ---- */

/* Uses of a storage: positions of ops in ascending order; `write` holds positions of writers. */
typedef struct storage_users {
    const tensor *root; /* NULL: the place is free */
    int count, filled, writes, writes_filled;
    int *at, *write;
} storage_users;

typedef struct users {
    const program *of;
    storage_users *table; /* [size] places, a power of two */
    unsigned long size;
    int *positions; /* positions of all storages */
} users;

/* Returns the place of a tensor's storage, taking a free one if it has none. */
static storage_users *place_of(const users *u, const tensor *t)
{
    const tensor *root = compiled_holder(t), *there;
    unsigned long key = root->address >= 0 ? (unsigned long)root->address : (unsigned long)root >> 4;
    unsigned long i = key * 0x9E3779B97F4A7C15ul >> 20 & (u->size - 1);
    /* parameters that share a weight have a tensor each: persistent tensors have addresses by now */
    while ((there = u->table[i].root) && there != root &&
           !(there->address >= 0 && there->address == root->address && tensor_bytes(there) == tensor_bytes(root)))
        i = (i + 1) & (u->size - 1);
    u->table[i].root = root;
    return &u->table[i];
}

/* Operands that programs share bytes by: all but working memory. */
enum { TOUCHES = OP_MAX_IN + OP_MAX_OUT };

static users *users_open(const program *p)
{
    users *u = must_alloc(sizeof *u);
    unsigned long operands = 0, size = 64;
    for (int i = 0; i < p->count * TOUCHES; i++)
        operands += compiled_operand(p->ops[i / TOUCHES], i % TOUCHES) != NULL;
    while (size < 2 * operands)
        size *= 2;
    *u = (users){.of = p,
                 .table = must_calloc(size, sizeof *u->table),
                 .size = size,
                 .positions = must_alloc((2 * operands + 1) * sizeof *u->positions)};
    for (int i = 0; i < p->count * TOUCHES; i++) {
        const tensor *t = compiled_operand(p->ops[i / TOUCHES], i % TOUCHES);
        storage_users *s = t ? place_of(u, t) : NULL;
        if (t) {
            s->count++;
            s->writes += i % TOUCHES >= OP_MAX_IN;
        }
    }
    int *next = u->positions;
    for (unsigned long i = 0; i < u->size; i++) {
        storage_users *s = &u->table[i];
        s->at = next;
        s->write = next + s->count;
        next = s->write + s->writes;
    }
    for (int i = 0; i < p->count * TOUCHES; i++) {
        const tensor *t = compiled_operand(p->ops[i / TOUCHES], i % TOUCHES);
        storage_users *s = t ? place_of(u, t) : NULL;
        if (t)
            s->at[s->filled++] = i / TOUCHES;
        if (t && i % TOUCHES >= OP_MAX_IN)
            s->write[s->writes_filled++] = i / TOUCHES;
    }
    return u;
}

/* Returns the first of these ascending positions after `at`, if it is below `most`; else `most`. */
static int first_later(const int *positions, int count, int at, int most)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (positions[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low < count && positions[low] < most ? positions[low] : most;
}

/* Returns the first op after op `at` that needs it complete: it reads or writes what `at` writes, or writes what `at`
 * reads; the program's count, if none does. */
static int users_first(const users *u, int at)
{
    const op *o = u->of->ops[at];
    int first = u->of->count;
    for (int k = 0; k < TOUCHES; k++) {
        const tensor *t = compiled_operand(o, k);
        const storage_users *s = t ? place_of(u, t) : NULL;
        bool writes = k >= OP_MAX_IN;
        if (t)
            first = first_later(writes ? s->at : s->write, writes ? s->count : s->writes, at, first);
    }
    return first;
}

/* The planner stops at this multiple of the lower bound. */
static const double PLACE_GOAL = 1.02;

/* Placements to try when the first orders miss that: a fraction of a second. */
static int64_t place_effort(int64_t blocks)
{
    int64_t effort = 90 * blocks < 180000 ? 90 * blocks : 180000;
    effort = effort < 20000 ? 20000 : effort;
    return effort < 2 * blocks ? 2 * blocks : effort;
}

static bool is_transient(tensor *t)
{
    return !tensor_persistent(compiled_holder(t));
}

/* ---- waits ----------------------------------------------------------------------------------------------------- */

/* A message between stages: it has its request and its wait. */
static bool is_lowered(const op *o)
{
    return op_communicates(o) && axis_between_stages((axis)o->where.axis);
}

void place_waits(compiled_program *out, compile_order how)
{
    program before = out->list;
    out->list = (program){0};
    unsigned long n = (unsigned long)before.count + 1;
    AUTO_FREE int *head = must_alloc(n * sizeof *head);
    AUTO_FREE int *next = must_alloc(n * sizeof *next);
    AUTO_FREE users *index = users_open(&before);
    int after_gathers = before.count; /* the first op past the gathers of updated weights */
    for (int i = 0; i <= before.count; i++)
        head[i] = -1;
    for (int i = before.count - 1; i >= 0; i--) { /* descending: each list comes out in launch order */
        op *o = before.ops[i];
        if (o->phase != PHASE_BEGIN)
            after_gathers = i;
        if (!op_starts(o) || is_lowered(o))
            continue; /* the lowering decides where messages are waited for */
        int user = how == ORDER_AS_LOWERED && o->phase == PHASE_BEGIN && !is_transient(o->out[0])
                       ? after_gathers
                       : users_first(index, i);
        next[i] = head[user];
        head[user] = i;
    }
    for (int i = 0; i <= before.count; i++) {
        for (int k = head[i]; k >= 0; k = next[k]) {
            op wait = *before.ops[k];
            wait.kind = OP_wait;
            program_append(&out->list, op_make(&out->pool, &wait, 0, NULL));
        }
        if (i == before.count)
            break;
        op *o = before.ops[i];
        if (op_starts(o) && !is_lowered(o))
            o->where.request = out->requests++;
        program_append(&out->list, o);
    }
    free(index->positions);
    free(index->table);
    program_free(&before);
}

/* ---- working memory --------------------------------------------------------------------------------------------- */

static void add_scratch(compiled_program *out, const compiled *c)
{
    AUTO_FREE tensor **of_request = must_calloc((unsigned long)out->requests + 1, sizeof(tensor *));
    for (int i = 0; i < out->list.count; i++) {
        op *o = out->list.ops[i];
        int64_t bytes = 0, sent, messages;
        if (op_waits(o)) {
            o->scratch = of_request[o->where.request];
            continue;
        }
        const op_backend *backend = c->options.backend;
        if (op_has(o, OP_ROOM))
            o->at.attention.workspace = c->workspace;
        bool communicates = op_communicates(o);
        if (communicates && !(backend && backend->communicates))
            collective_measure(&bytes, &sent, &messages, &out->list, i);
        else if (!op_starts(o) && backend && backend->scratch_bytes)
            bytes = backend->scratch_bytes(o, c->options.threads);
        if (bytes <= 0)
            continue;
        o->scratch = pool_alloc(&out->pool, sizeof(tensor));
        tensor_describe(o->scratch, o->label, CLASS_SCRATCH, DTYPE_UINT8, 1, &bytes);
        if (op_starts(o))
            of_request[o->where.request] = o->scratch;
    }
}

/* ---- lifetimes -------------------------------------------------------------------------------------------------- */

/* The ops that name one transient tensor. Uses of tensors in the same bytes are a chain, which begins with the tensor
 * that has the bytes; a tensor's id is the number of its use while outputs are put into the storage of inputs. */
typedef struct use {
    tensor *of;
    int first, last; /* ops; last -1: only its views are named */
    int next;        /* next in the chain; -1: the last */
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

/* Inserts the chain that begins with `t` after the first use of the chain of `root`. */
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
    tensor *s = compiled_holder(t);
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

/* ---- in place --------------------------------------------------------------------------------------------------- */

/* Returns the offset of `t` in its storage, in bytes. */
static int64_t offset_of(const tensor *t)
{
    int64_t offset = 0;
    for (; t->base; t = t->base)
        offset += t->offset;
    return offset;
}

/* True if two tensors in the same storage share any byte. Columns of rows that are equally far apart share none if they
 * lie side by side. */
static bool bytes_overlap(const tensor *a, const tensor *b)
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
        times += o->in[i] && compiled_holder(o->in[i]) == x;
    return times;
}

/* True if `y` may take the storage of `x`, an input of `o`, which must die with the op (or, asynchronous, with its
 * wait). */
static bool may_take(const op *o, const int *wait_of, tensor *x, tensor *y)
{
    if (!is_transient(x) || x->base || y->base || !is_transient(y) || compiled_holder(x) == compiled_holder(y))
        return false;
    if (tensor_bytes(x) != tensor_bytes(y) || !tensor_contiguous(x) || y->first != o->index)
        return false;
    int end = op_starts(o) ? wait_of[o->where.request] : o->index;
    return count_reads(o, x) == 1 && x->last == end;
}

/* True if `whole`, which has bytes of its own and no views, may move into the view `part` at `o`, which reads the one
 * and writes the other. All its users must take rows with gaps, and the view's base must live as long, so that no bytes
 * are held longer. */
static bool fits_columns(const uses *u, const op *o, tensor *whole, const tensor *part)
{
    const tensor *base = part->base ? compiled_holder(part) : NULL;
    if (!base || whole->base || tensor_persistent(base) || tensor_persistent(whole) || op_starts(o) || base == whole)
        return false;
    const use *own = &u->all[whole->id];
    bool alike = whole->dims == 2 && part->dims == 2 && whole->type == part->type &&
                 whole->shape[0] == part->shape[0] && whole->shape[1] == part->shape[1];
    return alike && own->next < 0 && own->pitched && base->first <= whole->first && whole->last <= base->last;
}

/* True if an op from `first` to `last` names any byte of `part`, other than by `part` itself. */
static bool named_between(const uses *u, tensor *part, int first, int last)
{
    for (int i = compiled_holder(part)->id; i >= 0; i = u->all[i].next) {
        const use *other = &u->all[i];
        if (other->of != part && other->first <= last && other->last >= first && bytes_overlap(other->of, part))
            return true;
    }
    return false;
}

static void move_to_columns(uses *u, tensor *whole, tensor *part)
{
    tensor *base = compiled_holder(part);
    whole->base = part->base;
    whole->offset = part->offset;
    whole->pitch = part->pitch;
    if (base->class == CLASS_TEMPORARY)
        base->class = whole->class;
    join_chains(u, base, whole);
}

/* Places output `y` in the columns of the view `x`, although their base lives: no other op names them from now on. */
static bool take_columns(uses *u, const op *o, tensor *x, tensor *y)
{
    if (!fits_columns(u, o, y, x) || y->first != o->index || x->last != o->index ||
        named_between(u, x, o->index, INT_MAX))
        return false;
    move_to_columns(u, y, x);
    return true;
}

/* Makes the input `x` in the columns of the base that the output `y` is the first to write. */
static bool make_in_columns(uses *u, const op *o, tensor *x, tensor *y)
{
    if (!fits_columns(u, o, x, y) || y->first != o->index || x->last != o->index || count_reads(o, x) != 1 ||
        named_between(u, y, x->first, o->index))
        return false;
    move_to_columns(u, x, y);
    return true;
}

/* Returns the k-th input of `o`, if its j-th output may take its storage. */
static tensor *paired_input(const op *o, int j, int k)
{
    return op_row_of(o)->takes[j] >> k & 1 ? o->in[k] : NULL;
}

static void put_output_in_place(uses *u, const op *o, const int *wait_of, int j)
{
    tensor *y = o->out[j];
    for (int k = 0; y && k < OP_MAX_IN; k++) {
        tensor *x = paired_input(o, j, k);
        if (x && take_columns(u, o, x, y))
            return;
        /* x may itself be in another's storage: compare with the tensor that holds the bytes now */
        if (x && x->base && x->offset == 0 && tensor_bytes(compiled_holder(x)) == tensor_bytes(x))
            x = compiled_holder(x);
        if (x && may_take(o, wait_of, x, y)) {
            y->base = x;
            y->offset = 0;
            if (y->last > x->last)
                x->last = y->last;
            if (x->class == CLASS_TEMPORARY)
                x->class = y->class;
            join_chains(u, x, y);
            return;
        }
    }
}

static void share_in_place(uses *u, compiled_program *out)
{
    program *p = &out->list;
    AUTO_FREE int *wait_of = must_calloc((unsigned long)out->requests + 1, sizeof(int));
    for (int i = 0; i < p->count; i++)
        if (op_waits(p->ops[i]))
            wait_of[p->ops[i]->where.request] = i;
    /* go downwards, so that an input's source finds the input in its columns */
    for (int i = p->count - 1; i >= 0; i--) {
        const op *o = p->ops[i];
        for (int j = 0; j < OP_MAX_OUT; j++) {
            bool made = !o->out[j];
            for (int k = 0; k < OP_MAX_IN && !made; k++)
                made = paired_input(o, j, k) && make_in_columns(u, o, paired_input(o, j, k), o->out[j]);
        }
    }
    for (int i = 0; i < p->count; i++)
        for (int j = 0; j < OP_MAX_OUT; j++)
            put_output_in_place(u, p->ops[i], wait_of, j);
}

/* Puts outputs into the storage of inputs, and finds each storage's lifetime. */
static void find_storage(compiled_program *out)
{
    uses u = {0};
    for (int i = 0; i < out->list.count; i++) {
        op *o = out->list.ops[i];
        o->index = i;
        for (int k = 0; k < COMPILED_OPERANDS; k++)
            live_at(&u, compiled_operand(o, k), o);
    }
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

static void collect_block(blocks *b, tensor *t)
{
    if (!t || !is_transient(t))
        return;
    tensor *s = compiled_holder(t);
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

/* Finds the bytes alive at the peak: the parts of the lower bound. */
static void find_peak(compiled_program *out)
{
    unsigned long n = (unsigned long)out->list.count + 1;
    AUTO_FREE int64_t *kept = must_alloc(n * sizeof *kept);
    AUTO_FREE int64_t *rest = must_alloc(n * sizeof *rest);
    alive_find(kept, rest, out);
    out->peak_kept = out->peak_temporary = 0;
    for (int i = 0; i < out->list.count; i++)
        if (kept[i] + rest[i] > out->peak_kept + out->peak_temporary) {
            out->peak_kept = kept[i];
            out->peak_temporary = rest[i];
        }
    out->lower_bound = out->peak_kept + out->peak_temporary;
}

void place_transients(compiled_program *out, const compiled *c, bool bound_only)
{
    add_scratch(out, c);
    find_storage(out);
    blocks b = {0};
    for (int i = 0; i < out->list.count; i++)
        for (int k = 0; k < COMPILED_OPERANDS; k++)
            collect_block(&b, compiled_operand(out->list.ops[i], k));
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
        for (int i = 0; i < out->list.count; i++)
            for (int k = 0; k < COMPILED_OPERANDS; k++) {
                tensor *t = compiled_operand(out->list.ops[i], k);
                if (t && is_transient(t)) /* persistent tensors have addresses, and belong to the model */
                    t->address = compiled_holder(t)->address + offset_of(t);
            }
    }
    free(b.item);
    free(b.of);
}

/* ---- how many bytes are alive ---- */

static void add_alive(int64_t *kept, int64_t *rest, bool *seen, const tensor *t)
{
    const tensor *s = compiled_holder(t);
    if (!s || tensor_persistent(s) || seen[s->id])
        return;
    int64_t *sum = s->class == CLASS_KEPT ? kept : rest;
    int64_t bytes = (tensor_bytes(s) + COMPILE_ALIGNMENT - 1) / COMPILE_ALIGNMENT * COMPILE_ALIGNMENT;
    seen[s->id] = true;
    sum[s->first] += bytes;
    sum[s->last + 1] -= bytes;
}

void alive_find(int64_t *kept, int64_t *rest, const compiled_program *p)
{
    int count = p->list.count;
    AUTO_FREE bool *seen = must_calloc((unsigned long)p->placed + 1, sizeof *seen);
    memset(kept, 0, ((size_t)count + 1) * sizeof *kept);
    memset(rest, 0, ((size_t)count + 1) * sizeof *rest);
    for (int i = 0; i < count; i++) {
        const op *o = p->list.ops[i];
        for (int k = 0; k < COMPILED_OPERANDS; k++)
            add_alive(kept, rest, seen, compiled_operand(o, k));
    }
    for (int i = 0; i < count; i++) {
        kept[i + 1] += kept[i];
        rest[i + 1] += rest[i];
    }
}

/* ---- working memory of a library ---- */

/* The arena may grow by a sixteenth without a budget. */
enum { MORE = 16 };

static int64_t scratch_of(const op *o)
{
    return o->scratch ? tensor_bytes(o->scratch) : 0;
}

/* The most bytes alive beside its working memory where an op of the kind runs. */
static int64_t alive_beside(const compiled_program *p)
{
    unsigned long n = (unsigned long)p->list.count + 1;
    AUTO_FREE int64_t *kept = must_alloc(n * sizeof *kept);
    AUTO_FREE int64_t *rest = must_alloc(n * sizeof *rest);
    int64_t most = 0;
    alive_find(kept, rest, p);
    for (int i = 0; i < p->list.count; i++) {
        int64_t beside = kept[i] + rest[i] - scratch_of(p->list.ops[i]);
        if (op_has(p->list.ops[i], OP_ROOM) && beside > most)
            most = beside;
    }
    return most;
}

static bool would_take_more(const compiled *c, int64_t room)
{
    const op_backend *b = c->options.backend;
    for (int i = 0; b && b->scratch_bytes && i < c->training.list.count; i++) {
        op with = *c->training.list.ops[i];
        with.at.attention.workspace = room;
        if (op_has(&with, OP_ROOM) && b->scratch_bytes(&with, c->options.threads) > scratch_of(&with))
            return true;
    }
    return false;
}

int64_t workspace_room(const compiled *c)
{
    int64_t limit = c->options.budget ? c->options.budget - c->persistent_bytes
                                      : c->training.transient_bytes + c->training.transient_bytes / MORE;
    int64_t room = limit - alive_beside(&c->training);
    return room > 0 && would_take_more(c, room) ? room : 0;
}

int64_t workspace_taken(const compiled *c)
{
    int64_t most = 0;
    for (int i = 0; i < c->training.list.count; i++) {
        const op *o = c->training.list.ops[i];
        if (op_has(o, OP_ROOM) && scratch_of(o) > most)
            most = scratch_of(o);
    }
    return most;
}
