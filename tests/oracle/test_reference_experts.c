/* The oracle's ops of experts against values computed by hand: who is chosen, in which row, and what comes of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/bench.h"
#include "tests/test.h"

/* ---- routing */

enum { EXPERTS = 4 };

/* weights and experts of one token whose softmax is p, or whose logits p are */
static void chosen(double *weights, int32_t *experts, const double *p, const double *bias, op_routing as)
{
    bench b = {.o = {.kind = OP_route, .at.routing = as}};
    double logits[EXPERTS];
    for (int i = 0; i < EXPERTS; i++)
        logits[i] = as.sigmoid ? p[i] : log(p[i]);
    b.o.in[0] = bench_operand(&b, DTYPE_FP32, 1, EXPERTS);
    b.o.in[1] = bias ? bench_operand(&b, DTYPE_FP32, EXPERTS, 0) : NULL;
    b.o.out[0] = bench_operand(&b, DTYPE_FP32, 1, as.active);
    b.o.out[1] = bench_operand(&b, DTYPE_INT32, 1, as.active);
    bench_start(&b);
    reference_program_set(b.p, b.o.in[0], logits);
    if (bias)
        reference_program_set(b.p, b.o.in[1], bias);
    bench_run(&b);
    reference_program_get(weights, b.p, b.o.out[0]);
    memcpy(experts, reference_program_bytes(b.p, b.o.out[1]), (size_t)as.active * sizeof *experts);
    reference_program_close(b.p);
}

TEST(a_token_chooses_the_best_experts)
{
    static const struct {
        double p[EXPERTS], bias[EXPERTS], weights[2];
        op_routing as;
        int32_t experts[2];
    } cases[] = {
        {{.1, .4, .2, .3}, {0}, {.4, .3}, {.scale = 1}, {1, 3}},
        {{.1, .4, .2, .3}, {0}, {10 / 7.0, 7.5 / 7}, {.scale = 2.5f, .renormalise = 1}, {1, 3}},
        {{.1, .4, .2, .3}, {.5}, {.1, .4}, {.scale = 1}, {0, 1}},
        {{.25, .25, .25, .25}, {0}, {.25, .25}, {.scale = 1}, {0, 1}},
        /* two groups: .55 and .45 are their sums, .4 and .25 their best; with the bias .55 and .75, .4 and .55 */
        {{.15, .4, .2, .25}, {0}, {.4, .15}, {.scale = 1, .groups = 2, .groups_kept = 1, .group_best = 2}, {1, 0}},
        {{.15, .4, .2, .25},
         {0, 0, 0, .3},
         {.25, .2},
         {.scale = 1, .groups = 2, .groups_kept = 1, .group_best = 2},
         {3, 2}},
        {{.3, .3, .38, .02}, {0}, {.38, .02}, {.scale = 1, .groups = 2, .groups_kept = 1, .group_best = 1}, {2, 3}},
        {{0, 1.0986122886681098, -1, -2}, {0}, {.75, .5}, {.scale = 1, .sigmoid = 1}, {1, 0}},
        {{0, 1.0986122886681098, -1, -2}, {0}, {.6, .4}, {.scale = 1, .sigmoid = 1, .renormalise = 1}, {1, 0}},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_routing as = cases[i].as;
        as.experts = EXPERTS;
        as.active = 2;
        double weights[2];
        int32_t experts[2];
        chosen(weights, experts, cases[i].p, cases[i].bias, as);
        for (int j = 0; j < 2; j++) {
            assert_int_equal(experts[j], cases[i].experts[j]);
            bench_near(weights[j], cases[i].weights[j], 1e-7); /* factors are fp32 */
        }
    }
}

/* One expert of two, p = 3/4: dp/dlogit = p (1 - p), of a softmax the other one's negative; divided by its sum it is 1.
 */
