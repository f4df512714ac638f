/* What keeps experts evenly loaded, in float64: the gradient that logits get is that of the losses that are summed,
 * whatever else reads the logits, alone and over groups of ranks; counts are summed over the ranks that divide a
 * sample's tokens; and the oracle agrees with values made by hand. */
#include <math.h>

#include "tests/oracle/adjoint.h"
#include "tests/oracle/reference_program.h"
#include "tests/test.h"

enum { SEQUENCE = 4, TOKENS = 12, HIDDEN = 5, EXPERTS = 6, GROUPS = TOKENS / SEQUENCE, RANKS = 3 };

static const step_scalars SCALARS = {.loss_scale = 4, .loss_tokens = 8, .batch_tokens = 16};

typedef struct balance_options {
    op_balance as;
    bool placed;         /* tokens in another order than within the micro-batch */
    bool before, after;  /* what else reads the logits is recorded before, or behind, what brings their gradient */
    bool divided;        /* over the group: tokens are; else all ranks have them all */
    double factors[2];   /* of the sums, in all */
    tensor *load[RANKS]; /* of each rank, where the case counts it */
} balance_options;

static double load_of(int64_t group, int64_t expert, int64_t columns)
{
    return 0.25 * (double)((group * 5 + expert * expert + columns) % 7);
}

static int32_t place_of(int64_t i)
{
    return (int32_t)((i * 5 + 2) % TOKENS);
}

static int32_t choice_of(int64_t i)
{
    return (int32_t)(i % 5 == 0 ? 0 : i % EXPERTS);
}

static tensor *weight(adjoint_rank *a, const char *name, int64_t rows, int64_t columns, bool divided)
{
    placement place = divided ? place_shared() : place_replicate();
    return recorder_weight(&a->r, adjoint_parameter(a, name, rows, columns, place));
}

/* The sums of the case, which each rank has a part of or, of tokens that all have, all have. */
static tensor *new_sums(adjoint_rank *a, const tensor *logits)
{
    tensor *sums = pool_alloc(&a->pool, sizeof *sums);
    tensor_describe(sums, "sums", CLASS_INPUT, DTYPE_FP32, 1, (int64_t[]){2});
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (logits->place.along[i].kind == PLACE_SHARD)
            sums->place.along[i] = place_partial();
    return sums;
}

/* Reads the logits beside their balance. */
static tensor *read_logits(adjoint_rank *a, tensor *logits, const char *name, bool divided)
{
    return record_linear(&a->r, name, record_gelu(&a->r, name, logits), weight(a, name, HIDDEN, EXPERTS, divided),
                         NULL);
}

static void balanced(adjoint_rank *a, const void *options)
{
    const balance_options *b = options;
    recorder *r = &a->r;
    int64_t first = 0, count = TOKENS;
    if (b->divided)
        recorder_part(&first, &count, &r->grid, a->along, TOKENS);
    tensor *x = adjoint_input(a, "x", count, HIDDEN, b->divided ? place_shard(0) : place_replicate());
    tensor *logits =
        record_linear(r, "router", record_gelu(r, "gelu", x), weight(a, "router", EXPERTS, HIDDEN, b->divided), NULL);
    tensor *load = adjoint_table(a, "load", b->as.groups, EXPERTS, load_of), *scalars = adjoint_scalars(a, &SCALARS);
    tensor *token_positions = b->placed ? adjoint_integers(a, "places", count, place_of) : NULL;
    a->beside = new_sums(a, logits);
    a->beside_factors = b->factors;
    const record_balance_in in = {logits, load, token_positions};
    record_balance(r, "balance", a->beside, &in, &b->as);
    tensor *early = b->before ? read_logits(a, logits, "early", b->divided) : NULL;
    tensor *y = record_gelu(r, "used", record_balance_through(r, "through", x, &in, scalars, &b->as));
    if (early)
        y = record_add(r, "sum", y, early);
    a->output = b->after ? record_add(r, "late sum", y, read_logits(a, logits, "late", b->divided)) : y;
}

