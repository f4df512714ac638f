/* The learning rate of every step, against values worked out by hand. */
#include <math.h>

#include "engine/config/config.h"
#include "tests/test.h"

static learning_rate base(learning_rate_kind kind)
{
    return (learning_rate){
        .kind = kind, .peak = 8e-4, .floor = 2e-4, .decay_fraction = 0.25, .warmup = 20, .steps = 100};
}

static void expect(const learning_rate *s, int64_t step, double rate)
{
    double got = learning_rate_at(s, step);
    if (!(fabs(got - rate) <= 1e-15))
        fail_msg("step %d: %.17g, expected %.17g", (int)step, got, rate);
}

TEST(every_schedule_rises_linearly_to_the_peak)
{
    for (int kind = LEARNING_RATE_CONSTANT; kind <= LEARNING_RATE_INVERSE_SQRT; kind++) {
        learning_rate s = base((learning_rate_kind)kind);
        expect(&s, 1, 4e-5);
        expect(&s, 10, 4e-4);
        expect(&s, 20, 8e-4);
        s.warmup = 0;
        s.floor = 0;
        if (kind != LEARNING_RATE_LINEAR && kind != LEARNING_RATE_COSINE)
            expect(&s, 1, 8e-4);
    }
}

TEST(constant_stays)
{
    learning_rate s = base(LEARNING_RATE_CONSTANT);
    expect(&s, 21, 8e-4);
    expect(&s, 100, 8e-4);
    expect(&s, 1000, 8e-4);
}

TEST(linear_falls_to_the_minimum)
{
    learning_rate s = base(LEARNING_RATE_LINEAR);
    expect(&s, 40, 6.5e-4); /* a quarter of 80 steps: 2e-4 + 6e-4 * 0.75 */
    expect(&s, 60, 5e-4);
    expect(&s, 100, 2e-4);
    expect(&s, 150, 2e-4);
}

TEST(cosine_falls_to_the_minimum)
{
    learning_rate s = base(LEARNING_RATE_COSINE);
    expect(&s, 40, 2e-4 + 6e-4 * (1 + sqrt(0.5)) / 2); /* cos(pi/4) */
    expect(&s, 60, 5e-4);                              /* cos(pi/2) */
    expect(&s, 80, 2e-4 + 6e-4 * (1 - sqrt(0.5)) / 2); /* cos(3 pi/4) */
    expect(&s, 100, 2e-4);
    expect(&s, 101, 2e-4);
}

TEST(wsd_is_stable_then_decays)
{
    learning_rate s = base(LEARNING_RATE_WSD); /* decays over steps 76 to 100 */
    expect(&s, 21, 8e-4);
    expect(&s, 75, 8e-4);
    expect(&s, 76, 2e-4 + 6e-4 * 24 / 25);
    expect(&s, 90, 2e-4 + 6e-4 * 10 / 25);
    expect(&s, 100, 2e-4);
    s.decay_fraction = 0;
    expect(&s, 100, 8e-4);
}

TEST(inverse_sqrt_falls_with_the_root_of_the_step)
{
    learning_rate s = base(LEARNING_RATE_INVERSE_SQRT);
    expect(&s, 80, 4e-4);
    expect(&s, 320, 2e-4);
    expect(&s, 2000, 2e-4); /* 8e-5 is below the minimum */
    s.warmup = 0;
    expect(&s, 4, 4e-4);
}

TEST(warmup_as_long_as_the_run_is_fine)
{
    learning_rate s = base(LEARNING_RATE_COSINE);
    s.warmup = 100;
    expect(&s, 100, 8e-4);
    expect(&s, 101, 2e-4);
}

TEST_MAIN(NULL, NULL)