TEST(the_slope_of_a_weight_is_its_scores)
{
    for (int k = 0; k < 4; k++) {
        op_routing as = {.experts = 2, .active = 1, .scale = 1, .sigmoid = k % 2 != 0, .renormalise = k >= 2};
        bench b = {.o = {.kind = OP_route_grad, .at.routing = as}};
        b.o.in[0] = bench_operand(&b, DTYPE_FP32, 1, 1);
        b.o.in[1] = bench_operand(&b, DTYPE_FP32, 1, 2);
        b.o.in[2] = bench_operand(&b, DTYPE_INT32, 1, 1);
        b.o.in[3] = bench_operand(&b, DTYPE_FP32, 1, 1);
        b.o.out[0] = bench_operand(&b, DTYPE_FP32, 1, 2);
        bench_start(&b);
        reference_program_set(b.p, b.o.in[0], (double[]){2});
        reference_program_set(b.p, b.o.in[1], (double[]){0, 1.0986122886681098});
        reference_program_set(b.p, b.o.in[3], (double[]){as.renormalise ? 1 : .75});
        memcpy(reference_program_bytes(b.p, b.o.in[2]), (int32_t[]){1}, sizeof(int32_t));
        bench_run(&b);
        double dlogits[2], want = as.renormalise ? 0 : .375;
        reference_program_get(dlogits, b.p, b.o.out[0]);
        assert_true(fabs(dlogits[1] - want) < 1e-15 && fabs(dlogits[0] + (as.sigmoid ? 0 : want)) < 1e-15);
        reference_program_close(b.p);
    }
}

enum { SENT = 3, EACH = 2 };

/* places of three tokens' experts, of those that a rank has from `first` on */
static void assigned(int32_t *row_ids, int32_t *offsets, int32_t first, int32_t local, int64_t skip, int64_t rows)
{
    static const int32_t experts[SENT][EACH] = {{2, 0}, {0, 2}, {1, 2}};
    bench b = {.o = {.kind = OP_assign, .at.routing = {.first = first, .local = local, .rows = rows, .skip = skip}}};
    b.o.in[0] = bench_operand(&b, DTYPE_INT32, SENT, EACH);
    b.o.out[0] = bench_operand(&b, DTYPE_INT32, SENT, EACH);
    b.o.out[1] = bench_operand(&b, DTYPE_INT32, local + 1, 0);
    bench_start(&b);
    memcpy(reference_program_bytes(b.p, b.o.in[0]), experts, sizeof experts);
    bench_run(&b);
    memcpy(row_ids, reference_program_bytes(b.p, b.o.out[0]), sizeof experts);
    memcpy(offsets, reference_program_bytes(b.p, b.o.out[1]), ((size_t)local + 1) * sizeof *offsets);
    reference_program_close(b.p);
}

TEST(assignments_are_sorted_by_expert_and_token)
{
    int32_t row_ids[SENT * EACH], offsets[4];
    assigned(row_ids, offsets, 0, 3, 0, 6);
    assert_memory_equal(row_ids, ((int32_t[]){3, 0, 1, 4, 2, 5}), sizeof row_ids);
    assert_memory_equal(offsets, ((int32_t[]){0, 2, 3, 6}), sizeof offsets);
    assigned(row_ids, offsets, 1, 2, 2, 2); /* the second pass of two, of the last two experts */
    assert_memory_equal(row_ids, ((int32_t[]){-1, -1, -1, 0, -1, 1}), sizeof row_ids);
    assert_memory_equal(offsets, ((int32_t[]){0, 0, 2}), 3 * sizeof *offsets);
    assigned(row_ids, offsets, 0, 3, 0, 4); /* more than there is room for */
    assert_memory_equal(row_ids, ((int32_t[]){3, 0, 1, -1, 2, -1}), sizeof row_ids);
    assert_memory_equal(offsets, ((int32_t[]){0, 2, 3, 4}), sizeof offsets);
}

