/* Matrix products, their gradients, and products that are fused with the GELU beside them. */
#include "kernels/record/product.h"

#include <string.h>

#include "kernels/record/fuse.h"
#include "kernels/ops/family.h"

/* ---- operands of each ----------------------------------------------------------------------------------------- */

/* Each input's dimensions as letters of C[m, n] = sum over k of A[m, k] B[k, n]; inputs 0 and 1 are A and B, of types
 * that one precision multiplies. Input 2 and C have its compute type, but a wide or "+=" C is fp32. */
typedef struct form {
    const char *in[3];
    enum third { NOTHING, BIAS, ADDEND, GELU } third; /* input 2 */
    bool accumulates;                                 /* C is "+=" */
    bool keeps_gelu;                                  /* output 1 is the GELU's input */
    bool wide;                                        /* C is fp32, and written as a new tensor */
    const char *takes, *rules;                        /* operands in words; placements, NULL: those of two fused ops */
} form;

/* A partial sum takes a bias that is itself placed partial: one rank has it, the others none. */
static const form forms[OP_COUNT] = {
    [OP_linear] = {.in = {"mk", "nk", "n"},
                   .third = BIAS,
                   .takes = "x[t, k], w[n, k], bias[n] of one precision",
                   .rules = "rrr>r s00>1 11p>p 0ss>0 sss>s"},
    [OP_linear_wide] = {.in = {"mk", "nk"},
                        .wide = true,
                        .takes = "x[t, k], w[n, k] of one precision",
                        .rules = "rr>r s0>1 11>p 0s>0 ss>s"},
    [OP_linear_grad_input] = {.in = {"mk", "kn", "mn"},
                              .third = ADDEND,
                              .takes = "dy[t, n], w[n, k], addend[t, k] of one precision",
                              .rules = "rrr>r 10p>p r11>1 0s0>0 psp>p"},
    [OP_linear_grad_weight] = {.in = {"km", "kn"},
                               .accumulates = true,
                               .takes = "dy[t, n], x[t, k] of one precision, dw[n, k] fp32",
                               .rules = "rr>r 1s>0 r1>1 00>p ps>p"},
    [OP_linear_gelu] = {.in = {"mk", "nk", "n"}, .third = BIAS, .keeps_gelu = true},
    [OP_linear_grad_gelu] = {.in = {"mk", "kn", "mn"}, .third = GELU},
};

static const form *form_of(const op *o)
{
    const form *f = &forms[o->kind];
    MUST(f->in[0], "%s is no product that product.c knows", op_row_of(o)->name);
    return f;
}

int product_input_dim(const op *o, int i, product_side side)
{
    const char *letters = i < 3 ? form_of(o)->in[i] : NULL, *at = letters ? strchr(letters, "mnk"[side]) : NULL;
    return at ? (int)(at - letters) : -1;
}

matrix_product product_of(const op *o)
{
    const form *f = form_of(o);
    tensor *third = o->in[2];
    matrix_product p = {.a = o->in[0], .b = o->in[1], .c = o->out[0], .accumulates = f->accumulates};
    p.a_transposed = f->in[0][0] == 'k';
    p.b_transposed = f->in[1][0] == 'n';
    p.m = p.c->shape[0];
    p.n = p.c->shape[1];
    p.k = p.a->shape[p.a_transposed ? 0 : 1];
    p.bias = f->third == BIAS ? third : NULL;
    p.added = f->third == ADDEND ? third : f->accumulates && o->at.accumulate != OP_WRITES ? p.c : NULL;
    p.gelu = f->keeps_gelu ? o->out[1] : f->third == GELU ? third : NULL;
    return p;
}

double product_flops(const matrix_product *p)
{
    return 2 * (double)p->m * (double)p->k * (double)p->n;
}

/* Returns the type of input `i` in a precision. */
static dtype type_of_input(const precision_row *row, const op *o, int i)
{
    return i > 1 ? row->compute : i == 0 && op_has(o, OP_GRADIENT) ? row->cotangent : row->product;
}

const precision_row *product_precision(const op *o)
{
    for (int k = 0; k < PRECISION_COUNT; k++) {
        const precision_row *row = &precision_rows[k];
        if (o->in[0]->type == type_of_input(row, o, 0) && o->in[1]->type == type_of_input(row, o, 1))
            return row;
    }
    return NULL;
}

void product_check_types(const program *body, precision_kind kind)
{
    for (int k = 0; k < body->count; k++) {
        const op *o = body->ops[k];
        MUST(!product_multiplies(o) || product_precision(o) == precision_row_of(kind),
             "%s: no product of this precision takes %s and %s", o->label, dtype_name((dtype)o->in[0]->type),
             dtype_name((dtype)o->in[1]->type));
    }
}

