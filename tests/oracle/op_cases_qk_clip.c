/* The generators of QK-clip's ops: see op_cases.h. */
#include "tests/oracle/op_cases.h"

#include <math.h>

#define CASES(name) bool op_cases_##name(op_case *c, int variant)

static const fill SCORES = {.kind = FILL_NORMAL, .b = 6};

CASES(max_logit)
{
    int64_t rows, columns;
    c->one_type = c->exact = true;
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    const bool vector = op_case_option(&variant, 2);
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_in(c, 0, DTYPE_FP32, SCORES, vector ? columns : rows, vector ? 0 : columns);
    op_case_update(c, 0, DTYPE_FP32, SCORES, vector ? 1 : rows, 0, c->o.at.accumulate);
    op_case_infer(c, 0);
    return true;
}

/* Among the scores of the second head one that is not finite, with which a step is skipped. */
static void give_scores(const op_case *c, void *bytes, const tensor *t)
{
    float *scores = bytes;
    const int64_t count = t->shape[0] * t->shape[1];
    for (int64_t i = 0; i < count; i++)
        scores[i] = (float)((i * 37 + 11) % 101 - 40) / 7;
    if (t->shape[1] > 1)
        scores[c->o.at.qk.layer * t->shape[1] + 1] = INFINITY;
}

/* ranks, layers, layer, heads, blocks, rows of a block, of these whole, rows behind: one of each; heads of queries and
 * keys with values behind; rotating elements behind others; queries that share keys; a layer without weights; rows for
 * threads */
static const int SHAPES[][8] = {{1, 1, 0, 1, 1, 1, 0, 0},     {2, 3, 1, 4, 8, 6, 0, 24}, {3, 3, 2, 5, 5, 48, 16, 0},
                                {2, 2, 0, 6, 6, 8, 8, 100},   {1, 2, 1, 3, 0, 4, 0, 7},  {40, 1, 0, 2, 4, 5, 2, 3},
                                {8, 2, 1, 64, 64, 192, 64, 0}};

CASES(qk_factors)
{
    c->one_type = true;
    if (variant >= (int)(sizeof SHAPES / sizeof *SHAPES))
        return false;
    const int *s = SHAPES[variant];
    c->o.at.qk = (op_qk_clip){
        .heads = s[3], .blocks = s[4], .size = s[5], .whole = s[6], .threshold = 2.5f, .layer = s[2], .layers = s[1]};
    op_case_in(c, 0, DTYPE_FP32, (fill){.kind = FILL_GIVEN, .give = give_scores}, s[0] * s[1], s[3]);
    op_case_update(c, 0, DTYPE_FP32, SCORES, s[4] * s[5] + s[7], 0, false);
    op_case_infer(c, 0);
    c->growth = 2;
    return true;
}