/* Two ranks have experts 0 and 1, and 2: slots of two rows, from the first on and from the third. */
TEST(assignments_go_to_the_slots_of_their_ranks)
{
    static const int32_t experts[SENT][EACH] = {{2, 0}, {0, 2}, {1, 2}};
    static const int32_t want[2][SENT * EACH + 4 + 3] = {{2, 0, 1, 3, -1, -1, 0, 0, 0, 0, 0, 2, 4},
                                                         {-1, -1, -1, -1, 0, 2, 1, -1, 0, -1, 0, 1, 3}};
    for (int pass = 0; pass < 2; pass++) {
        bench b = {.o = {.kind = OP_slots, .at.routing = {.experts = 3, .slots = 2, .rows = 4, .skip = 2 * pass}}};
        b.o.in[0] = bench_operand(&b, DTYPE_INT32, SENT, EACH);
        b.o.out[0] = bench_operand(&b, DTYPE_INT32, SENT, EACH);
        b.o.out[1] = bench_operand(&b, DTYPE_INT32, 4, 1);
        b.o.out[2] = bench_operand(&b, DTYPE_INT32, 3, 0);
        bench_start(&b);
        memcpy(reference_program_bytes(b.p, b.o.in[0]), experts, sizeof experts);
        bench_run(&b);
        assert_memory_equal(reference_program_bytes(b.p, b.o.out[0]), want[pass], sizeof experts);
        assert_memory_equal(reference_program_bytes(b.p, b.o.out[1]), want[pass] + SENT * EACH, 4 * sizeof(int32_t));
        assert_memory_equal(reference_program_bytes(b.p, b.o.out[2]), want[pass] + SENT * EACH + 4,
                            3 * sizeof(int32_t));
        reference_program_close(b.p);
    }
}

/* Six assignments, four of them to experts 1 and 2: room for one, and for four. */
TEST(rows_beyond_a_bucket_are_counted)
{
    static const int32_t experts[SENT][EACH] = {{2, 0}, {0, 2}, {1, 2}};
    for (int bucket = 0; bucket < CAPACITY_BUCKETS; bucket++) {
        bench b = {.o = {.kind = OP_overflow, .at.accumulate = OP_ADDS}};
        b.o.at.capacity = (op_capacity){.room = {1, 4}, .bucket = bucket, .first = 1, .local = 2};
        b.o.in[0] = bench_operand(&b, DTYPE_INT32, SENT, EACH);
        b.o.out[0] = bench_operand(&b, DTYPE_FP32, CAPACITY_BUCKETS, 0);
        bench_start(&b);
        memcpy(reference_program_bytes(b.p, b.o.in[0]), experts, sizeof experts);
        double over[CAPACITY_BUCKETS] = {10, 0, 0};
        reference_program_set(b.p, b.o.out[0], over);
        bench_run(&b);
        reference_program_get(over, b.p, b.o.out[0]);
        assert_true(over[0] == 13 && over[1] == 0);
        assert_true(over[2] == (bucket == 0 ? INFINITY : 0));
        reference_program_close(b.p);
    }
}

/* Two tokens of three choose expert 2, and their counts are added to what was counted before; a bias goes up by the
 * rate where an expert has less than the mean, 3, and down where it has more, unless the step is skipped. */
TEST(a_bias_moves_by_the_sign_of_what_its_expert_lacks)
{
    static const int32_t experts[SENT][EACH] = {{2, 0}, {0, 2}, {1, 3}}, before[4] = {3, 0, 1, 2},
                         after[4] = {5, 1, 3, 3};
    bench count = {.o = {.kind = OP_expert_count, .at.accumulate = OP_ADDS}};
    count.o.in[0] = bench_operand(&count, DTYPE_INT32, SENT, EACH);
    count.o.out[0] = bench_operand(&count, DTYPE_INT32, 4, 0);
    bench_start(&count);
    memcpy(reference_program_bytes(count.p, count.o.in[0]), experts, sizeof experts);
    memcpy(reference_program_bytes(count.p, count.o.out[0]), before, sizeof before);
    bench_run(&count);
    assert_memory_equal(reference_program_bytes(count.p, count.o.out[0]), after, sizeof after);
    reference_program_close(count.p);
    for (int skip = 0; skip < 2; skip++) {
        bench b = {.o = {.kind = OP_expert_bias, .at.balance.scale = 0.25f}};
        b.o.in[0] = bench_operand(&b, DTYPE_INT32, 4, 0);
        b.o.in[1] = bench_operand(&b, DTYPE_FP32, CONTROL_COUNT, 0);
        b.o.out[0] = bench_operand(&b, DTYPE_FP32, 4, 0);
        bench_start(&b);
        double bias[4] = {1, 1, 1, 1}, control[CONTROL_COUNT] = {[CONTROL_SKIP] = skip};
        memcpy(reference_program_bytes(b.p, b.o.in[0]), after, sizeof after);
        reference_program_set(b.p, b.o.in[1], control);
        reference_program_set(b.p, b.o.out[0], bias);
        bench_run(&b);
        reference_program_get(bias, b.p, b.o.out[0]);
        assert_true(bias[0] == (skip ? 1 : 0.75) && bias[1] == (skip ? 1 : 1.25) && bias[2] == 1 && bias[3] == 1);
        reference_program_close(b.p);
    }
}

