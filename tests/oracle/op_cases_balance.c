/* The generators of ops that keep experts evenly loaded: see op_cases.h. */
#include "tests/oracle/op_cases.h"

#define CASES(name) bool op_cases_##name(op_case *c, int variant)

static const fill LOGITS = {.kind = FILL_NORMAL, .b = 3}, UNIT = {.kind = FILL_NORMAL, .b = 1},
                  LOAD = {.kind = FILL_UNIFORM, .a = 0, .b = 4};

/* tokens, experts, tokens of a group (0: there is one); the last two are divided among threads */
static const int SIZES[][3] = {{1, 1, 0},    {3, 8, 0},   {7, 17, 3},    {70, 48, 32},
                               {130, 64, 0}, {9, 257, 2}, {300, 60, 64}, {600, 30, 0}};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES };

/* Tokens in another order than they have within the micro-batch, so that neighbours are of different groups. */
static void give_positions(const op_case *c, void *bytes, const tensor *t)
{
    (void)c;
    for (int64_t i = 0, n = t->shape[0]; i < n; i++)
        ((int32_t *)bytes)[i] = (int32_t)((n + 3 - i) % n);
}

/* The first expert is everybody's choice, three in four are nobody's. */
static void give_choices(const op_case *c, void *bytes, const tensor *t)
{
    int32_t *chosen = bytes, experts = c->o.at.balance.experts;
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++)
            chosen[i * t->shape[1] + j] = j == 0 ? 0 : (int32_t)((i * 7 + j * 2 - 1) % experts) / 4 * 4 % experts;
}

static int groups_of(const int size[3])
{
    return size[2] ? (size[0] + size[2] - 1) / size[2] : 1;
}

static void token_positions(op_case *c, int slot, int *variant, int tokens)
{
    if (op_case_option(variant, 2))
        op_case_in(c, slot, DTYPE_INT32, (fill){.kind = FILL_GIVEN, .give = give_positions}, tokens, 0);
}

CASES(expert_load)
{
    c->one_type = true;
    bool with = op_case_option(&variant, 2);
    int active = op_case_option(&variant, 2) ? 3 : 1, placed = with;
    if (variant >= SIZE_COUNT)
        return false;
    const int *s = SIZES[variant];
    c->o.at.balance = (op_balance){.scale = 0.3f, .sequence = s[2], .groups = groups_of(s), .experts = s[1]};
    op_case_in(c, 0, DTYPE_INT32, (fill){.kind = FILL_GIVEN, .give = give_choices}, s[0], active);
    token_positions(c, 1, &placed, s[0]);
    op_case_infer(c, 1);
    return true;
}

CASES(expert_count)
{
    c->one_type = true;
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    int active = op_case_option(&variant, 2) ? 3 : 1;
    if (variant >= SIZE_COUNT)
        return false;
    const int *s = SIZES[variant];
    c->o.at.balance.experts = s[1]; /* of give_choices() */
    op_case_in(c, 0, DTYPE_INT32, (fill){.kind = FILL_GIVEN, .give = give_choices}, s[0], active);
    op_case_update(c, 0, DTYPE_INT32, (fill){.kind = FILL_INTEGERS, .b = 1000}, s[1], 0, c->o.at.accumulate);
    op_case_infer(c, 0);
    return true;
}

/* A step is skipped or not. */
static void give_control(const op_case *c, void *bytes, const tensor *t)
{
    (void)t;
    ((float *)bytes)[CONTROL_SKIP] = c->skips;
}

static const int EXPERTS[] = {1, 2, 3, 8, 60, 64, 257, 512};
enum { EXPERTS_COUNT = sizeof EXPERTS / sizeof *EXPERTS };

CASES(expert_share)
{
    c->one_type = true;
    if (variant >= EXPERTS_COUNT)
        return false;
    op_case_in(c, 0, DTYPE_INT32, (fill){.kind = FILL_INTEGERS, .a = 1, .b = 1000}, EXPERTS[variant], 0);
    op_case_infer(c, 1);
    return true;
}

CASES(expert_bias)
{
    c->one_type = true;
    c->skips = op_case_option(&variant, 2);
    int64_t most = op_case_option(&variant, 2) ? 3 : 100000; /* a few counts are equal to their mean, or none is */
    if (variant >= EXPERTS_COUNT)
        return false;
    c->o.at.balance.scale = 0.01f;
    op_case_in(c, 0, DTYPE_INT32, (fill){.kind = FILL_INTEGERS, .b = (double)most}, EXPERTS[variant], 0);
    op_case_in(c, 1, DTYPE_FP32, (fill){.kind = FILL_GIVEN, .give = give_control}, CONTROL_COUNT, 0);
    op_case_update(c, 0, DTYPE_FP32, UNIT, EXPERTS[variant], 0, true);
    op_case_infer(c, 0);
    return true;
}

static step_scalars scalars(void)
{
    return (step_scalars){.loss_scale = 8, .loss_tokens = 13, .batch_tokens = 16};
}

/* Logits at input `first`, the load behind them, places at `at_positions`. */
static bool routed(op_case *c, int first, int at_positions, int variant)
{
    c->o.at.balance.sigmoid = (uint8_t)op_case_option(&variant, 2);
    int placed = op_case_option(&variant, 2);
    if (variant >= SIZE_COUNT)
        return false;
    const int *s = SIZES[variant];
    c->o.at.balance.load = 0.7f;
    c->o.at.balance.z = 0.2f;
    c->o.at.balance.sequence = s[2];
    op_case_in(c, first, c->type, LOGITS, s[0], s[1]);
    op_case_in(c, first + 1, DTYPE_FP32, LOAD, groups_of(s), s[1]);
    token_positions(c, at_positions, &placed, s[0]);
    c->terms = s[1];
    c->growth = 4; /* exp of a difference; log sum exp; a[e] beside its mean */
    return true;
}

CASES(balance)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    if (!routed(c, 0, 2, variant))
        return false;
    op_case_update(c, 0, DTYPE_FP32, UNIT, 2, 0, c->o.at.accumulate);
    op_case_infer(c, 0);
    return true;
}

CASES(balance_through)
{
    c->alias = c->exact = true;
    if (!routed(c, 1, 4, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, c->o.in[1]->shape[0], 5);
    c->scalars = scalars();
    op_case_scalars(c, 3);
    op_case_infer(c, 1);
    return true;
}

CASES(balance_grad)
{
    bool added = op_case_option(&variant, 2);
    if (!routed(c, 0, 3, variant))
        return false;
    c->scalars = scalars();
    op_case_scalars(c, 2);
    c->floor = c->o.in[0]->shape[1] == 1 ? 4 : 0; /* one expert's load is its mean */
    if (added)
        op_case_in(c, 4, c->type, UNIT, c->o.in[0]->shape[0], c->o.in[0]->shape[1]);
    op_case_infer(c, 1);
    return true;
}
