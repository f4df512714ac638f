/* The generators of routing: see op_cases.h. */
#include <string.h>

#include "tests/oracle/op_cases.h"

#define CASES(name) bool op_cases_##name(op_case *c, int variant)
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static const fill UNIT = {.kind = FILL_NORMAL, .b = 1}, WEIGHTS = {.kind = FILL_UNIFORM, .b = 2},
                  DERIVED = {.kind = FILL_DERIVED}, NOTHING = {.kind = FILL_NOTHING};

/* ---- choice ---------------------------------------------------------------------------------------------------- */

/* tokens, experts, active, groups, groups kept, best of a group */
static const int CHOICES[][6] = {
    {1, 1, 1, 0, 0, 0},    {3, 4, 2, 0, 0, 0},    {7, 8, 8, 0, 0, 0},     {33, 17, 3, 0, 0, 0}, {19, 64, 6, 8, 4, 2},
    {5, 512, 32, 0, 0, 0}, {65, 256, 8, 8, 4, 2}, {17, 100, 10, 0, 0, 0}, {9, 160, 6, 8, 3, 1}, {40, 128, 8, 0, 0, 0},
    {6, 96, 12, 3, 2, 32}, {11, 36, 9, 12, 3, 3}, {131, 128, 8, 4, 2, 4}};

/* Every shape with a softmax and with sigmoids, and each with weights divided by their sum or not. */
static bool choice(op_case *c, int64_t *tokens, int variant)
{
    op_routing *as = &c->o.at.routing;
    as->sigmoid = (uint8_t)op_case_option(&variant, 2);
    as->renormalise = (uint8_t)op_case_option(&variant, 2);
    if (variant >= COUNT(CHOICES))
        return false;
    const int *s = CHOICES[variant];
    *tokens = s[0];
    as->experts = s[1];
    as->active = s[2];
    as->groups = s[3];
    as->groups_kept = s[4];
    as->group_best = s[5];
    as->scale = variant % 2 ? 2.5f : 1;
    c->terms = s[1];
    return true;
}

CASES(route)
{
    int bias = op_case_option(&variant, 2);
    int64_t tokens;
    if (!choice(c, &tokens, variant))
        return false;
    op_case_in(c, 0, c->type, (fill){.kind = FILL_NORMAL, .b = 2}, tokens, c->o.at.routing.experts);
    if (bias)
        op_case_in(c, 1, DTYPE_FP32, (fill){.kind = FILL_NORMAL, .b = 0.2}, c->o.at.routing.experts, 0);
    op_case_infer(c, 3);
    return true;
}

CASES(route_grad)
{
    int addend = op_case_option(&variant, 2);
    int64_t tokens;
    if (!choice(c, &tokens, variant))
        return false;
    int64_t experts = c->o.at.routing.experts, active = c->o.at.routing.active;
    op_case_in(c, 0, DTYPE_FP32, UNIT, tokens, active);
    op_case_in(c, 1, c->type, (fill){.kind = FILL_NORMAL, .b = 2}, tokens, experts);
    op_case_in(c, 2, DTYPE_INT32, DERIVED, tokens, active);
    op_case_in(c, 3, DTYPE_FP32, DERIVED, tokens, active);
    if (addend)
        op_case_in(c, 4, c->type, UNIT, tokens, experts);
    op *forward = op_case_prelude(c, OP_route);
    forward->at = c->o.at;
    forward->in[0] = c->o.in[1];
    forward->out[0] = c->o.in[3];
    forward->out[1] = c->o.in[2];
    op_case_infer(c, 1);
    c->growth = 4;                         /* dweights less their mean */
    c->floor = active == experts ? 16 : 0; /* the one weight of one expert is 1, whatever its logit is */
    return true;
}

/* ---- places ---------------------------------------------------------------------------------------------------- */

/* tokens, active, experts, this rank's first one and their number, rows of a pass, rows before it, columns */
static const int PASSES[][8] = {
    {1, 1, 1, 0, 1, 1, 0, 1},         {5, 2, 4, 0, 4, 10, 0, 64},          {33, 4, 16, 4, 8, 40, 0, 17},
    {33, 4, 16, 4, 8, 20, 20, 31},    {19, 8, 64, 0, 64, 200, 0, 130},     {17, 6, 8, 0, 8, 51, 51, 48},
    {40, 8, 128, 32, 64, 700, 0, 72}, {7, 2, 512, 300, 212, 4, 0, 33},     {17, 2, 8, 6, 2, 3, 30, 16},
    {23, 32, 40, 0, 40, 736, 0, 24},  {130, 3, 12, 3, 5, 100, 0, 257},     {29, 4, 512, 0, 512, 64, 64, 1056},
    {5000, 2, 64, 0, 64, 9000, 0, 8}, {9000, 3, 96, 24, 48, 6000, 6000, 3}};

/* Of each token other ids, by steps of one so that no two are the same; squares leave some experts without a token, and
 * give others many. */
static void give_experts(const op_case *c, void *bytes, const tensor *t)
{
    int64_t tokens = t->shape[0], active = t->shape[1], experts = c->o.at.routing.experts;
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t j = 0; j < active; j++) {
            int64_t step = i % 2 ? active - 1 - j : j;
            ((int32_t *)bytes)[i * active + j] = (int32_t)((i * i + step) % experts);
        }
}

/* Ids from 0 on, the low ones most often. */
static void give_any_experts(const op_case *c, void *bytes, const tensor *t)
{
    (void)c;
    for (int64_t i = 0; i < tensor_elements(t); i++)
        ((int32_t *)bytes)[i] = (int32_t)((i * i) % (1 + i % 97));
}

