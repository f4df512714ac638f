/* The gradients of routing pass the adjoint test: of a choice by softmax and by sigmoids, and of tokens that go to
 * experts and come back, under every recompute setting, alone, where ranks divide the tokens and where they divide the
 * experts; and every mutant fails it. The choice itself has no gradient, and stays the same within the steps of the
 * differences. */

#include "tests/oracle/adjoint.h"
#include "tests/test.h"

enum { TOKENS = 10, HIDDEN = 6 };

/* Ranks have tokens of their own, and share the weights. */
static tensor *input(adjoint_rank *a)
{
    return adjoint_input(a, "x", TOKENS, HIDDEN, place_shard(0));
}

static tensor *weight(adjoint_rank *a, const char *name, int64_t rows, int64_t columns)
{
    return recorder_weight(&a->r, adjoint_parameter(a, name, rows, columns, place_shared()));
}

static const op_routing ROUTES[] = {
    {.experts = HIDDEN, .active = 2, .scale = 1},
    {.experts = HIDDEN, .active = 3, .scale = 2.5f, .renormalise = 1},
    {.experts = HIDDEN, .active = 2, .scale = 1.5f, .sigmoid = 1},
    {.experts = HIDDEN, .active = 3, .scale = 2, .sigmoid = 1, .renormalise = 1},
    {.experts = HIDDEN, .active = 2, .scale = 1, .groups = 3, .groups_kept = 2, .group_best = 1},
};

static double bias_of(int64_t row, int64_t column, int64_t columns)
{
    return 0.1 * (double)((row + column) % columns);
}

/* The logits have another consumer, whose cotangent comes first. */
static void routing(adjoint_rank *a, const void *options)
{
    recorder *r = &a->r;
    tensor *logits = record_gelu(r, "gelu", input(a)), *weights, *experts;
    record_route(r, "route", &weights, &experts, logits, NULL, options);
    tensor *mixed = record_linear(r, "mix", weights, weight(a, "w", HIDDEN, (int)weights->shape[1]), NULL);
    a->output = record_add(r, "sum", mixed, record_gelu(r, "other", logits));
}

/* Of assignments to four of the experts, two passes of seven rows, through a function of each row: some go nowhere, and
 * the second pass has rows that no token has. */
static void experts_of_two_passes(adjoint_rank *a, const void *options)
{
    recorder *r = &a->r;
    op_routing as = *(const op_routing *)options;
    tensor *x = record_gelu(r, "gelu", input(a)), *weights, *experts, *sum = NULL;
    record_route(r, "route", &weights, &experts, record_linear(r, "logits", x, weight(a, "gate", HIDDEN, HIDDEN), NULL),
                 recorder_row(r, adjoint_table(a, "bias", 1, HIDDEN, bias_of), 0), &as);
    as.local = 4;
    for (int pass = 0; pass < 2; pass++) {
        as.skip = 7 * pass;
        record_row_ids to = record_assign(r, "assign", experts, 7, &as, 1);
        tensor *rows = record_gelu(r, "expert", record_dispatch(r, "dispatch", x, to.row_ids, to.offsets, 7, 0));
        const record_combine_in in = {rows, to.row_ids, pass ? NULL : weights, to.offsets, pass ? sum : x, 0};
        sum = record_combine(r, "combine", &in);
    }
    a->output = sum;
}

/* As above, between ranks that divide the experts: two passes of slots. */
static void experts_in_slots(adjoint_rank *a, const void *options)
{
    enum { EACH = 7, BEHIND = 3 };
    recorder *r = &a->r;
    op_routing as = *(const op_routing *)options;
    int ranks = r->grid.group[AXIS_EXPERT].ranks;
    int64_t first, local;
    tensor *x = record_gelu(r, "gelu", input(a)), *weights, *experts, *sum = x;
    record_route(r, "route", &weights, &experts, record_linear(r, "logits", x, weight(a, "gate", HIDDEN, HIDDEN), NULL),
                 recorder_row(r, adjoint_table(a, "bias", 1, HIDDEN, bias_of), 0), &as);
    recorder_part(&first, &local, &r->grid, AXIS_EXPERT, HIDDEN);
    as.local = (int32_t)local;
    for (int pass = 0; pass < 2; pass++) {
        record_combine_in out = {.weights = pass ? NULL : weights, .addend = sum, .slots = ranks}, in = {0};
        tensor *ids;
        int64_t rows = (pass ? BEHIND : EACH) * ranks;
        as.skip = pass ? EACH : 0;
        as.slots = ranks;
        record_slots(r, "slots", &(record_slots_out){&out.row_ids, &ids, &out.offsets}, experts, rows, &as);
        tensor *packed = record_dispatch(r, "pack", x, out.row_ids, out.offsets, rows, ranks);
        ids = record_all_to_all(r, "heads", AXIS_EXPERT, ids);
        tensor *came = record_all_to_all(r, "send", AXIS_EXPERT, packed);
        as.skip = as.slots = 0;
        record_row_ids to = record_assign(r, "assign", ids, rows, &as, 0);
        in.row_ids = to.row_ids;
        in.offsets = to.offsets;
        in.rows = record_gelu(r, "expert", record_dispatch(r, "dispatch", came, in.row_ids, in.offsets, rows, 0));
        out.rows = record_all_to_all(r, "return", AXIS_EXPERT, record_combine(r, "order", &in));
        sum = record_combine(r, "combine", &out);
    }
    a->output = sum;
}