static balance_options options_of(bool sigmoid, bool groups, int readers, bool divided)
{
    balance_options b = {.as = {.load = 0.75f,
                                .z = 0.125f,
                                .sequence = groups ? SEQUENCE : 0,
                                .groups = groups ? GROUPS : 1,
                                .experts = EXPERTS,
                                .sigmoid = sigmoid},
                         .placed = groups && readers > 0,
                         .before = readers & 1,
                         .after = readers & 2,
                         .divided = divided};
    double factor = (double)SCALARS.loss_scale / (double)SCALARS.batch_tokens;
    b.factors[0] = factor * (double)b.as.load;
    b.factors[1] = factor * (double)b.as.z;
    return b;
}

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
            fail_msg("%s, %d ranks, recompute %d: %.3g times what is allowed; %s", s.name, s.ranks, how, worst, why);
    }
}

TEST(logits_get_the_gradient_of_the_losses)
{
    for (int i = 0; i < 16; i++) {
        const balance_options b = options_of(i & 1, i & 2, i / 4, false);
        passes((adjoint_spec){.name = b.as.sigmoid ? "sigmoids" : "softmax", .record = balanced, .options = &b});
    }
}

/* Without groups, whose tokens a rank alone cannot tell without places. */
TEST(ranks_that_divide_tokens_share_the_sums)
{
    for (axis along = 0; along < AXIS_COUNT; along++)
        for (int i = 0; i < 4 && axis_rows[along].layers; i++) {
            const balance_options b = options_of(i & 1, false, 3, i & 2);
            passes((adjoint_spec){
                .name = axis_name(along), .record = balanced, .options = &b, .ranks = RANKS, .along = along});
        }
}

/* ---- mutants ----------------------------------------------------------------------------------------------------- */

static op *gradient_of(op **ops, int forward, int count)
{
    for (int i = forward; i < count; i++)
        if (ops[i]->kind == OP_balance_grad)
            return ops[i];
    fail_msg("no gradient of the balance");
    return NULL;
}

static void forgets_imbalance(op **ops, int forward, int count)
{
    gradient_of(ops, forward, count)->at.balance.load = 0;
}

static void forgets_large_logits(op **ops, int forward, int count)
{
    gradient_of(ops, forward, count)->at.balance.z = 0;
}

static void takes_softmax_for_sigmoids(op **ops, int forward, int count)
{
    gradient_of(ops, forward, count)->at.balance.sigmoid = 0;
}

static void forgets_what_flows_already(op **ops, int forward, int count)
{
    gradient_of(ops, forward, count)->in[4] = NULL;
}

static void forgets_the_order_of_tokens(op **ops, int forward, int count)
{
    gradient_of(ops, forward, count)->in[3] = NULL;
}

