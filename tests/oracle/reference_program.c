#include "tests/oracle/reference_program.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

enum { ALIGNMENT = 64 };

typedef struct twin {
    const tensor *of;
    tensor is;
} twin;

struct reference_program {
    op *ops; /* operands are twins */
    int count;
    twin *twins; /* ordered by the original's address in memory: the order shows nowhere else */
    int twin_count;
    char *storage;
};

/* ---- twins ----------------------------------------------------------------------------------------------------- */

static int by_original(const void *a, const void *b)
{
    const tensor *x = ((const twin *)a)->of, *y = ((const twin *)b)->of;
    return ((uintptr_t)x > (uintptr_t)y) - ((uintptr_t)x < (uintptr_t)y);
}

static tensor *find(const reference_program *p, const tensor *t)
{
    twin key = {.of = t};
    twin *found = bsearch(&key, p->twins, (size_t)p->twin_count, sizeof key, by_original);
    return found ? &found->is : NULL;
}

static tensor *must_find(const reference_program *p, const tensor *t)
{
    tensor *is = find(p, t);
    MUST(is, "%s is no operand of the reference's program", t->name);
    return is;
}

static int64_t twin_bytes(const tensor *t)
{
    return dtype_is_float((dtype)t->type) ? (int64_t)sizeof(double) : dtype_bytes((dtype)t->type);
}

/* Elements from the start of the storage to t's first element, and where that storage is. */
static const tensor *storage_of(int64_t *offset, const tensor *t)
{
    *offset = 0;
    for (; t->base; t = t->base) {
        MUST(t->offset % dtype_bytes((dtype)t->type) == 0, "%s starts within an element", t->name);
        *offset += t->offset / dtype_bytes((dtype)t->type);
    }
    return t;
}

static void collect(reference_program *p, int *capacity, const tensor *t)
{
    for (; t; t = t->base) {
        if (p->twin_count == *capacity) {
            *capacity = *capacity ? 2 * *capacity : 256;
            p->twins = must_realloc(p->twins, (unsigned long)*capacity * sizeof(twin));
        }
        p->twins[p->twin_count++] = (twin){.of = t};
    }
}

static void collect_all(reference_program *p, op *const *ops)
{
    int capacity = 0;
    for (int i = 0; i < p->count; i++) {
        for (int k = 0; k < OP_MAX_IN; k++)
            collect(p, &capacity, ops[i]->in[k]);
        for (int k = 0; k < OP_MAX_OUT; k++)
            collect(p, &capacity, ops[i]->out[k]);
    }
    if (!p->twin_count)
        return;
    qsort(p->twins, (size_t)p->twin_count, sizeof(twin), by_original);
    int kept = 0;
    for (int i = 0; i < p->twin_count; i++)
        if (i == 0 || p->twins[i].of != p->twins[kept - 1].of)
            p->twins[kept++] = p->twins[i];
    p->twin_count = kept;
}

/* Persistent tensors that share bytes must say so with a base, else their twins would not share. */
static void check_apart(const reference_program *p)
{
    for (int i = 0; i < p->twin_count; i++)
        for (int j = 0; j < i; j++) {
            const tensor *a = p->twins[i].of, *b = p->twins[j].of;
            bool both = !a->base && !b->base && tensor_persistent(a) && tensor_persistent(b) && a->address >= 0 &&
                        b->address >= 0;
            MUST(!both || a->address >= b->address + tensor_bytes(b) || b->address >= a->address + tensor_bytes(a),
                 "%s and %s share bytes, and neither is the other's view", a->name, b->name);
        }
}

