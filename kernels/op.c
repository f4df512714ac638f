#include "kernels/op.h"

#include <stdio.h>

int op_inputs(const op *o)
{
    int n = OP_MAX_IN;
    while (n > 0 && !o->in[n - 1])
        n--;
    return n;
}

int op_outputs(const op *o)
{
    int n = OP_MAX_OUT;
    while (n > 0 && !o->out[n - 1])
        n--;
    return n;
}

const char *op_text(char *out, int bytes, const op *o)
{
    snprintf(out, (size_t)bytes, "%s: %s", o->label ? o->label : "-", op_row_of(o)->name);
    return out;
}

void shard_rows(int64_t *first, int64_t *count, int64_t rows, int ranks, int rank)
{
    int64_t each = rows / ranks, more = rows % ranks;
    *count = each + (rank < more);
    *first = each * rank + (rank < more ? rank : more);
}
