/* The generators of experts' products: see op_cases.h. */
#include <math.h>
#include <stdlib.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/oracle/op_cases.h"

#define CASES(name) bool op_cases_##name(op_case *c, int variant)
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static const fill UNIT = {.kind = FILL_NORMAL, .b = 1}, SMALL = {.kind = FILL_NORMAL, .b = 0.1};

/* Rows, experts, n and c: more experts than rows, one, odd sizes, more rows of an expert than a block has, and along
 * each side more than a step. */
static const int64_t SIZES[][4] = {{1, 1, 1, 1},      {1, 3, 24, 40},    {7, 9, 5, 3},      {64, 4, 32, 64},
                                   {33, 2, 17, 63},   {65, 5, 96, 80},   {150, 3, 67, 129}, {260, 2, 48, 272},
                                   {530, 3, 72, 160}, {40, 2, 17, 1100}, {35, 2, 1056, 24}, {1100, 2, 9, 17}};

/* How the rows are dealt. */
enum { UNEVEN, TO_ONE, SOME_EMPTY, TO_NOBODY, DEALS };

static int64_t offset(int deal, int64_t rows, int64_t experts, int64_t e)
{
    switch (deal) {
    case UNEVEN:
        return rows * e * e / (experts * experts);
    case TO_ONE:
        return e > experts / 2 ? rows : 0;
    case SOME_EMPTY: /* every other expert, and of the rows every third is nobody's */
        return rows * 2 / 3 * (e - e % 2) / experts;
    default:
        return 0;
    }
}

static void give_offsets(const op_case *c, void *bytes, const tensor *t)
{
    int64_t experts = t->shape[0] - 1, rows = c->o.in[0]->shape[0];
    for (int64_t e = 0; e <= experts; e++)
        ((int32_t *)bytes)[e] = (int32_t)offset(c->deal, rows, experts, e);
}

/* Normal values, and NaN in the rows that no expert has. */
static void give_rows(const op_case *c, void *bytes, const tensor *t)
{
    const tensor *offsets = c->o.kind == OP_grouped_bias_grad ? c->o.in[1] : c->o.in[2];
    int64_t rows = t->shape[0], columns = t->shape[1], experts = offsets->shape[0] - 1;
    int64_t used = offset(c->deal, rows, experts, experts);
    AUTO_FREE double *values = must_calloc((unsigned long)(rows * columns), sizeof *values);
    test_random random = {(uint64_t)(t - c->t) + 7};
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = i < used * columns ? test_normal(&random) : NAN;
    dtype_convert(bytes, (dtype)t->type, values, DTYPE_FP64, rows * columns);
}

static const fill ROWS = {.kind = FILL_GIVEN, .give = give_rows}, OFFSETS = {.kind = FILL_GIVEN, .give = give_offsets};

static const int64_t *sizes(op_case *c, int variant)
{
    c->deal = op_case_option(&variant, DEALS);
    return variant < COUNT(SIZES) ? SIZES[variant] : NULL;
}

CASES(grouped_linear)
{
    bool bias = op_case_option(&variant, 2);
    const int64_t *of = sizes(c, variant);
    if (!of)
        return false;
    op_case_in(c, 0, c->type, ROWS, of[0], of[3]);
    op_case_in(c, 1, c->type, SMALL, of[1] * of[2], of[3]);
    op_case_in(c, 2, DTYPE_INT32, OFFSETS, of[1] + 1, 0);
    if (bias)
        op_case_in(c, 3, c->type, UNIT, of[1] * of[2], 0);
    op_case_infer(c, 1);
    c->terms = (double)of[3];
    return true;
}

CASES(grouped_linear_grad_input)
{
    const int64_t *of = sizes(c, variant);
    if (!of)
        return false;
    op_case_in(c, 0, c->type, ROWS, of[0], of[2]);
    op_case_in(c, 1, c->type, SMALL, of[1] * of[2], of[3]);
    op_case_in(c, 2, DTYPE_INT32, OFFSETS, of[1] + 1, 0);
    op_case_infer(c, 1);
    c->terms = (double)of[2];
    return true;
}

CASES(grouped_linear_grad_weight)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    const int64_t *of = sizes(c, variant);
    if (!of)
        return false;
    op_case_in(c, 0, c->type, ROWS, of[0], of[2]);
    op_case_in(c, 1, c->type, ROWS, of[0], of[3]);
    op_case_in(c, 2, DTYPE_INT32, OFFSETS, of[1] + 1, 0);
    op_case_update(c, 0, DTYPE_FP32, UNIT, of[1] * of[2], of[3], c->o.at.accumulate);
    op_case_infer(c, 0);
    c->terms = (double)of[0];
    return true;
}

CASES(grouped_bias_grad)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    const int64_t *of = sizes(c, variant);
    if (!of)
        return false;
    op_case_in(c, 0, c->type, ROWS, of[0], of[2]);
    op_case_in(c, 1, DTYPE_INT32, OFFSETS, of[1] + 1, 0);
    op_case_update(c, 0, DTYPE_FP32, UNIT, of[1] * of[2], 0, c->o.at.accumulate);
    op_case_infer(c, 0);
    c->terms = (double)of[0];
    return true;
}
