/* Sums that no order and no division over ranks changes: the squared norm of all gradients, and what the optimizer
 * makes of it when it is not finite. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exact_sum.h"
#include "tests/kernels/workbench.h"
#include "tests/test.h"

TEST(exact_sums_depend_on_neither_order_nor_split)
{
    enum { COUNT = 999 };
    double values[COUNT];
    workbench b = workbench_open(1, NULL);
    for (int i = 0; i < COUNT; i++)
        values[i] = ldexp(2 * workbench_uniform(&b) - 1, (int)(workbench_uniform(&b) * 300) - 150);
    int64_t forward[SUM_BINS] = {0}, backward[SUM_BINS] = {0}, part[SUM_BINS] = {0};
    for (int i = 0; i < COUNT; i++)
        exact_sum_add(forward, values[i]);
    for (int i = COUNT - 1; i >= 500; i--)
        exact_sum_add(backward, values[i]);
    for (int i = 0; i < 500; i++)
        exact_sum_add(part, values[i]);
    exact_sum_merge(backward, part);
    assert_memory_equal(forward, backward, sizeof forward);
    double naive_forward = 0, naive_backward = 0; /* the oracle's mutant: plain addition does depend on it */
    for (int i = 0; i < COUNT; i++) {
        naive_forward += ldexp(values[i], -149);
        naive_backward += ldexp(values[COUNT - 1 - i], -149);
    }
    assert_true(naive_forward != naive_backward);
    free(b.arena);
}

TEST(exact_sums_are_exact)
{
    int64_t bins[SUM_BINS] = {0};
    exact_sum_add(bins, 0x1p200);
    exact_sum_add(bins, 0x1p-200);
    exact_sum_add(bins, -0x1p200);
    assert_true(exact_sum_value(bins) == 0x1p-200);
    exact_sum_add(bins, -0x1p-199);
    assert_true(exact_sum_value(bins) == -0x1p-200);
    static const double values[] = {1, -1, 0.1, 1e300, -1e-100, 0x1.fffffffffffffp1023, 3.5e-45 * 3.5e-45, 0};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        memset(bins, 0, sizeof bins);
        exact_sum_add(bins, values[i]);
        assert_true(exact_sum_value(bins) == values[i]);
    }
    exact_sum_add(bins, INFINITY);
    exact_sum_add(bins, -INFINITY);
    assert_true(isnan(exact_sum_value(bins)));
}

TEST(sums_of_squares_do_not_depend_on_who_owns_a_row)
{
    int64_t *first = NULL, count = SUM_BINS * 8;
    for (int set = 0; set < workbench_sets_here(); set++)
        for (int parts = 1; parts <= 3; parts++) {
            workbench b = workbench_open(parts, workbench_sets[set]);
            tensor gradient = workbench_random(&b, DTYPE_FP32, 90, 333, 1),
                   bins = workbench_tensor(&b, DTYPE_INT64, SUM_BINS, 0), view = gradient;
            for (int part = 0; part < parts; part++) {
                int64_t from;
                shard_rows(&from, &view.shape[0], 90, parts, part);
                view.address = gradient.address + from * 333 * 4;
                op o = {.kind = OP_sum_squares, .in = {&view}, .out = {&bins}, .at = {.accumulate = part > 0}};
                workbench_run(&b, &o, true);
            }
            if (!first) {
                double sum = 0, exact = exact_sum_value(tensor_at(&bins, b.arena));
                for (int64_t i = 0; i < 90 * 333; i++)
                    sum +=
                        workbench_get(&b, &gradient, i / 333, i % 333) * workbench_get(&b, &gradient, i / 333, i % 333);
                assert_true(fabs(sum - exact) <= 1e-13 * sum);
                first = malloc((size_t)count);
                memcpy(first, tensor_at(&bins, b.arena), (size_t)count);
            }
            assert_memory_equal(first, tensor_at(&bins, b.arena), (size_t)count);
            free(b.arena);
        }
    free(first);
}

TEST(a_gradient_that_is_not_finite_changes_nothing)
{
    for (int bad = 0; bad < 2; bad++) {
        workbench b = workbench_open(1, NULL);
        tensor gradient = workbench_random(&b, DTYPE_FP32, 5, 7, 1),
               bins = workbench_tensor(&b, DTYPE_INT64, SUM_BINS, 0), m = workbench_random(&b, DTYPE_FP32, 5, 7, 1);
        tensor v = workbench_random(&b, DTYPE_FP32, 5, 7, 0), master = workbench_random(&b, DTYPE_FP32, 5, 7, 1),
               weight = workbench_tensor(&b, DTYPE_BF16, 5, 7);
        tensor control = workbench_tensor(&b, DTYPE_FP32, CONTROL_COUNT, 0),
               scalars = workbench_tensor(&b, DTYPE_UINT8, sizeof(step_scalars), 0);
        *(step_scalars *)tensor_at(&scalars, b.arena) = (step_scalars){.lr = 0.1f,
                                                                       .beta1 = 0.9f,
                                                                       .beta2 = 0.99f,
                                                                       .epsilon = 1e-8f,
                                                                       .loss_scale = 1,
                                                                       .momentum_correction = 0.1f,
                                                                       .variance_correction = 0.01f};
        if (bad)
            workbench_put(&b, &gradient, 3, 3, (double)NAN);
        double before = workbench_get(&b, &master, 2, 2);
        op squares = {.kind = OP_sum_squares, .in = {&gradient}, .out = {&bins}};
        op clip = {.kind = OP_clip, .in = {&bins, &scalars}, .out = {&control}};
        op update = {.kind = OP_adamw, .in = {&gradient, &scalars, &control}, .out = {&weight, &master, &m, &v}};
        workbench_run(&b, &squares, true);
        workbench_run(&b, &clip, true);
        workbench_run(&b, &update, true);
        assert_true((workbench_get(&b, &control, CONTROL_SKIP, 0) != 0) == bad);
        assert_true((workbench_get(&b, &master, 2, 2) == before) == bad);
        free(b.arena);
    }
}

TEST_MAIN(NULL, NULL)
