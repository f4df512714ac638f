/* The loss over this rank's columns of the vocabulary. */
#include "kernels/ops/family.h"

static void check_logits(const op *o)
{
    const tensor *logits = o->in[0];
    OPERANDS_CHECK(infer_is_activation(logits) && infer_is_vector(o->in[1], DTYPE_INT32, logits->shape[0]),
                   "logits[t, v], targets int32[t]");
    OPERANDS_CHECK(o->at.vocabulary.ids >= 0 && o->at.vocabulary.ids <= logits->shape[1],
                   "vocabulary.ids exceeds the columns");
}

void infer_cross_entropy_stats(op *o)
{
    check_logits(o);
    infer_shape(o->out[0], DTYPE_FP32, 2, o->in[0]->shape[0], 3, 0);
    operands_place(o, "r.>r 1.>0 t.>t");
}

GRADIENTLESS(cross_entropy_stats, cost_each(o, 3, 0))

void infer_cross_entropy(op *o)
{
    check_logits(o);
    const tensor *logits = o->in[0], *stats = o->in[2];
    OPERANDS_CHECK(stats->dims == 2 && stats->type == DTYPE_FP32 && stats->shape[1] == 3 && stats->shape[0] > 0 &&
                       stats->shape[0] % logits->shape[0] == 0,
                   "stats[n t, 3] fp32");
    OPERANDS_CHECK(infer_is_scalars(o->in[3]) && infer_is_vector(o->out[0], DTYPE_FP32, 1),
                   "the step's scalars, loss fp32[1]");
    if (o->out[1])
        infer_shape_like(o->out[1], logits);
    /* Tensor ranks have the same loss: the consumer decides which rank contributes to the sum over ranks. */
    operands_place(o, "r.r.>.r 1.r.>.1 1.s.>.1 t.t.>pt");
}

op_cost cost_cross_entropy(const op *o)
{
    double bytes = cost_traffic(o, 1) - (o->out[1] ? 0 : cost_bytes(o->in[0])); /* the loss alone reads no logits */
    return (op_cost){o->out[1] ? 4 * cost_elements(o->in[0]) : 2 * cost_elements(o->in[1]), bytes};
}

NO_GRADIENT(cross_entropy)
