/* The loss scale as a function of the steps before: engine/train/loss_scale.h. Whole runs: tests/jobs/test_fp16.c. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/train/loss_scale.h"

/* Plays steps, '.' good and 'x' skipped, from `scale` on. */
static double play(const char *steps, double scale, int window)
{
    int64_t good = 0;
    for (; *steps; steps++)
        loss_scale_after(&scale, &good, *steps == 'x', window);
    return scale;
}

static void each_skipped_step_halves(void **state)
{
    (void)state;
    assert_float_equal(play("x", 4294967296.0, 1000), 2147483648.0, 0);
    assert_float_equal(play("xxxxxxxx", 4294967296.0, 1000), 16777216.0, 0);
    assert_float_equal(play("x.x..x", 1024, 1000), 128, 0);
}

static void it_does_not_fall_below_the_smallest(void **state)
{
    (void)state;
    assert_float_equal(play("xxxxx", 4, 1000), LOSS_SCALE_SMALLEST, 0);
}

static void it_doubles_after_exactly_the_window(void **state)
{
    (void)state;
    assert_float_equal(play("..", 1024, 3), 1024, 0);
    assert_float_equal(play("...", 1024, 3), 2048, 0);
    assert_float_equal(play(".....", 1024, 3), 2048, 0);
    assert_float_equal(play("......", 1024, 3), 4096, 0);
    assert_float_equal(play(".", 1024, 1), 2048, 0);
}

static void a_skipped_step_begins_the_window_anew(void **state)
{
    (void)state;
    assert_float_equal(play("..x..", 1024, 3), 512, 0);
    assert_float_equal(play("..x...", 1024, 3), 1024, 0);
}

static void it_does_not_double_beyond_the_largest(void **state)
{
    (void)state;
    assert_float_equal(play(".....", LOSS_SCALE_LARGEST / 2, 1), LOSS_SCALE_LARGEST, 0);
    assert_float_equal(play(".....", 4294967296.0, 1), 4294967296.0, 0); /* as given */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_skipped_step_halves),
        cmocka_unit_test(it_does_not_fall_below_the_smallest),
        cmocka_unit_test(it_doubles_after_exactly_the_window),
        cmocka_unit_test(a_skipped_step_begins_the_window_anew),
        cmocka_unit_test(it_does_not_double_beyond_the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
