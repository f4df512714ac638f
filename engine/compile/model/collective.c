#include "engine/compile/model/collective.h"

#include <stdlib.h>

#include "memory/log.h"
#include "memory/scope.h"

/* The operation of a communication backend that each op starts. */
static const comm_kind kinds[OP_COUNT] = {
    [OP_all_gather] = COMM_ALL_GATHER,
    [OP_reduce_scatter] = COMM_REDUCE_SCATTER,
    [OP_all_to_all] = COMM_ALL_TO_ALL,
    [OP_all_reduce] = COMM_ALL_REDUCE,
    [OP_send] = COMM_SEND,
    [OP_receive] = COMM_RECEIVE,
};

bool collective_has_parts(const op *o)
{
    comm_kind kind = kinds[o->kind];
    return op_communicates(o) && !op_has(o, OP_MESSAGE) && kind != COMM_ALL_REDUCE;
}

/* The whole of a gather is its output, of a scatter its input. */
static const tensor *whole_tensor(const op *o)
{
    return op_has(o, OP_GATHER) || !o->in[0] ? o->out[0] : o->in[0];
}

/* The rows that an all_reduce sums, where it does not sum all; else 0. */
static int64_t summed_rows(const op *o)
{
    return kinds[o->kind] == COMM_ALL_REDUCE ? o->where.rows : 0;
}

void collective_counts(int64_t *counts, const op *o)
{
    int64_t elements = tensor_elements(whole_tensor(o)),
            rows = o->where.rows ? o->where.rows : whole_tensor(o)->shape[0];
    int64_t width = rows ? elements / rows : 0;
    for (int i = 0; i < o->where.group_size; i++) {
        int64_t first, count;
        shard_rows(&first, &count, rows, o->where.group_size, i);
        if (o->where.owner >= 0)
            count = i == o->where.owner ? rows : 0;
        counts[i] = count * width;
    }
}

/* Elements of a row, however the tensor is divided. */
static int64_t row_elements(const tensor *t)
{
    return t->shape[0] ? tensor_elements(t) / t->shape[0] : 0;
}

int64_t collective_offset(const op *o)
{
    const tensor *x = whole_tensor(o);
    return summed_rows(o) ? o->where.first * row_elements(x) * dtype_bytes((dtype)x->type) : 0;
}

static int64_t elements_of(const op *o)
{
    const tensor *x = whole_tensor(o);
    return summed_rows(o) ? summed_rows(o) * row_elements(x) : tensor_elements(x);
}

comm_shape collective_shape(const op *o, const int64_t *counts)
{
    MUST(op_communicates(o), "%s is no communication", op_row_of(o)->name);
    return (comm_shape){.kind = kinds[o->kind],
                        .type = (dtype)whole_tensor(o)->type,
                        .members = o->where.group_size,
                        .me = o->where.group_rank,
                        .count = elements_of(o),
                        .counts = counts};
}

int collective_bundle(const op **out, const program *p, int last)
{
    const op *o = p->ops[last];
    int count = o->where.bundle_of ? o->where.bundle_of : 1, wanted = count - 1;
    if (o->where.bundle_of && o->where.bundle + 1 < o->where.bundle_of)
        return 0;
    out[wanted--] = o;
    for (int i = last - 1; wanted >= 0; i--) {
        MUST(i >= 0, "%s: the others of its bundle are missing", o->label);
        const op *other = p->ops[i];
        if (!op_waits(other) && other->where.bundle_of == count && other->where.bundle == wanted)
            out[wanted--] = other;
    }
    return count;
}

/* Elements of each member's part of any collective. */
static void find_parts(int64_t *counts, const op *o)
{
    if (collective_has_parts(o)) {
        collective_counts(counts, o);
        return;
    }
    int64_t offset;
    comm_shape s = collective_shape(o, NULL);
    for (int i = 0; i < s.members; i++)
        comm_part(&offset, &counts[i], &s, i);
}

comm_shape collective_together(int64_t *counts, const op *const *ops, int count)
{
    comm_shape all = collective_shape(ops[0], counts);
    AUTO_FREE int64_t *one = must_alloc((unsigned long)all.members * sizeof *one);
    all.count = 0;
    for (int i = 0; i < all.members; i++)
        counts[i] = 0;
    for (int k = 0; k < count; k++) {
        find_parts(one, ops[k]);
        all.count += elements_of(ops[k]);
        for (int i = 0; i < all.members; i++)
            counts[i] += one[i];
    }
    return all;
}

void collective_measure(int64_t *scratch, int64_t *bytes, int64_t *messages, const program *p, int index)
{
    const op *ops[COMM_SEGMENTS], *o = p->ops[index];
    int count = collective_bundle(ops, p, index);
    *scratch = *bytes = *messages = 0;
    if (count == 0)
        return;
    AUTO_FREE int64_t *counts = NULL;
    comm_shape s = collective_shape(o, NULL);
    if (count > 1 || collective_has_parts(o)) {
        counts = must_alloc((unsigned long)o->where.group_size * sizeof *counts);
        s = collective_together(counts, ops, count);
    }
    *scratch = comm_scratch_bytes(&s);
    *bytes = comm_expected_bytes(&s);
    *messages = comm_expected_messages(&s);
}

int64_t collective_gathered(const program *p, int index)
{
    const op *ops[COMM_SEGMENTS], *o = p->ops[index];
    int count = collective_bundle(ops, p, index);
    if (count == 0)
        return 0;
    AUTO_FREE int64_t *counts = must_alloc((unsigned long)o->where.group_size * sizeof *counts);
    comm_shape s = collective_together(counts, ops, count);
    int64_t least = s.count;
    for (int i = 0; i < s.members; i++)
        least = counts[i] < least ? counts[i] : least;
    return (s.count - least) * dtype_bytes(s.type);
}
