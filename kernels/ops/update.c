/* The optimizer's ops: norms of gradients, the updates of weights, and QK-clip. */
#include "kernels/exact_sum.h"
#include "kernels/ops/family.h"

void infer_sum_squares(op *o)
{
    OPERANDS_CHECK(o->in[0]->type == DTYPE_FP32 && infer_is_vector(o->out[0], DTYPE_INT64, SUM_BINS),
                   "gradient fp32, bins int64[SUM_BINS]");
    operands_place(o, "r>. 0>. 1>. 2>.");
}

GRADIENTLESS(sum_squares, cost_each(o, 2, 1))

void infer_clip(op *o)
{
    OPERANDS_CHECK(infer_is_vector(o->in[0], DTYPE_INT64, SUM_BINS) && infer_is_scalars(o->in[1]),
                   "bins int64[SUM_BINS], the step's scalars");
    infer_shape(o->out[0], DTYPE_FP32, 1, CONTROL_COUNT, 0, 0);
    operands_place(o, "r.>r");
}

GRADIENTLESS(clip, cost_each(o, 2, 0))

/* An update: gradient (or direction), scalars, control, and factors of rows -> weight, master and states. */
static void infer_update(op *o)
{
    const tensor *gradient = o->in[0];
    OPERANDS_CHECK(gradient->type == DTYPE_FP32 && infer_is_scalars(o->in[1]) &&
                       infer_is_vector(o->in[2], DTYPE_FP32, CONTROL_COUNT),
                   "gradient fp32, the step's scalars, control fp32[3]");
    for (int i = 1; i < OP_MAX_OUT && o->out[i]; i++)
        OPERANDS_CHECK(infer_same_shape(o->out[i], gradient) &&
                           (infer_same(o->out[i], gradient) || precision_is_narrow((dtype)o->out[i]->type)),
                       "master and states fp32 or bf16 in the gradient's shape");
    OPERANDS_CHECK(!o->out[0] || (infer_same_shape(o->out[0], gradient) && infer_is_compute(o->out[0])),
                   "the weight in the gradient's shape");
    operands_place(o, "r...>.r.. r...>.s.. r...>.p.. 0...>.0.. 1...>.1.. 2...>.2.."); /* divided as the master is */
}

INFER_AS(adamw, update)
GRADIENTLESS(adamw, (op_cost){16 * cost_elements(o->in[0]), cost_traffic(o, 14)})

INFER_AS(lion, update)
GRADIENTLESS(lion, (op_cost){12 * cost_elements(o->in[0]), cost_traffic(o, 6)})

INFER_AS(sgd, update)
GRADIENTLESS(sgd, (op_cost){8 * cost_elements(o->in[0]), cost_traffic(o, 6)})

void infer_muon_momentum(op *o)
{
    infer_shape_like(o->out[0], o->in[0]);
    infer_update(o);
    o->out[0]->place = o->in[0]->place;
}

GRADIENTLESS(muon_momentum, (op_cost){7 * cost_elements(o->in[0]), cost_traffic(o, 2)})

static bool is_square(const tensor *t)
{
    return infer_is_matrix(t, DTYPE_FP32, t->shape[0], t->shape[0]);
}

void infer_muon_scale(op *o)
{
    OPERANDS_CHECK(is_square(o->in[0]) && o->at.update.epsilon > 0, "gram[n, n] fp32, epsilon above 0");
    infer_shape_like(o->out[0], o->in[0]);
    infer_shape(o->out[1], DTYPE_FP32, 1, 1, 0, 0);
    operands_place(o, "r>rr");
}

GRADIENTLESS(muon_scale, cost_each(o, 1, 0))

void infer_muon_polynomial(op *o)
{
    const tensor *gram = o->in[0], *scale = o->in[2];
    OPERANDS_CHECK(is_square(gram) && infer_same(o->in[1], gram) && (!scale || infer_is_vector(scale, DTYPE_FP32, 1)),
                   "gram[n, n] and square[n, n] fp32, scale fp32[1]");
    infer_shape_like(o->out[0], gram);
    operands_place(o, "rrr>r");
}

GRADIENTLESS(muon_polynomial, cost_each(o, 4, 0))

void infer_muon(op *o)
{
    infer_update(o);
    OPERANDS_CHECK(!o->in[3] || infer_is_vector(o->in[3], DTYPE_FP32, o->in[0]->shape[0]), "factors fp32[rows]");
}

GRADIENTLESS(muon, (op_cost){3 * cost_elements(o->in[0]), cost_traffic(o, 2)})

/* ---- QK-clip: the max logits of attention's heads, and the factors of weights' rows that follow from them -------- */

void infer_max_logit(op *o)
{
    const tensor *x = o->in[0];
    OPERANDS_CHECK(x->type == DTYPE_FP32 && (x->dims == 1 || x->dims == 2), "x[rows, columns] or x[columns] fp32");
    OPERANDS_CHECK(infer_is_vector(o->out[0], DTYPE_FP32, x->dims == 2 ? x->shape[0] : 1), "y[rows] fp32");
    operands_place(o, "0>0 1>0"); /* each rank that divides columns has a max of its own */
}

GRADIENTLESS(max_logit, cost_each(o, 1, 1))

void infer_qk_factors(op *o)
{
    const tensor *max_logits = o->in[0], *factors = o->out[0];
    const op_qk_clip *as = &o->at.qk;
    OPERANDS_CHECK(as->heads > 0 && infer_is_matrix(max_logits, DTYPE_FP32, max_logits->shape[0], as->heads) &&
                       as->layers > 0 && max_logits->shape[0] % as->layers == 0 && as->layer >= 0 &&
                       as->layer < as->layers,
                   "max_logits fp32[ranks layers, heads], qk.layers of them");
    OPERANDS_CHECK(as->threshold > 0 && as->size > 0 && as->whole >= 0 && as->whole <= as->size && as->blocks >= 0 &&
                       infer_is_vector(factors, DTYPE_FP32, factors->shape[0]) &&
                       (int64_t)as->blocks * as->size <= factors->shape[0],
                   "factors fp32[rows], qk.blocks of these");
    for (int i = 0; i < AXIS_COORDINATES; i++)
        OPERANDS_CHECK(!axis_divides_activations(i) || max_logits->place.along[i].kind == PLACE_REPLICATE,
                       "max_logits must be those of all ranks that divide samples and tokens");
    operands_place(o, ".>.");
}

GRADIENTLESS(qk_factors, cost_each(o, 2, 0))