static const fill EXPERTS = {.kind = FILL_GIVEN, .give = give_experts};

typedef struct pass {
    int64_t tokens, active, columns;
    tensor *experts;
} pass;

static bool pass_shape(pass *p, op_case *c, int variant)
{
    if (variant >= COUNT(PASSES))
        return false;
    const int *s = PASSES[variant];
    c->o.at.routing =
        (op_routing){.active = s[1], .experts = s[2], .first = s[3], .local = s[4], .rows = s[5], .skip = s[6]};
    *p = (pass){.tokens = s[0], .active = s[1], .columns = s[7]};
    return true;
}

CASES(assign)
{
    pass p;
    if (!pass_shape(&p, c, variant))
        return false;
    op_case_in(c, 0, DTYPE_INT32, EXPERTS, p.tokens, p.active);
    op_case_infer(c, 3);
    c->one_type = true;
    return true;
}

/* So many ranks divide the experts, each with a slot; skipped are some rows, or as many as a slot has. */
static void take_slots(op_case *c, int ranks)
{
    op_routing *as = &c->o.at.routing;
    as->slots = ranks < as->experts ? ranks : as->experts;
    int64_t each = c->o.at.routing.rows / as->slots + 1;
    as->skip = as->skip > each ? each : as->skip / 2;
    c->o.at.routing.rows = each * as->slots;
}

CASES(slots)
{
    static const int ranks[] = {1, 3, 16};
    int slots = ranks[op_case_option(&variant, COUNT(ranks))];
    pass p;
    if (!pass_shape(&p, c, variant))
        return false;
    take_slots(c, slots);
    op_case_in(c, 0, DTYPE_INT32, EXPERTS, p.tokens, p.active);
    op_case_infer(c, 7);
    c->one_type = true;
    return true;
}

/* Room for all rows, for some, for none; on each bucket; of one rank, or of each of five. */
CASES(overflow)
{
    pass p;
    int slots = 5 * op_case_option(&variant, 2);
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    int bucket = op_case_option(&variant, CAPACITY_BUCKETS);
    if (!pass_shape(&p, c, variant))
        return false;
    const op_routing as = c->o.at.routing; /* give_experts() reads it, and of a capacity nothing */
    int64_t rows = c->o.at.routing.rows;
    op_case_in(c, 0, DTYPE_INT32, (fill){.kind = FILL_GIVEN, .give = give_any_experts}, p.tokens, p.active);
    c->o.at.capacity = (op_capacity){.room = {rows / 3, rows},
                                     .bucket = bucket,
                                     .first = as.first,
                                     .local = as.local,
                                     .slots = slots,
                                     .experts = 97};
    op_case_update(c, 0, DTYPE_FP32, (fill){.kind = FILL_INTEGERS, .b = 1000}, CAPACITY_BUCKETS, 0, c->o.at.accumulate);
    op_case_infer(c, 0);
    c->exact = c->one_type = true;
    return true;
}

/* places as input `slot`, and offsets as the next one where they are asked for, of an assignment before. */
static void assigned(op_case *c, const pass *p, int slot, bool with_offsets)
{
    int slots = c->o.at.routing.slots;
    op *before = op_case_prelude(c, slots ? OP_slots : OP_assign);
    before->at = c->o.at;
    before->in[0] = op_case_tensor(c, "experts", DTYPE_INT32, EXPERTS, p->tokens, p->active);
    before->out[0] = op_case_in(c, slot, DTYPE_INT32, DERIVED, p->tokens, p->active);
    int64_t ends = (slots ? slots : c->o.at.routing.local) + 1;
    before->out[slots ? 2 : 1] = with_offsets ? op_case_in(c, slot + 1, DTYPE_INT32, DERIVED, ends, 0)
                                              : op_case_tensor(c, "offsets", DTYPE_INT32, NOTHING, ends, 0);
    if (slots)
        before->out[1] = op_case_tensor(c, "ids", DTYPE_INT32, NOTHING, c->o.at.routing.rows, 1);
}

CASES(dispatch)
{
    int weights = op_case_option(&variant, 2), slots = op_case_option(&variant, 2);
    pass p;
    if (!pass_shape(&p, c, variant))
        return false;
    if (slots)
        take_slots(c, 3);
    op_case_in(c, 0, c->type, UNIT, p.tokens, p.columns);
    assigned(c, &p, 1, true);
    if (weights)
        op_case_in(c, 3, DTYPE_FP32, WEIGHTS, p.tokens, p.active);
    op_case_infer(c, 1);
    c->exact = !weights;
    return true;
}

CASES(combine)
{
    int weights = op_case_option(&variant, 2), addend = op_case_option(&variant, 2);
    pass p;
    if (!pass_shape(&p, c, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, c->o.at.routing.rows, p.columns);
    assigned(c, &p, 1, true);
    if (weights)
        op_case_in(c, 3, DTYPE_FP32, WEIGHTS, p.tokens, p.active);
    if (addend)
        op_case_in(c, 4, c->type, UNIT, p.tokens, p.columns);
    op_case_infer(c, 1);
    c->terms = (double)p.active;
    return true;
}

CASES(combine_dots)
{
    pass p;
    if (!pass_shape(&p, c, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, p.tokens, p.columns);
    op_case_in(c, 1, c->type, UNIT, c->o.at.routing.rows, p.columns);
    assigned(c, &p, 2, false);
    op_case_infer(c, 1);
    c->terms = (double)p.columns;
    return true;
}
