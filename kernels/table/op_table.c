/* The op table, made of ops.def: where each row's shape rule, cost and gradient come together. In a file of its own,
 * since those use ops, which thus need not know them. */
#include "kernels/table/op.h"

struct recorder;

#define OP(name, ...)                                                                                                  \
    void infer_##name(op *o);                                                                                          \
    op_cost cost_##name(const op *o);                                                                                  \
    void gradient_##name(struct recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT]);
#include "kernels/table/ops.def"

#define CLASS(name, traits) (traits),
const uint8_t op_class_traits[OP_CLASS_COUNT] = {
#include "kernels/table/ops.def"
};

_Static_assert(OP_MAX_IN <= 8, "a mask of inputs has eight bits");

#define NONE                                                                                                           \
    {                                                                                                                  \
        0                                                                                                              \
    }
#define PAIR(out, mask)                                                                                                \
    {                                                                                                                  \
        [out] = (mask)                                                                                                 \
    }
#define PAIRS(...)                                                                                                     \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define OP(name, class, formula, ins, outs, takes, flags)                                                              \
    {#name, formula, ins, outs, OP_CLASS_##class, takes, flags, infer_##name, cost_##name, gradient_##name},
const op_row op_rows[OP_COUNT] = {
#include "kernels/table/ops.def"
};