TEST(every_mutant_is_noticed)
{
    static void (*const mutants[])(op * *ops, int forward,
                                   int count) = {forgets_imbalance, forgets_large_logits, takes_softmax_for_sigmoids,
                                                 forgets_what_flows_already, forgets_the_order_of_tokens};
    const balance_options b = options_of(true, true, 3, false);
    for (unsigned i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        char why[256];
        const adjoint_spec s = {.name = "mutant", .record = balanced, .options = &b, .mutate = mutants[i]};
        if (worst_of(&s, why) <= 1)
            fail_msg("mutant %u was not noticed", i);
    }
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

/* Choices of this rank's tokens, the same on every rank. */
static tensor *choices(adjoint_rank *a, int64_t tokens)
{
    tensor *t = adjoint_integers(a, "choices", tokens, choice_of);
    t->dims = 2;
    t->shape[1] = 1;
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (a->r.grid.group[a->along].slots >> i & 1)
            t->place.along[i] = place_shard(0);
    return t;
}

static void counted(adjoint_rank *a, const void *options)
{
    balance_options *b = *(balance_options *const *)options;
    recorder *r = &a->r;
    b->load[r->grid.group[a->along].rank] = record_expert_load(r, "load", choices(a, TOKENS), NULL, &b->as, 0.1);
    a->output = record_gelu(r, "gelu", adjoint_input(a, "x", TOKENS, HIDDEN, place_replicate()));
}

/* Twelve tokens choose 0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 0, 5. */
static void expect_counts(axis along, bool summed)
{
    static const double counts[EXPERTS] = {4, 2, 2, 2, 1, 1};
    balance_options b = {.as = {.groups = 1, .experts = EXPERTS}}, *at = &b;
    const adjoint_spec s = {.name = "counts", .record = counted, .options = &at, .ranks = RANKS, .along = along};
    double gradients[RANKS * TOKENS * HIDDEN], load[EXPERTS];
    adjoint *a = adjoint_open(&s);
    adjoint_gradients(gradients, a, RANKS * TOKENS * HIDDEN);
    for (int rank = 0; rank < RANKS; rank++) {
        reference_program_get(load, adjoint_rank_of(a, rank)->program, b.load[rank]);
        for (int e = 0; e < EXPERTS; e++)
            assert_true(fabs(load[e] - (double)0.1f * counts[e] * (summed ? RANKS : 1)) < 1e-12);
    }
    adjoint_close(a);
}

TEST(counts_are_summed_over_ranks_that_divide_samples)
{
    expect_counts(AXIS_TENSOR, true);
    expect_counts(AXIS_CONTEXT, true);
    expect_counts(AXIS_GRADIENT, false); /* of data ranks each has samples of its own */
}

/* ---- known values ------------------------------------------------------------------------------------------------ */

/* Operands of one op. */
typedef struct memory {
    double logits[2], load[6], out[2];
    int32_t chosen[8], token_positions[4];
    step_scalars scalars;
} memory;

static tensor operand(size_t at, dtype type, int64_t rows, int64_t columns)
{
    tensor t;
    tensor_describe(&t, "operand", CLASS_TEMPORARY, type, columns ? 2 : 1, (int64_t[]){rows, columns});
    t.address = (int64_t)at;
    return t;
}

/* Tokens 2, 3, 0, 1 of two samples of two. */
TEST(a_load_counts_the_choices_of_each_sample)
{
    static const double want[] = {0.5, 0.5, 1, 1, 0.5, 0.5};
    memory m = {.chosen = {0, 2, 0, 1, 2, 1, 2, 0}, .token_positions = {2, 3, 0, 1}};
    tensor chosen = operand(offsetof(memory, chosen), DTYPE_INT32, 4, 2),
           token_positions = operand(offsetof(memory, token_positions), DTYPE_INT32, 4, 0),
           load = operand(offsetof(memory, load), DTYPE_FP64, 2, 3);
    const op o = {
        .in = {&chosen, &token_positions}, .out = {&load}, .at = {.balance.scale = 0.5f, .balance.sequence = 2}};
    reference_expert_load(&o, &(run_context){.arena = (char *)&m});
    assert_memory_equal(m.load, want, sizeof want);
}

/* Logits 0 and ln 3 of two experts: a softmax of 1/4 and 3/4 and a log sum exp of ln 4; sigmoids of 1/2 and 3/4, which
 * divided by their sum are 2/5 and 3/5. Loads 2 and 1. */
TEST(losses_of_a_router_follow_their_papers)
{
    static const double want[2][3] = {{0.25 * 2 + 0.75, 0.25 * (2 - 1.25), 0.75 * (1 - 1.25)},
                                      {0.4 * 2 + 0.6, 0.2 * (2 - 1.4), 0.15 * (1 - 1.4)}};
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        memory m = {.logits = {0, log(3)}, .load = {2, 1}, .scalars = {.loss_scale = 8, .batch_tokens = 2}};
        tensor logits = operand(offsetof(memory, logits), DTYPE_FP64, 1, 2),
               load = operand(offsetof(memory, load), DTYPE_FP64, 1, 2),
               scalars = operand(offsetof(memory, scalars), DTYPE_UINT8, sizeof(step_scalars), 0),
               sums = operand(offsetof(memory, out), DTYPE_FP64, 2, 0),
               dlogits = operand(offsetof(memory, out), DTYPE_FP64, 1, 2);
        const op_attributes at = {.balance = {.load = 0.5f, .z = 0.25f, .sigmoid = (uint8_t)sigmoid}};
        const run_context r = {.arena = (char *)&m};
        reference_balance(&(op){.in = {&logits, &load}, .out = {&sums}, .at = at}, &r);
        assert_true(fabs(m.out[0] - want[sigmoid][0]) < 1e-14 && fabs(m.out[1] - log(4) * log(4)) < 1e-14);
        reference_balance_grad(&(op){.in = {&logits, &load, &scalars}, .out = {&dlogits}, .at = at}, &r);
        for (int e = 0; e < 2; e++) {
            double large = 0.25 * 2 * log(4) * (e == 0 ? 0.25 : 0.75);
            assert_true(fabs(m.out[e] - 4 * (0.5 * want[sigmoid][1 + e] + large)) < 1e-14);
        }
    }
}

TEST_MAIN(NULL, NULL)
