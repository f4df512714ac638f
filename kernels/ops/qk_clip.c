/* QK-clip: the largest scores of attention's heads, and the factors of weights' rows that follow from them. */
#include "kernels/ops/family.h"

void infer_largest(op *o)
{
    const tensor *x = o->in[0];
    OPERANDS_CHECK(x->type == DTYPE_FP32 && (x->dims == 1 || x->dims == 2), "x[rows, columns] or x[columns] fp32");
    OPERANDS_CHECK(infer_is_vector(o->out[0], DTYPE_FP32, x->dims == 2 ? x->shape[0] : 1), "y[rows] fp32");
    operands_place(o, "0>0 1>0"); /* ranks that divide columns have a largest of their own each */
}

COST(largest, cost_each(o, 1, 1))
NO_GRADIENT(largest)

void infer_qk_factors(op *o)
{
    const tensor *peaks = o->in[0], *factors = o->out[0];
    const op_qk_clip *as = &o->at.qk;
    OPERANDS_CHECK(as->heads > 0 && infer_is_matrix(peaks, DTYPE_FP32, peaks->shape[0], as->heads) && o->at.rows > 0 &&
                       peaks->shape[0] % o->at.rows == 0 && o->at.first >= 0 && o->at.first < o->at.rows,
                   "peaks fp32[ranks layers, heads], attributes.rows layers");
    OPERANDS_CHECK(as->threshold > 0 && as->size > 0 && as->whole >= 0 && as->whole <= as->size && as->blocks >= 0 &&
                       infer_is_vector(factors, DTYPE_FP32, factors->shape[0]) &&
                       (int64_t)as->blocks * as->size <= factors->shape[0],
                   "factors fp32[rows], attributes.qk.blocks of these");
    operands_place(o, ".>.");
}

COST(qk_factors, cost_each(o, 2, 0))
NO_GRADIENT(qk_factors)
