/* The host's routing beyond what the comparison with float64 covers: equal scores and logits that are no number, with
 * every instruction set, and the same bits from any number of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/workbench.h"
#include "tests/test.h"

enum { EXPERTS = 40, ACTIVE = 4 };

/* The choice of one token. */
static void chosen(float *weights, int32_t *experts, const float *logits, const isa *set, dtype type, bool sigmoid)
{
    workbench b = workbench_open(1, set);
    tensor x = workbench_tensor(&b, type, 1, EXPERTS), w = workbench_tensor(&b, DTYPE_FP32, 1, ACTIVE),
           e = workbench_tensor(&b, DTYPE_INT32, 1, ACTIVE);
    for (int i = 0; i < EXPERTS; i++)
        workbench_put(&b, &x, 0, i, (double)logits[i]);
    op o = {.kind = OP_route, .in = {&x}, .out = {&w, &e}};
    o.at.routing =
        (op_routing){.experts = EXPERTS, .active = ACTIVE, .scale = 1, .sigmoid = sigmoid, .renormalise = true};
    workbench_run(&b, &o, true);
    memcpy(weights, tensor_at(&w, b.arena), ACTIVE * sizeof *weights);
    memcpy(experts, tensor_at(&e, b.arena), ACTIVE * sizeof *experts);
    free(b.arena);
}

static void expect_choice(const float *logits, const int32_t *want, bool numbers, bool softmax_too)
{
    for (int set = 0; set < workbench_sets_here(); set++)
        for (dtype type = DTYPE_FP32; type <= DTYPE_FP16; type++)
            for (int sigmoid = !softmax_too; sigmoid < 2; sigmoid++) {
                float weights[ACTIVE];
                int32_t experts[ACTIVE];
                chosen(weights, experts, logits, workbench_sets[set], type, sigmoid);
                assert_memory_equal(experts, want, sizeof experts);
                for (int j = 0; j < ACTIVE; j++)
                    assert_true(numbers ? weights[j] > 0 && weights[j] < 1 : isnan(weights[j]));
            }
}

TEST(of_equal_scores_the_lower_id_is_chosen)
{
    float logits[EXPERTS];
    for (int i = 0; i < EXPERTS; i++)
        logits[i] = 0.5f;
    logits[36] = logits[37] = 2;
    expect_choice(logits, (int32_t[]){36, 37, 0, 1}, true, true);
}

/* It must not vanish because it compares with nothing; a softmax has no other scores then. */
TEST(a_logit_that_is_no_number_is_chosen_and_shows)
{
    float logits[EXPERTS];
    for (int i = 0; i < EXPERTS; i++)
        logits[i] = 0.25f;
    logits[39] = logits[20] = NAN;
    expect_choice(logits, (int32_t[]){20, 39, 0, 1}, false, false);
    for (int i = 0; i < EXPERTS; i++)
        logits[i] = NAN;
    expect_choice(logits, (int32_t[]){0, 1, 2, 3}, false, true);
}

/* ---- logits ---------------------------------------------------------------------------------------------------- */

enum { NEAR_TOKENS = 400, NEAR_HIDDEN = 96 };

/* The number of tokens whose experts are not those of the largest sums in float64, of the same operands in 16 bits;
 * `kind`: of the router's product. */
static int chosen_otherwise(op_kind kind, const isa *set, dtype type)
{
    workbench b = workbench_open(2, set);
    tensor x = workbench_random(&b, type, NEAR_TOKENS, NEAR_HIDDEN, 1),
           w = workbench_random(&b, type, EXPERTS, NEAR_HIDDEN, 1),
           logits = workbench_tensor(&b, kind == OP_linear_wide ? DTYPE_FP32 : type, NEAR_TOKENS, EXPERTS),
           weights = workbench_tensor(&b, DTYPE_FP32, NEAR_TOKENS, ACTIVE),
           experts = workbench_tensor(&b, DTYPE_INT32, NEAR_TOKENS, ACTIVE);
    op product = {.kind = (uint8_t)kind, .in = {&x, &w}, .out = {&logits}};
    op route = {.kind = OP_route, .in = {&logits}, .out = {&weights, &experts}};
    route.at.routing = (op_routing){.experts = EXPERTS, .active = ACTIVE, .scale = 1, .sigmoid = true};
    workbench_run(&b, &product, set == NULL);
    workbench_run(&b, &route, set == NULL);
    int others = 0;
    for (int64_t t = 0; t < NEAR_TOKENS; t++) {
        double sum[EXPERTS] = {0};
        for (int e = 0; e < EXPERTS; e++)
            for (int64_t k = 0; k < NEAR_HIDDEN; k++)
                sum[e] += workbench_get(&b, &x, t, k) * workbench_get(&b, &w, e, k);
        int32_t *ids = (int32_t *)tensor_at(&experts, b.arena) + t * ACTIVE;
        bool same = true;
        for (int j = 0; j < ACTIVE; j++) {
            int best = 0;
            for (int e = 1; e < EXPERTS; e++)
                best = sum[e] > sum[best] ? e : best;
            same &= ids[j] == best;
            sum[best] = -INFINITY;
        }
        others += !same;
    }
    free(b.arena);
    return others;
}