/* An op with row_ids[SENT, EACH] as input `slot`, operands of one column, and its output's values. */
static void routed(double *out, op_kind kind, int slot, const double *const *in, const int32_t *row_ids, int64_t rows)
{
    static const int64_t shapes[3][OP_MAX_IN][2] = {{{SENT, 1}, {SENT, EACH}, {2, 0}, {SENT, EACH}},
                                                    {{7, 1}, {SENT, EACH}, {2, 0}, {SENT, EACH}, {SENT, 1}},
                                                    {{SENT, 1}, {7, 1}, {SENT, EACH}}};
    const int64_t(*shape)[2] = shapes[kind == OP_dispatch ? 0 : kind == OP_combine ? 1 : 2];
    bench b = {.o = {.kind = (uint8_t)kind, .at.routing.rows = rows}};
    for (int i = 0; shape[i][0]; i++)
        b.o.in[i] = bench_operand(&b, in[i] ? DTYPE_FP32 : DTYPE_INT32, shape[i][0], shape[i][1]);
    b.o.out[0] = bench_operand(&b, DTYPE_FP32, kind == OP_dispatch ? rows : SENT, kind == OP_combine_dots ? EACH : 1);
    bench_start(&b);
    for (int i = 0; shape[i][0]; i++)
        if (in[i])
            reference_program_set(b.p, b.o.in[i], in[i]);
    memcpy(reference_program_bytes(b.p, b.o.in[slot]), row_ids, SENT * EACH * sizeof *row_ids);
    bench_run(&b);
    reference_program_get(out, b.p, b.o.out[0]);
    reference_program_close(b.p);
}

TEST(tokens_go_to_their_places_and_back)
{
    static const int32_t row_ids[] = {3, 0, 1, -1, 2, 5};
    static const double weights[] = {.5, 2, 1, 1, -1, 3}, tokens[] = {1, 2, 3}, ten[] = {10, 20, 30};
    static const double rows[] = {1, 2, 4, 8, 16, 32, 64};
    double out[7];
    routed(out, OP_dispatch, 1, (const double *const[]){tokens, NULL, NULL, weights}, row_ids, 7);
    assert_memory_equal(out, ((double[]){2, 2, -3, .5, 0, 9, 0}), sizeof out);
    routed(out, OP_combine, 1, (const double *const[]){rows, NULL, NULL, weights, ten}, row_ids, 7);
    assert_memory_equal(out, ((double[]){10 + 4 + 2, 20 + 2, 30 - 4 + 96}), SENT * sizeof *out);
    routed(out, OP_combine_dots, 2, (const double *const[]){tokens, rows, NULL}, row_ids, 7);
    assert_memory_equal(out, ((double[]){8, 1, 4, 0, 12, 96}), SENT * EACH * sizeof *out);
}

