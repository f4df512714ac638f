#include "kernels/op.h"

#include <stdio.h>

struct recorder;

#define OP(name, ...)                                                                                                  \
    void infer_##name(op *o);                                                                                          \
    op_cost cost_##name(const op *o);                                                                                  \
    void gradient_##name(struct recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT]);
#include "kernels/ops.def"
#undef OP

#define NONE                                                                                                           \
    {0, 0},                                                                                                            \
    {                                                                                                                  \
        0, 0                                                                                                           \
    }
#define PAIR(out, mask)                                                                                                \
    {out, 0},                                                                                                          \
    {                                                                                                                  \
        mask, 0                                                                                                        \
    }
#define OP(name, formula, ins, outs, pairs, flags)                                                                     \
    {#name, formula, ins, outs, pairs, flags, infer_##name, cost_##name, gradient_##name},
const op_row op_rows[OP_COUNT] = {
#include "kernels/ops.def"
};
#undef OP

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
