/* Products of experts: each row by the weight of the expert that has it. */
#include "kernels/grouped.h"

#include "kernels/ops/family.h"
#include "kernels/record/product.h"

grouped_product grouped_of(const op *o)
{
    bool sums = op_has(o, OP_WEIGHT), input = op_has(o, OP_GRADIENT) && !sums;
    grouped_product p = {
        .a = o->in[0], .b = o->in[1], .bias = o->in[3], .c = o->out[0], .offsets = o->in[2], .sums = sums};
    p.experts = p.offsets->shape[0] - 1;
    p.rows = p.a->shape[0];
    p.m = sums ? p.a->shape[1] : 0;
    p.n = p.c->shape[1];
    p.k = sums ? 0 : p.a->shape[1];
    p.b_transposed = !sums && !input;
    return p;
}

void grouped_average(double size[3], const grouped_product *p)
{
    double rows = (double)p->rows / (double)p->experts;
    size[0] = p->sums ? (double)p->m : rows;
    size[1] = (double)p->n;
    size[2] = p->sums ? rows : (double)p->k;
}

double grouped_flops(const grouped_product *p)
{
    return 2 * (double)p->rows * (double)p->n * (double)(p->sums ? p->m : p->k);
}

static op_cost cost_grouped(const op *o)
{
    grouped_product p = grouped_of(o);
    return cost_of(o, grouped_flops(&p), p.sums);
}

/* Refuses offsets other than int32[E + 1], E > 0, that divide the rows of `weight` among experts; returns E. */
static int64_t check_experts(const op *o, const tensor *weight, const tensor *offsets)
{
    OPERANDS_CHECK(offsets->dims == 1 && offsets->type == DTYPE_INT32 && offsets->shape[0] > 1, "offsets int32[E + 1]");
    int64_t experts = offsets->shape[0] - 1;
    OPERANDS_CHECK(weight->shape[0] % experts == 0, "as many rows of weights for each expert");
    return experts;
}

/* The rows are divided, and the weight all ranks' or divided by experts like its rows. */
#define PLACE_GROUPED "0s0s>0 0r0r>0"

tensor *record_grouped_linear(recorder *r, const char *name, tensor *x, tensor *w, tensor *offsets, tensor *bias)
{
    return record_first(r, name, &(op){.kind = OP_grouped_linear, .in = {x, w, offsets, bias}}, 1);
}

void infer_grouped_linear(op *o)
{
    const tensor *x = o->in[0], *w = o->in[1];
    int64_t experts = check_experts(o, w, o->in[2]);
    const precision_row *row = product_precision(o);
    OPERANDS_CHECK(row && x->dims == 2 && w->dims == 2 && w->shape[1] == x->shape[1],
                   "x[R, c], w[E n, c] of one precision");
    OPERANDS_CHECK(!o->in[3] || infer_is_vector(o->in[3], row->compute, w->shape[0]), "bias[E n] of its compute type");
    infer_shape(o->out[0], row->compute, 2, x->shape[0], w->shape[0] / experts, 0);
    operands_place(o, PLACE_GROUPED);
}

op_cost cost_grouped_linear(const op *o)
{
    return cost_grouped(o);
}

void gradient_grouped_linear(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    tensor *dy = cotangent[0], *x = o->in[0], *w = o->in[1], *offsets = o->in[2];
    if (recorder_wants(r, x)) {
        op like = {.kind = OP_grouped_linear_grad_input, .in = {dy, recorder_use(r, w), recorder_use(r, offsets)}};
        recorder_flow(r, x, gradient_by(r, &like));
    }
    gradient_of_weight(
        r, "dw", (op){.kind = OP_grouped_linear_grad_weight, .in = {dy, recorder_use(r, x), recorder_use(r, offsets)}},
        w);
    if (o->in[3])
        gradient_of_weight(r, "db", (op){.kind = OP_grouped_bias_grad, .in = {dy, recorder_use(r, offsets)}}, o->in[3]);
}

void infer_grouped_linear_grad_input(op *o)
{
    const tensor *dy = o->in[0], *w = o->in[1];
    int64_t experts = check_experts(o, w, o->in[2]);
    const precision_row *row = product_precision(o);
    OPERANDS_CHECK(row && dy->dims == 2 && w->dims == 2 && w->shape[0] == experts * dy->shape[1],
                   "dy[R, n], w[E n, c] of one precision");
    infer_shape(o->out[0], row->compute, 2, dy->shape[0], w->shape[1], 0);
    operands_place(o, PLACE_GROUPED);
}

GRADIENTLESS(grouped_linear_grad_input, cost_grouped(o))

void infer_grouped_linear_grad_weight(op *o)
{
    const tensor *dy = o->in[0], *x = o->in[1], *dw = o->out[0];
    int64_t experts = check_experts(o, dw, o->in[2]);
    OPERANDS_CHECK(product_precision(o) && dy->dims == 2 && x->dims == 2 && x->shape[0] == dy->shape[0] &&
                       infer_is_matrix(dw, DTYPE_FP32, experts * dy->shape[1], x->shape[1]),
                   "dy[R, n], x[R, c] of one precision, dw[E n, c] fp32");
    operands_place(o, "000>p 000>r");
}

GRADIENTLESS(grouped_linear_grad_weight, cost_grouped(o))

void infer_grouped_bias_grad(op *o)
{
    const tensor *dy = o->in[0], *db = o->out[0];
    int64_t experts = check_experts(o, db, o->in[1]);
    OPERANDS_CHECK(infer_is_activation(dy) && infer_is_vector(db, DTYPE_FP32, experts * dy->shape[1]),
                   "dy[R, n], db[E n] fp32");
    operands_place(o, "00>p 00>r");
}

GRADIENTLESS(grouped_bias_grad, cost_each(o, 1, 1))