/* Each storage as large as the furthest tensor in it. */
static void place(reference_program *p)
{
    int64_t *elements = must_calloc((unsigned long)p->twin_count + 1, sizeof *elements), offset, total = 0;
    for (int i = 0; i < p->twin_count; i++) {
        const tensor *t = p->twins[i].of, *root = storage_of(&offset, t);
        MUST(twin_bytes(t) == twin_bytes(root), "%s is a view of another type's bytes", t->name);
        twin key = {.of = root};
        twin *found = bsearch(&key, p->twins, (size_t)p->twin_count, sizeof key, by_original);
        int64_t end = offset + tensor_bytes(t) / dtype_bytes((dtype)t->type);
        if (elements[found - p->twins] < end)
            elements[found - p->twins] = end;
    }
    for (int i = 0; i < p->twin_count; i++) {
        tensor *is = &p->twins[i].is;
        *is = *p->twins[i].of;
        if (dtype_is_float((dtype)is->type))
            is->type = DTYPE_FP64;
        if (is->base)
            continue;
        is->address = total;
        total += (elements[i] * twin_bytes(p->twins[i].of) + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    p->storage = must_calloc((unsigned long)total + ALIGNMENT, 1);
    for (int i = 0; i < p->twin_count; i++) {
        const tensor *root = storage_of(&offset, p->twins[i].of);
        tensor *is = &p->twins[i].is;
        is->address = must_find(p, root)->address + offset * twin_bytes(p->twins[i].of);
    }
    free(elements);
}

reference_program *reference_program_open(op *const *ops, int count)
{
    reference_program *p = must_calloc(1, sizeof *p);
    p->count = count;
    collect_all(p, ops);
    check_apart(p);
    place(p);
    p->ops = must_calloc((unsigned long)count + 1, sizeof(op));
    for (int i = 0; i < count; i++) {
        p->ops[i] = *ops[i];
        p->ops[i].scratch = NULL;
        p->ops[i].prepared = NULL;
        for (int k = 0; k < OP_MAX_IN; k++)
            p->ops[i].in[k] = ops[i]->in[k] ? must_find(p, ops[i]->in[k]) : NULL;
        for (int k = 0; k < OP_MAX_OUT; k++)
            p->ops[i].out[k] = ops[i]->out[k] ? must_find(p, ops[i]->out[k]) : NULL;
    }
    return p;
}

void reference_program_close(reference_program *p)
{
    if (!p)
        return;
    free(p->ops);
    free(p->twins);
    free(p->storage);
    free(p);
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

bool reference_program_has(const reference_program *p, const tensor *t)
{
    return find(p, t) != NULL;
}

static double *row(const reference_program *p, const tensor *is, int64_t i)
{
    return reference_row(is, &(run_context){.arena = p->storage}, i);
}

void reference_program_set(reference_program *p, const tensor *t, const double *values)
{
    const tensor *is = must_find(p, t);
    int64_t width = reference_width(is);
    for (int64_t i = 0; i < is->shape[0]; i++)
        memcpy(row(p, is, i), values + i * width, (size_t)width * sizeof(double));
}

void reference_program_get(double *values, const reference_program *p, const tensor *t)
{
    const tensor *is = must_find(p, t);
    int64_t width = reference_width(is);
    for (int64_t i = 0; i < is->shape[0]; i++)
        memcpy(values + i * width, row(p, is, i), (size_t)width * sizeof(double));
}

void *reference_program_bytes(reference_program *p, const tensor *t)
{
    const tensor *is = must_find(p, t);
    MUST(is->type != DTYPE_FP64 && tensor_contiguous(is), "%s is no contiguous tensor of integers", t->name);
    return tensor_at(is, p->storage);
}

void reference_program_read(reference_program *p, const tensor *t, const void *arena)
{
    const tensor *is = must_find(p, t);
    int64_t width = reference_width(t), element = dtype_bytes((dtype)t->type);
    for (int64_t i = 0; i < t->shape[0]; i++)
        dtype_convert(p->storage + is->address + i * is->pitch * twin_bytes(t), (dtype)is->type,
                      (const char *)arena + t->address + i * t->pitch * element, (dtype)t->type, width);
}

void reference_program_write(const reference_program *p, const tensor *t, void *arena)
{
    const tensor *is = must_find(p, t);
    int64_t width = reference_width(t), element = dtype_bytes((dtype)t->type);
    for (int64_t i = 0; i < t->shape[0]; i++)
        dtype_convert((char *)arena + t->address + i * t->pitch * element, (dtype)t->type,
                      p->storage + is->address + i * is->pitch * twin_bytes(t), (dtype)is->type, width);
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static void run(const reference_program *p, int i, bool later_microbatch)
{
    op o = p->ops[i];
    if (o.at.accumulate == OP_WRITES_FIRST)
        o.at.accumulate = later_microbatch ? OP_ADDS : OP_WRITES;
    reference_backend.kernels[o.kind](&o, &(run_context){.arena = p->storage, .threads = 1});
}

void reference_program_run(reference_program *p, int first, int count, bool later_microbatch)
{
    MUST(first >= 0 && first + count <= p->count, "ops %d + %d of %d", first, count, p->count);
    for (int i = first; i < first + count; i++)
        run(p, i, later_microbatch);
}

static bool is_collective(const op *o)
{
    return op_communicates(o) && o->where.group_size > 1;
}

/* Rows of rank `i` within the whole that a gather or scatter of `rows` rows divides. */
static void part(int64_t *first, int64_t *count, const op *o, int64_t rows, int i)
{
    shard_rows(first, count, rows, o->where.group_size, i);
    if (o->where.owner >= 0) {
        *first = 0;
        *count = i == o->where.owner ? rows : 0;
    }
}

/* y, row `to` of rank me = the sum over ranks `from` .. of row `row` of x; sums in rank order */
static void sum_rows(reference_program *const *ranks, const op *const *at, int me, int64_t to, int64_t of)
{
    int64_t width = reference_width(at[me]->in[0]);
    for (int64_t j = 0; j < width; j++) {
        double sum = 0;
        for (int i = 0; i < at[me]->where.group_size; i++)
            sum += row(ranks[i], at[i]->in[0], of)[j];
        row(ranks[me], at[me]->out[0], to)[j] = sum;
    }
}

/* Rows for each rank: numbers of either type. */
static void exchange_rows(reference_program *const *ranks, const op *const *at, int me)
{
    int64_t each = at[me]->in[0]->shape[0] / at[me]->where.group_size;
    for (int i = 0; i < at[me]->where.group_size; i++) {
        const tensor *x = at[i]->in[0], *y = at[me]->out[0];
        int64_t bytes = each * reference_width(x) * dtype_bytes((dtype)x->type);
        memcpy((char *)tensor_at(y, ranks[me]->storage) + i * bytes,
               (const char *)tensor_at(x, ranks[i]->storage) + me * bytes, (size_t)bytes);
    }
}

static void collective(reference_program *const *ranks, const op *const *at)
{
    int size = at[0]->where.group_size;
    int64_t first, count;
    for (int me = 0; me < size; me++) {
        const op *o = at[me];
        MUST(o->kind == at[0]->kind && o->where.group_size == size && o->where.group_rank == me, "%s meets %s",
             at[0]->label, o->label);
        MUST((o->in[0]->type == DTYPE_FP64 || o->kind == OP_all_to_all) && o->in[0]->address != o->out[0]->address,
             "%s: the reference communicates floating-point tensors out of place", o->label);
        switch (o->kind) {
        case OP_all_gather:
            for (int i = 0; i < size; i++) {
                part(&first, &count, o, o->out[0]->shape[0], i);
                for (int64_t k = 0; k < count; k++)
                    memcpy(row(ranks[me], o->out[0], first + k), row(ranks[i], at[i]->in[0], k),
                           (size_t)reference_width(o->out[0]) * sizeof(double));
            }
            break;
        case OP_reduce_scatter:
            part(&first, &count, o, o->in[0]->shape[0], me);
            for (int64_t k = 0; k < count; k++)
                sum_rows(ranks, at, me, k, first + k);
            break;
        case OP_all_to_all:
            exchange_rows(ranks, at, me);
            break;
        case OP_all_reduce:
            for (int64_t k = 0; k < o->out[0]->shape[0]; k++)
                sum_rows(ranks, at, me, k, k);
            break;
        default:
            MUST(0, "%s: %s is no collective", o->label, op_row_of(o)->name);
        }
    }
}

/* What a rank has that forgot to communicate: its own part, in the place where it would be. */
static void left_out(reference_program *const *ranks, const op *const *at)
{
    for (int me = 0; me < at[0]->where.group_size; me++) {
        const op *o = at[me];
        const tensor *x = o->in[0], *y = o->out[0];
        int64_t first, count;
        part(&first, &count, o, x->shape[0] > y->shape[0] ? x->shape[0] : y->shape[0], me);
        for (int64_t k = 0; k < y->shape[0]; k++) {
            int64_t of = o->kind == OP_all_gather ? k - first : o->kind == OP_reduce_scatter ? k + first : k;
            bool own = of >= 0 && of < x->shape[0];
            for (int64_t j = 0; j < reference_width(y); j++)
                row(ranks[me], y, k)[j] = own ? row(ranks[me], x, of)[j] : 0;
        }
    }
}

int reference_program_run_group(reference_program *const *ranks, int size, const int *first, const int *count, int skip)
{
    enum { MOST = 16 };
    int at[MOST], done = 0;
    const op *waiting[MOST];
    MUST(size <= MOST, "%d ranks", size);
    memcpy(at, first, (size_t)size * sizeof *at);
    for (;; done++) {
        int ended = 0;
        for (int i = 0; i < size; i++) {
            int end = first[i] + count[i];
            for (; at[i] < end && !is_collective(&ranks[i]->ops[at[i]]); at[i]++)
                run(ranks[i], at[i], false);
            waiting[i] = at[i] < end ? &ranks[i]->ops[at[i]++] : NULL;
            ended += !waiting[i];
        }
        if (ended == size)
            return done;
        MUST(!ended, "a rank waits for a communication that another never enters");
        if (done == skip)
            left_out(ranks, waiting);
        else
            collective(ranks, waiting);
    }
}