/* ---- checks ---------------------------------------------------------------------------------------------------- */

static double worst_of(const adjoint_spec *s, char *why)
{
    adjoint *a = adjoint_open(s);
    double worst = adjoint_worst(why, a);
    adjoint_close(a);
    return worst;
}

static void passes(adjoint_spec s)
{
    char why[256];
    for (int how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how++) {
        s.recompute = (recompute)how;
        s.split = how == RECOMPUTE_SELECTIVE;
        double worst = worst_of(&s, why);
        if (!(worst <= 1))
            fail_msg("%d ranks, recompute %d: %.3g times what is allowed; %s", s.ranks, how, worst, why);
    }
}

TEST(gradients_of_slots_pass_the_adjoint_test)
{
    for (unsigned i = 0; i < sizeof ROUTES / sizeof *ROUTES; i++)
        for (int ranks = 1; ranks <= 4; ranks++)
            passes((adjoint_spec){.name = "experts in slots",
                                  .record = experts_in_slots,
                                  .options = &ROUTES[i],
                                  .ranks = ranks,
                                  .along = AXIS_EXPERT});
}

TEST(gradients_of_routing_pass_the_adjoint_test)
{
    for (unsigned i = 0; i < sizeof ROUTES / sizeof *ROUTES; i++)
        for (int ranks = 1; ranks <= 2; ranks++) {
            adjoint_spec s = {.options = &ROUTES[i], .ranks = ranks, .sequence = true};
            s.name = "a choice of experts";
            s.record = routing;
            passes(s);
            s.name = "experts";
            s.record = experts_of_two_passes;
            passes(s);
        }
}

/* ---- mutants --------------------------------------------------------------------------------------------------- */

static op *backward_op(op **ops, int forward, int count, op_kind kind)
{
    for (int i = forward; i < count; i++)
        if (ops[i]->kind == kind)
            return ops[i];
    return NULL;
}

static void choice_divided_by_its_sum(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_route_grad)->at.routing.renormalise ^= 1;
}

static void choice_of_another_kind(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_route_grad)->at.routing.sigmoid ^= 1;
}

static void drop_addend_of_choice(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_route_grad)->in[4] = NULL;
}

static void drop_addend_of_tokens(op **ops, int forward, int count)
{
    for (int i = forward; i < count; i++)
        if (ops[i]->kind == OP_combine)
            ops[i]->in[4] = NULL;
}

/* What goes back to a token stays where it was computed. */
static void rows_not_exchanged(op **ops, int forward, int count)
{
    for (int i = forward; i < count; i++)
        if (ops[i]->kind == OP_all_to_all && ops[i]->in[0]->type != DTYPE_INT32)
            ops[i]->kind = OP_copy;
}

static void rows_unweighted(op **ops, int forward, int count)
{
    for (int i = forward; i < count; i++)
        if (ops[i]->kind == OP_dispatch)
            ops[i]->in[3] = NULL;
}

TEST(every_mutant_fails_the_adjoint_test)
{
    const adjoint_spec mutants[] = {
        {.name = "a choice divided by its sum",
         .record = routing,
         .options = &ROUTES[0],
         .mutate = choice_divided_by_its_sum},
        {.name = "a choice not divided by its sum",
         .record = routing,
         .options = &ROUTES[3],
         .mutate = choice_divided_by_its_sum},
        {.name = "sigmoids for a softmax", .record = routing, .options = &ROUTES[1], .mutate = choice_of_another_kind},
        {.name = "a choice's addend dropped",
         .record = routing,
         .options = &ROUTES[1],
         .mutate = drop_addend_of_choice},
        {.name = "a token's addend dropped",
         .record = experts_of_two_passes,
         .options = &ROUTES[1],
         .mutate = drop_addend_of_tokens},
        {.name = "rows that stay",
         .record = experts_in_slots,
         .options = &ROUTES[1],
         .ranks = 2,
         .along = AXIS_EXPERT,
         .mutate = rows_not_exchanged},
        {.name = "rows without their weights",
         .record = experts_of_two_passes,
         .options = &ROUTES[1],
         .mutate = rows_unweighted},
    };
    for (unsigned i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        char why[256];
        adjoint_spec honest = mutants[i];
        honest.mutate = NULL;
        assert_true(worst_of(&honest, why) <= 1);
        if (worst_of(&mutants[i], why) <= 1)
            fail_msg("%s was not noticed", mutants[i].name);
    }
}

TEST_MAIN(NULL, NULL)
