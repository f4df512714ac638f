/* The tables of precisions and of devices: which types are decided, and what a device is said to do. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#include "kernels/devices.h"
#include "kernels/product.h"

static void every_word_has_a_row_of_its_own(void **state)
{
    (void)state;
    assert_string_equal(precision_words[PRECISION_FP32], "fp32");
    assert_string_equal(precision_words[PRECISION_BF16], "bf16");
    assert_string_equal(precision_words[PRECISION_FP16], "fp16");
    assert_null(precision_words[PRECISION_COUNT]);
    for (int i = 0; i < PRECISION_COUNT; i++) {
        const precision_row *row = precision_row_of((precision_kind)i);
        assert_true(precision_computes_in(row->compute));
        assert_string_equal(dtype_name(row->compute), precision_words[i]);
        assert_true(precision_keeps((precision_kind)i, row->compute) &&
                    precision_keeps((precision_kind)i, row->master));
        assert_int_equal(row->scales_loss, i == PRECISION_FP16);
    }
    assert_false(precision_keeps(PRECISION_FP16, DTYPE_BF16) || precision_keeps(PRECISION_FP32, DTYPE_BF16));
    assert_false(precision_computes_in(DTYPE_INT32));
    assert_int_equal(precision_default(true), PRECISION_BF16);
    assert_int_equal(precision_default(false), PRECISION_FP32);
}

/* train.tf32 is said of fp32's products and of no others. */
static void products_reach_the_peak_of_their_type(void **state)
{
    (void)state;
    assert_int_equal(precision_peak(DTYPE_FP32, false), PEAK_FP32);
    assert_int_equal(precision_peak(DTYPE_FP32, true), PEAK_TF32);
    for (int rounds = 0; rounds < 2; rounds++) {
        assert_int_equal(precision_peak(DTYPE_BF16, rounds), PEAK_HALF);
        assert_int_equal(precision_peak(DTYPE_FP16, rounds), PEAK_HALF);
        assert_false(precision_rounds(DTYPE_BF16, rounds));
        assert_int_equal(precision_rounds(DTYPE_FP32, rounds), rounds);
    }
}

/* Does a body whose product of this kind has operands of these types pass? */
static bool settles(op_kind kind, dtype first, dtype second, precision_kind precision)
{
    tensor a = {.type = (uint8_t)first}, b = {.type = (uint8_t)second};
    op o = {.kind = (uint8_t)kind, .label = "layer 0/mlp/down", .in = {&a, &b}};
    program body = {.ops = (op *[]){&o}, .count = 1};
    pid_t child = fork();
    if (child == 0) {
        product_settle(&body, precision);
        _exit(0);
    }
    int end;
    assert_int_equal(waitpid(child, &end, 0), child);
    return WIFEXITED(end) && WEXITSTATUS(end) == 0;
}

static void a_product_of_other_types_than_decided_is_refused(void **state)
{
    (void)state;
    const op_kind products[] = {OP_linear, OP_linear_grad_input, OP_linear_grad_weight};
    for (int i = 0; i < 3; i++) {
        assert_true(settles(products[i], DTYPE_BF16, DTYPE_BF16, PRECISION_BF16));
        assert_false(settles(products[i], DTYPE_BF16, DTYPE_BF16, PRECISION_FP16));
        assert_false(settles(products[i], DTYPE_BF16, DTYPE_FP32, PRECISION_BF16));
        assert_false(settles(products[i], DTYPE_FP32, DTYPE_BF16, PRECISION_BF16));
    }
    assert_true(settles(OP_add, DTYPE_FP32, DTYPE_FP32, PRECISION_BF16)); /* no product */
}

static void a_gpu_is_found_by_the_name_that_it_gives(void **state)
{
    (void)state;
    const devices_row *h100 = devices_named("h100");
    assert_non_null(h100);
    assert_ptr_equal(devices_of_gpu("NVIDIA H100 80GB HBM3"), h100);
    assert_ptr_not_equal(devices_of_gpu("NVIDIA H100 PCIe"), h100);
    assert_ptr_equal(devices_of_gpu("NVIDIA A100-SXM4-80GB"), devices_named("a100"));
    assert_null(devices_of_gpu("NVIDIA GeForce RTX 9090"));
    assert_null(devices_named("abacus"));
    assert_ptr_equal(devices_numbered(devices_number(h100)), h100);
    assert_null(devices_numbered(devices_number(NULL)));
    double whole[PEAK_COUNT], half[PEAK_COUNT];
    devices_peaks(whole, h100, 132);
    devices_peaks(half, h100, 66);
    for (int i = 0; i < PEAK_COUNT; i++)
        assert_true(whole[i] == h100->peak[i] && half[i] == h100->peak[i] / 2);
    devices_peaks(whole, NULL, 132);
    assert_true(whole[PEAK_HALF] == 0);
}

/* 70% of 989 TFLOP/s against 3.35 TB/s, and against 370 GB/s. The CPU's is stated. */
static void balances_follow_from_the_sheet(void **state)
{
    (void)state;
    const devices_row *h100 = devices_named("h100"), *cpu = devices_named("cpu");
    assert_true(devices_balance(h100, PEAK_HALF) > 206 && devices_balance(h100, PEAK_HALF) < 207);
    assert_true(devices_balance_sent(h100, PEAK_HALF) > 1870 && devices_balance_sent(h100, PEAK_HALF) < 1872);
    assert_true(devices_balance(h100, PEAK_FP32) < devices_balance(h100, PEAK_TF32));
    assert_true(devices_balance(cpu, PEAK_HALF) == 25 && devices_balance(cpu, PEAK_FP32) == 25);
    assert_true(devices_balance(devices_named("a100"), PEAK_HALF) < devices_balance(h100, PEAK_HALF));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_word_has_a_row_of_its_own),
        cmocka_unit_test(products_reach_the_peak_of_their_type),
        cmocka_unit_test(a_product_of_other_types_than_decided_is_refused),
        cmocka_unit_test(a_gpu_is_found_by_the_name_that_it_gives),
        cmocka_unit_test(balances_follow_from_the_sheet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
