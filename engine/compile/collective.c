#include "engine/compile/collective.h"

#include <stdlib.h>

#include "memory/log.h"

bool collective_has_parts(const op *o)
{
    return o->kind == OP_all_gather || o->kind == OP_reduce_scatter;
}

/* The whole of a gather is its output, of a scatter its input. */
static const tensor *whole(const op *o)
{
    if (o->kind == OP_all_gather || o->kind == OP_receive)
        return o->out[0];
    return o->in[0];
}

void collective_counts(int64_t *counts, const op *o)
{
    int64_t elements = tensor_elements(whole(o)), rows = o->at.rows ? o->at.rows : whole(o)->shape[0];
    int64_t width = rows ? elements / rows : 0;
    for (int i = 0; i < o->at.group_size; i++) {
        int64_t first, count;
        shard_rows(&first, &count, rows, o->at.group_size, i);
        if (o->at.owner >= 0)
            count = i == o->at.owner ? rows : 0;
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
    const tensor *x = whole(o);
    return o->kind == OP_all_reduce ? o->at.first * row_elements(x) * dtype_bytes((dtype)x->type) : 0;
}

static int64_t elements_of(const op *o)
{
    const tensor *x = whole(o);
    return o->kind == OP_all_reduce && o->at.rows ? o->at.rows * row_elements(x) : tensor_elements(x);
}

comm_shape collective_shape(const op *o, const int64_t *counts)
{
    comm_shape s = {.type = (dtype)whole(o)->type,
                    .members = o->at.group_size,
                    .me = o->at.group_rank,
                    .count = elements_of(o),
                    .counts = counts};
    switch (o->kind) {
    case OP_all_gather:
        s.kind = COMM_ALL_GATHER;
        break;
    case OP_reduce_scatter:
        s.kind = COMM_REDUCE_SCATTER;
        break;
    case OP_all_reduce:
        s.kind = COMM_ALL_REDUCE;
        break;
    case OP_send:
        s.kind = COMM_SEND;
        break;
    case OP_receive:
        s.kind = COMM_RECEIVE;
        break;
    default:
        MUST(0, "%s is no communication", op_row_of(o)->name);
    }
    return s;
}

void collective_measure(int64_t *scratch, int64_t *bytes, int64_t *messages, const op *o)
{
    int64_t *counts = NULL;
    if (collective_has_parts(o)) {
        counts = must_alloc((unsigned long)o->at.group_size * sizeof *counts);
        collective_counts(counts, o);
    }
    comm_shape s = collective_shape(o, counts);
    *scratch = comm_scratch_bytes(&s);
    *bytes = comm_expected_bytes(&s);
    *messages = comm_expected_messages(&s);
    free(counts);
}