static bool operand_fits(const tensor *t, const char *letters, dtype type, const int64_t size[3])
{
    bool fits = t->type == type && t->dims == strlen(letters);
    for (int i = 0; fits && letters[i]; i++)
        fits = t->shape[i] == size[strchr("mnk", letters[i]) - "mnk"];
    return fits;
}

/* A fused op is inferred as the two ops that it is made of. */
static void infer_product(op *o)
{
    const form *f = form_of(o);
    if (!f->rules) {
        op first = fuse_first(o), second = fuse_second(o);
        operands_infer(&first);
        operands_infer(&second);
        return;
    }
    const tensor *a = o->in[0], *b = o->in[1];
    const precision_row *row = product_precision(o);
    OPERANDS_CHECK(row && a->dims == 2 && b->dims == 2, f->takes);
    bool transposed = f->in[0][0] == 'k';
    const int64_t size[] = {a->shape[transposed], b->shape[f->in[1][0] == 'k'], a->shape[!transposed]};
    for (int i = 0; i < 3; i++)
        OPERANDS_CHECK(!o->in[i] || operand_fits(o->in[i], f->in[i], type_of_input(row, o, i), size), f->takes);
    OPERANDS_CHECK(!f->accumulates || infer_is_matrix(o->out[0], DTYPE_FP32, size[0], size[1]), f->takes);
    if (!f->accumulates)
        infer_shape(o->out[0], f->wide ? DTYPE_FP32 : row->compute, 2, size[0], size[1], 0);
    operands_place(o, f->rules);
}

/* A fused op costs as much as its two ops, but the tensor between them moves once. */
static op_cost cost_product(const op *o)
{
    matrix_product p = product_of(o);
    double flops = product_flops(&p) + (p.bias || (p.added && p.added != p.c) ? cost_elements(p.c) : 0);
    if (fuse_is_fused(o)) {
        op second = fuse_second(o);
        flops += op_row_of(&second)->cost(&second).flops;
    }
    return cost_of(o, flops, p.accumulates);
}

#define PRODUCT(name)                                                                                                  \
    INFER(name, infer_product(o))                                                                                      \
    COST(name, cost_product(o))

PRODUCT(linear)
PRODUCT(linear_wide)
PRODUCT(linear_grad_input)
PRODUCT(linear_grad_weight)
PRODUCT(linear_gelu)
PRODUCT(linear_grad_gelu)
NO_GRADIENT(linear_grad_input)
NO_GRADIENT(linear_grad_weight)
NO_GRADIENT(linear_gelu)
NO_GRADIENT(linear_grad_gelu)

/* ---- recording and gradients ------------------------------------------------------------------------------------ */

tensor *record_linear(recorder *r, const char *name, tensor *x, tensor *w, tensor *bias)
{
    return record_first(r, name, &(op){.kind = OP_linear, .in = {x, w, bias}}, 1);
}

tensor *record_linear_wide(recorder *r, const char *name, tensor *x, tensor *w)
{
    return record_first(r, name, &(op){.kind = OP_linear_wide, .in = {x, w}}, 1);
}

/* Records the gradients of x, w and bias, given the cotangent `dy` of y = x w^T + bias in y's type. */
static void record_gradients(recorder *r, const op *o, tensor *dy)
{
    tensor *x = o->in[0], *w = o->in[1], *bias = o->in[2];
    if (recorder_wants(r, x)) {
        op like = {.kind = OP_linear_grad_input, .in = {dy, recorder_use(r, w), recorder_flow_take(r, x)}};
        recorder_flow_set(r, x, gradient_by(r, &like));
    }
    gradient_of_weight(r, "dw", (op){.kind = OP_linear_grad_weight, .in = {dy, recorder_use(r, x)}}, w);
    if (bias)
        gradient_of_weight(r, "db", (op){.kind = OP_bias_grad, .in = {dy}}, bias);
}

GRADIENT_BY(linear, record_gradients(r, o, cotangent[0]))

/* Products multiply two operands of one precision (kernels/table/precision.def), so dy is cast to the type of every
 * other cotangent; sums are fp32. */
void gradient_linear_wide(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    tensor *dy = cotangent[0];
    const dtype type = (dtype)o->in[0]->type;
    record_gradients(r, o, dy->type == type ? dy : record_cast(r, "dy", dy, type));
}

void infer_bias_grad(op *o)
{
    OPERANDS_CHECK(infer_is_activation(o->in[0]), "dy[t, n]");
    OPERANDS_CHECK(infer_is_vector(o->out[0], DTYPE_FP32, o->in[0]->shape[1]), "db[n] fp32");
    operands_place(o, "r>r 1>0 0>p p>p");
}

GRADIENTLESS(bias_grad, cost_each(o, 1, 1))