TEST(logits_nearer_than_a_step_of_16_bits_are_told_apart)
{
    for (dtype type = DTYPE_BF16; type <= DTYPE_FP16; type++)
        for (int set = -1; set < workbench_sets_here(); set++) { /* -1: with oneDNN */
            const isa *whose = set < 0 ? NULL : workbench_sets[set];
            assert_int_equal(chosen_otherwise(OP_linear_wide, whose, type), 0);
            assert_true(chosen_otherwise(OP_linear, whose, type) > 0);
        }
}

/* ---- threads --------------------------------------------------------------------------------------------------- */

enum { TOKENS = 2113, CHOSEN = 8, OF = 96, COLUMNS = 40, ROWS = 9000, OUTPUTS = 8 };

/* One after the other as a layer has them; the outputs are all that is compared. */
static void route_there_and_back(workbench *b, tensor *out)
{
    const op_attributes at = {
        .routing = {.experts = OF, .active = CHOSEN, .first = 8, .local = 64, .rows = ROWS, .scale = 1}};
    tensor logits = workbench_random(b, DTYPE_BF16, TOKENS, OF, 3),
           x = workbench_random(b, DTYPE_BF16, TOKENS, COLUMNS, 1);
    out[0] = workbench_tensor(b, DTYPE_FP32, TOKENS, CHOSEN);
    out[1] = workbench_tensor(b, DTYPE_INT32, TOKENS, CHOSEN);
    out[2] = workbench_tensor(b, DTYPE_INT32, TOKENS, CHOSEN);
    out[3] = workbench_tensor(b, DTYPE_INT32, at.routing.local + 1, 0);
    out[4] = workbench_tensor(b, DTYPE_BF16, ROWS, COLUMNS);
    out[5] = workbench_tensor(b, DTYPE_BF16, TOKENS, COLUMNS);
    out[6] = workbench_tensor(b, DTYPE_FP32, TOKENS, CHOSEN);
    out[7] = workbench_tensor(b, DTYPE_BF16, TOKENS, OF);
    op ops[] = {
        {.kind = OP_route, .in = {&logits}, .out = {&out[0], &out[1]}, .at = at},
        {.kind = OP_assign, .in = {&out[1]}, .out = {&out[2], &out[3]}, .at = at},
        {.kind = OP_dispatch, .in = {&x, &out[2], &out[3], &out[0]}, .out = {&out[4]}, .at = at},
        {.kind = OP_combine, .in = {&out[4], &out[2], &out[3], &out[0], &x}, .out = {&out[5]}, .at = at},
        {.kind = OP_combine_dots, .in = {&x, &out[4], &out[2]}, .out = {&out[6]}, .at = at},
        {.kind = OP_route_grad, .in = {&out[6], &logits, &out[1], &out[0], &logits}, .out = {&out[7]}, .at = at},
    };
    for (unsigned i = 0; i < sizeof ops / sizeof *ops; i++)
        workbench_run(b, &ops[i], true);
}

TEST(no_bit_depends_on_the_number_of_threads)
{
    tensor want[OUTPUTS], got[OUTPUTS];
    workbench one = workbench_open(1, NULL);
    route_there_and_back(&one, want);
    for (int threads = 2; threads < 8; threads += 2 + threads % 2) {
        workbench more = workbench_open(threads, NULL);
        route_there_and_back(&more, got);
        for (int i = 0; i < OUTPUTS; i++)
            assert_memory_equal(tensor_at(&got[i], more.arena), tensor_at(&want[i], one.arena),
                                (size_t)tensor_bytes(&want[i]));
        free(more.arena);
    }
    const int32_t *offsets = tensor_at(&want[3], one.arena);
    assert_in_range(offsets[64], ROWS / 2, ROWS); /* there was something to do */
    free(one.arena);
}

TEST_MAIN(NULL, NULL)