/* Experts 0 and 2 of three have rows 0 and 1; nobody has row 2. */
TEST(experts_multiply_their_own_rows)
{
    static const int32_t offsets[] = {0, 1, 1, 2};
    static const double x[] = {1, 2, 3, 5, 100, 100}, w[] = {1, 10, 7, 7, 0.5, -1}, dy[] = {2, 3, 100};
    static const double y[] = {21, -3.5, 0}, dx[] = {2, 20, 1.5, -3, 0, 0}, dw[] = {2, 4, 0, 0, 9, 15};
    static const struct {
        op_kind kind;
        const double *a, *b, *c;
        int a_columns, b_rows, b_columns, c_rows, c_columns;
    } products[] = {{OP_grouped_linear, x, w, y, 2, 3, 2, 3, 1},
                    {OP_grouped_linear_grad_input, dy, w, dx, 1, 3, 2, 3, 2},
                    {OP_grouped_linear_grad_weight, dy, x, dw, 1, 3, 2, 3, 2}};
    for (int i = 0; i < 3; i++)
        for (int adds = 0; adds <= (products[i].kind == OP_grouped_linear_grad_weight); adds++) {
            bench b = {.o.kind = (uint8_t)products[i].kind, .o.at.accumulate = (uint8_t)adds};
            b.o.in[0] = bench_operand(&b, DTYPE_FP32, 3, products[i].a_columns);
            b.o.in[1] = bench_operand(&b, DTYPE_FP32, products[i].b_rows, products[i].b_columns);
            b.o.in[2] = bench_operand(&b, DTYPE_INT32, 4, 0);
            b.o.out[0] = bench_operand(&b, DTYPE_FP32, products[i].c_rows, products[i].c_columns);
            bench_start(&b);
            double c[6] = {50, 50, 50, 50, 50, 50};
            reference_program_set(b.p, b.o.in[0], products[i].a);
            reference_program_set(b.p, b.o.in[1], products[i].b);
            memcpy(reference_program_bytes(b.p, b.o.in[2]), offsets, sizeof offsets);
            reference_program_set(b.p, b.o.out[0], c);
            bench_run(&b);
            reference_program_get(c, b.p, b.o.out[0]);
            for (int k = 0; k < products[i].c_rows * products[i].c_columns; k++)
                bench_near(c[k], products[i].c[k] + 50 * adds, 1e-15);
            reference_program_close(b.p);
        }
}

/* The same rows and experts: what they add to a row, and the sum over its rows. */
TEST(experts_add_their_own_bias)
{
    static const int32_t offsets[] = {0, 1, 1, 2};
    for (int adds = 0; adds < 2; adds++) {
        bench b = {.o = {.kind = OP_grouped_bias_grad, .at.accumulate = (uint8_t)adds}};
        b.o.in[0] = bench_operand(&b, DTYPE_FP32, 3, 2);
        b.o.in[1] = bench_operand(&b, DTYPE_INT32, 4, 0);
        b.o.out[0] = bench_operand(&b, DTYPE_FP32, 6, 0);
        bench_start(&b);
        double db[6] = {50, 50, 50, 50, 50, 50};
        static const double sums[] = {2, 3, 0, 0, 5, 7};
        reference_program_set(b.p, b.o.in[0], (double[]){2, 3, 5, 7, 100, 100});
        memcpy(reference_program_bytes(b.p, b.o.in[1]), offsets, sizeof offsets);
        reference_program_set(b.p, b.o.out[0], db);
        bench_run(&b);
        reference_program_get(db, b.p, b.o.out[0]);
        for (int k = 0; k < 6; k++)
            bench_near(db[k], sums[k] + 50 * adds, 1e-15);
        reference_program_close(b.p);
    }
    bench b = {.o.kind = OP_grouped_linear};
    b.o.in[0] = bench_operand(&b, DTYPE_FP32, 3, 2);
    b.o.in[1] = bench_operand(&b, DTYPE_FP32, 3, 2);
    b.o.in[2] = bench_operand(&b, DTYPE_INT32, 4, 0);
    b.o.in[3] = bench_operand(&b, DTYPE_FP32, 3, 0);
    b.o.out[0] = bench_operand(&b, DTYPE_FP32, 3, 1);
    bench_start(&b);
    double y[3];
    reference_program_set(b.p, b.o.in[0], (double[]){1, 2, 3, 5, 100, 100});
    reference_program_set(b.p, b.o.in[1], (double[]){1, 10, 7, 7, 0.5, -1});
    memcpy(reference_program_bytes(b.p, b.o.in[2]), offsets, sizeof offsets);
    reference_program_set(b.p, b.o.in[3], (double[]){4, 5, 6});
    bench_run(&b);
    reference_program_get(y, b.p, b.o.out[0]);
    assert_memory_equal(y, ((double[]){25, 2.5, 0}), sizeof y);
    reference_program_close(b.p);
}

TEST_MAIN(NULL, NULL)
