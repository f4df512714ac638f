/* The generators of products, tables and norms: see op_cases.h. */
#include "tests/oracle/op_cases.h"

#define CASES(name) bool op_cases_##name(op_case *c, int variant)
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static const fill UNIT = {.kind = FILL_NORMAL, .b = 1}, SMALL = {.kind = FILL_NORMAL, .b = 0.1},
                  WEIGHT_LIKE = {.kind = FILL_NORMAL, .a = 1, .b = 0.3}, DERIVED = {.kind = FILL_DERIVED},
                  NOTHING = {.kind = FILL_NOTHING};

/* ---- matrix products ----------------------------------------------------------------------------------------- */

static const int64_t PRODUCTS[][3] = {{1, 1, 1},    {1, 24, 40},  {7, 5, 3},      {16, 32, 64},
                                      {33, 17, 63}, {65, 96, 80}, {130, 67, 129}, {40, 260, 272}};

static bool product(int64_t *t, int64_t *n, int64_t *k, int variant)
{
    if (variant >= COUNT(PRODUCTS))
        return false;
    *t = PRODUCTS[variant][0];
    *n = PRODUCTS[variant][1];
    *k = PRODUCTS[variant][2];
    return true;
}

CASES(linear)
{
    int bias = op_case_option(&variant, 2);
    int64_t t, n, k;
    if (!product(&t, &n, &k, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, t, k);
    op_case_in(c, 1, c->type, SMALL, n, k);
    if (bias)
        op_case_in(c, 2, c->type, UNIT, n, 0);
    op_case_infer(c, 1);
    c->terms = (double)k;
    return true;
}

CASES(linear_wide)
{
    int64_t t, n, k;
    if (!product(&t, &n, &k, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, t, k);
    op_case_in(c, 1, c->type, SMALL, n, k);
    op_case_infer(c, 1);
    c->terms = (double)k;
    return true;
}

CASES(linear_grad_input)
{
    int addend = op_case_option(&variant, 2);
    int64_t t, n, k;
    if (!product(&t, &n, &k, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, t, n);
    op_case_in(c, 1, c->type, SMALL, n, k);
    if (addend)
        op_case_in(c, 2, c->type, UNIT, t, k);
    op_case_infer(c, 1);
    c->terms = (double)n;
    return true;
}

CASES(linear_grad_weight)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    int64_t t, n, k;
    if (!product(&t, &n, &k, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, t, n);
    op_case_in(c, 1, c->type, UNIT, t, k);
    op_case_update(c, 0, DTYPE_FP32, UNIT, n, k, c->o.at.accumulate);
    op_case_infer(c, 0);
    c->terms = (double)t;
    return true;
}

CASES(linear_gelu)
{
    int z = op_case_option(&variant, 2);
    if (!op_cases_linear(c, variant))
        return false;
    if (z)
        op_case_infer(c, 2);
    c->roundings = 1; /* z */
    c->growth = 4;    /* as gelu */
    return true;
}

CASES(linear_grad_gelu)
{
    int64_t t, n, k;
    if (!product(&t, &n, &k, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, t, n);
    op_case_in(c, 1, c->type, SMALL, n, k);
    op_case_in(c, 2, c->type, UNIT, t, k);
    op_case_infer(c, 1);
    c->terms = (double)n;
    c->roundings = 1; /* dy w */
    c->growth = 4;
    return true;
}

CASES(bias_grad)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    int64_t t, n;
    if (!op_case_sizes(&t, &n, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, t, n);
    op_case_update(c, 0, DTYPE_FP32, UNIT, n, 0, c->o.at.accumulate);
    op_case_infer(c, 0);
    c->terms = (double)t;
    return true;
}

/* ---- embeddings ---------------------------------------------------------------------------------------------- */

enum { VOCABULARY = 50 };

CASES(embed)
{
    c->o.at.vocabulary.first =
        op_case_option(&variant, 2) * 20; /* the second shard of two, whose last tokens are of a third */
    int64_t t, h;
    if (!op_case_sizes(&t, &h, variant))
        return false;
    op_case_in(c, 0, DTYPE_INT32, (fill){.kind = FILL_INTEGERS, .b = VOCABULARY - 1}, t, 0);
    op_case_in(c, 1, c->type, UNIT, c->o.at.vocabulary.first ? 20 : VOCABULARY, h);
    op_case_infer(c, 1);
    c->exact = true;
    return true;
}

CASES(embed_grad)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    c->o.at.vocabulary.first = op_case_option(&variant, 2) * 20;
    int64_t t, h;
    if (!op_case_sizes(&t, &h, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, t, h);
    op_case_in(c, 1, DTYPE_INT32, (fill){.kind = FILL_INTEGERS, .b = VOCABULARY - 1}, t, 0);
    op_case_update(c, 0, DTYPE_FP32, UNIT, c->o.at.vocabulary.first ? 20 : VOCABULARY, h, c->o.at.accumulate);
    op_case_infer(c, 0);
    c->terms = (double)t;
    return true;
}

CASES(add_positions)
{
    int64_t t, h;
    if (!op_case_sizes(&t, &h, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, t, h);
    op_case_in(c, 1, DTYPE_INT32, (fill){.kind = FILL_INTEGERS, .b = 8}, t, 0);
    op_case_in(c, 2, c->type, UNIT, 9, h);
    op_case_infer(c, 1);
    return true;
}

CASES(add_positions_grad)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    int64_t t, h;
    if (!op_case_sizes(&t, &h, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, t, h);
    op_case_in(c, 1, DTYPE_INT32, (fill){.kind = FILL_INTEGERS, .b = 8}, t, 0);
    op_case_update(c, 0, DTYPE_FP32, UNIT, 9, h, c->o.at.accumulate);
    op_case_infer(c, 0);
    c->terms = (double)t;
    return true;
}

/* ---- norms --------------------------------------------------------------------------------------------------- */

static void norm(op_case *c, bool layer, bool residual, int64_t t, int64_t h)
{
    int slot = 0, s = layer ? 3 : 2;
    op_case_in(c, slot++, c->type, (fill){.kind = FILL_NORMAL, .a = 0.5, .b = 1}, t, h);
    op_case_in(c, slot++, c->type, WEIGHT_LIKE, h, 0);
    if (layer)
        op_case_in(c, slot++, c->type, UNIT, h, 0);
    if (residual)
        op_case_in(c, slot, c->type, UNIT, t, h);
    c->o.at.norm.epsilon = 1e-5f;
    op_case_infer(c, (layer ? 7u : 3u) | (residual ? 1u << s : 0));
    c->terms = (double)h;
    c->roundings = residual; /* the sum */
}

/* A row of one is where a layer norm is nothing but rounding: (s - mean) = 0. */
static bool norm_sizes(int64_t *t, int64_t *h, int variant)
{
    return op_case_sizes(t, h, variant + 1);
}

CASES(rmsnorm)
{
    int residual = op_case_option(&variant, 2);
    c->o.at.norm.offset = (float)op_case_option(&variant, 2);
    int64_t t, h;
    if (!norm_sizes(&t, &h, variant))
        return false;
    norm(c, false, residual, t, h);
    return true;
}

CASES(layernorm)
{
    int residual = op_case_option(&variant, 2);
    int64_t t, h;
    if (!norm_sizes(&t, &h, variant))
        return false;
    norm(c, true, residual, t, h);
    c->growth = 2; /* s - mean */
    return true;
}

/* dy, s, w, rstd, [mean], addend -> dx, dw, [db], the statistics from a norm of s */
static bool norm_gradient(op_case *c, bool layer, int variant)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    int addend = op_case_option(&variant, 2);
    c->o.at.norm.offset = layer ? 0 : (float)op_case_option(&variant, 2);
    int64_t t, h;
    if (!norm_sizes(&t, &h, variant))
        return false;
    tensor *s, *w, *rstd, *mean = NULL;
    int slot = 4;
    op_case_in(c, 0, c->type, UNIT, t, h);
    s = op_case_in(c, 1, c->type, (fill){.kind = FILL_NORMAL, .a = 0.5, .b = 1}, t, h);
    w = op_case_in(c, 2, c->type, WEIGHT_LIKE, h, 0);
    rstd = op_case_in(c, 3, DTYPE_FP32, DERIVED, t, 0);
    if (layer)
        mean = op_case_in(c, slot++, DTYPE_FP32, DERIVED, t, 0);
    if (addend)
        op_case_in(c, slot, c->type, UNIT, t, h);
    op_case_update(c, 1, DTYPE_FP32, UNIT, h, 0, c->o.at.accumulate);
    if (layer)
        op_case_update(c, 2, DTYPE_FP32, UNIT, h, 0, c->o.at.accumulate);
    op *forward = op_case_prelude(c, layer ? OP_layernorm : OP_rmsnorm);
    forward->in[0] = s;
    forward->in[1] = w;
    forward->in[2] = layer ? op_case_tensor(c, "bias", c->type, UNIT, h, 0) : NULL;
    forward->out[0] = op_case_tensor(c, "y", c->type, NOTHING, t, h);
    forward->out[1] = rstd;
    forward->out[2] = mean;
    forward->at.norm.epsilon = c->o.at.norm.epsilon = 1e-5f;
    op_case_infer(c, 1);
    c->terms = (double)(t > h ? t : h);
    c->growth = 2;
    return true;
}

CASES(rmsnorm_grad)
{
    return norm_gradient(c, false, variant);
}

CASES(layernorm_grad)
{
    return norm_gradient(c, true, variant);
}
