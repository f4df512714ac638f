/* The loss scale as a function of the steps before: engine/train/rank/train_meta.h.
 * Whole runs: tests/jobs/test_fp16.c. */

#include "engine/train/rank/train_meta.h"
#include "tests/test.h"

/* Plays steps, '.' good and 'x' skipped, from `scale` on. */
static double play(const char *steps, double scale, int window)
{
    int64_t good = 0;
    for (; *steps; steps++)
        loss_scale_after(&scale, &good, *steps == 'x', window);
    return scale;
}

TEST(each_skipped_step_halves)
{
    assert_float_equal(play("x", 4294967296.0, 1000), 2147483648.0, 0);
    assert_float_equal(play("xxxxxxxx", 4294967296.0, 1000), 16777216.0, 0);
    assert_float_equal(play("x.x..x", 1024, 1000), 128, 0);
}

TEST(it_does_not_fall_below_the_smallest)
{
    assert_float_equal(play("xxxxx", 4, 1000), LOSS_SCALE_SMALLEST, 0);
}

TEST(it_doubles_after_exactly_the_window)
{
    assert_float_equal(play("..", 1024, 3), 1024, 0);
    assert_float_equal(play("...", 1024, 3), 2048, 0);
    assert_float_equal(play(".....", 1024, 3), 2048, 0);
    assert_float_equal(play("......", 1024, 3), 4096, 0);
    assert_float_equal(play(".", 1024, 1), 2048, 0);
}

TEST(a_skipped_step_begins_the_window_anew)
{
    assert_float_equal(play("..x..", 1024, 3), 512, 0);
    assert_float_equal(play("..x...", 1024, 3), 1024, 0);
}

TEST(it_does_not_double_beyond_the_largest)
{
    assert_float_equal(play(".....", LOSS_SCALE_LARGEST / 2, 1), LOSS_SCALE_LARGEST, 0);
    assert_float_equal(play(".....", 4294967296.0, 1), 4294967296.0, 0); /* as given */
}

TEST_MAIN(NULL, NULL)
