/* Initial weights: normal_fill against Box and Muller in double precision, and against itself cut anywhere. */
#include <math.h>
#include <string.h>

#include "engine/state/rank/state.h"
#include "kernels/philox.h"
#include "tests/test.h"

enum { COUNT = 1 << 20, INITIAL_SITE = 0xffff };

static float values[COUNT];

static double exactly(uint64_t seed, uint64_t series, int64_t i)
{
    uint32_t draw[4];
    philox_draws(draw, seed, INITIAL_SITE, 0, series, (uint64_t)i / 4);
    int pair = (int)(i & 2);
    double u = ((double)(draw[pair] >> 8) + 1) * 0x1p-24, v = (double)(draw[pair + 1] >> 8) * 0x1p-24;
    double angle = 2 * acos(-1) * v;
    return sqrt(-2 * log(u)) * (i & 1 ? sin(angle) : cos(angle));
}

TEST(values_are_box_and_mullers)
{
    uint64_t series = philox_stream("model.layers.0.mlp.up_proj.weight");
    normal_fill(values, 7, series, 0, COUNT, 0.5f);
    double worst = 0, sum = 0, squares = 0;
    for (int i = 0; i < COUNT; i++) {
        worst = fmax(worst, fabs(values[i] - 0.5 * exactly(7, series, i)));
        sum += values[i];
        squares += (double)values[i] * values[i];
    }
    assert_true(worst < 2e-6);
    /* five standard errors of the mean and of the variance */
    assert_true(fabs(sum / COUNT) < 5 * 0.5 / sqrt(COUNT));
    assert_true(fabs(squares / COUNT - 0.25) < 5 * 0.25 * sqrt(2.0 / COUNT));
}

TEST(any_part_is_the_same_bits)
{
    static float part[5000];
    uint64_t series = philox_stream("lm_head.weight");
    normal_fill(values, 1, series, 0, 20000, 0.02f);
    for (int64_t first = 0; first < 15000; first += 997)
        for (int64_t count = 0; count < 5000; count = count * 3 + 1) {
            memset(part, 0, sizeof part);
            normal_fill(part, 1, series, first, count, 0.02f);
            assert_memory_equal(part, values + first, (size_t)count * sizeof *part);
            assert_true(part[count] == 0);
        }
}

TEST(names_and_seeds_draw_apart)
{
    float a[8], b[8], c[8];
    normal_fill(a, 1, philox_stream("a"), 0, 8, 1);
    normal_fill(b, 1, philox_stream("b"), 0, 8, 1);
    normal_fill(c, 2, philox_stream("a"), 0, 8, 1);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
}

TEST_MAIN(NULL, NULL)
