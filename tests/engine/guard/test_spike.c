/* Spikes are told from noise by a window of the steps before. */
#include <math.h>
#include <stdbool.h>

#include "engine/guard/spike.h"
#include "tests/test.h"

static double uniform(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)(*state * 2685821657736338717u >> 11) * 0x1p-53;
}

/* Box and Muller */
static double normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(1 - uniform(state)));
    return radius * cos(2 * M_PI * uniform(state));
}

/* A loss that falls and flattens, with noise; norms that vary by factors. */
static double loss_at(int step, uint64_t *state)
{
    return 2 + 4 * exp(-step / 200.0) + 0.03 * normal(state);
}

static double norm_at(uint64_t *state)
{
    return exp(0.2 * normal(state));
}

TEST(noise_is_no_spike)
{
    spike_window w = {0};
    uint64_t random = 88172645463325252u;
    double largest = 0;
    for (int i = 0; i < 20000; i++) {
        double loss = loss_at(i, &random), norm = norm_at(&random);
        spike_scores z = spike_judge(&w, loss, norm);
        largest = fmax(largest, fmax(z.loss, z.norm));
        spike_add(&w, loss, norm);
    }
    /* 4 deviations are one in 30,000; the scale itself varies with 64 values */
    assert_true(largest > 3 && largest < 6.5);
}

TEST(a_spike_is_seen_in_either)
{
    spike_window w = {0};
    uint64_t random = 1;
    for (int i = 0; i < 300; i++)
        spike_add(&w, loss_at(i + 500, &random), norm_at(&random));
    spike_scores none = spike_judge(&w, 2.3, 1), loss = spike_judge(&w, 2.9, 1), norm = spike_judge(&w, 2.3, 8);
    assert_true(none.loss < 6 && none.norm < 6);
    assert_true(loss.loss > 8 && loss.norm < 6);
    assert_true(norm.loss < 6 && norm.norm > 8);
    /* What falls is no spike. */
    spike_scores low = spike_judge(&w, 0.5, 0.001);
    assert_true(low.loss == 0 && low.norm == 0);
    /* Nor is what is infinite, or none at all, anything else. */
    assert_true(isinf(spike_judge(&w, NAN, 1).loss) && isinf(spike_judge(&w, 2.3, INFINITY).norm));
}

TEST(outliers_do_not_hide_the_next)
{
    spike_window w = {0};
    uint64_t random = 7;
    for (int i = 0; i < SPIKE_WINDOW; i++) {
        bool outlier = i % 4 == 0;
        spike_add(&w, outlier ? 50 : loss_at(2000, &random), norm_at(&random));
    }
    assert_true(spike_judge(&w, 3, 1).loss > 8);
}

TEST(few_steps_and_flat_ones_tell_nothing)
{
    spike_window w = {0};
    for (int i = 0; i < SPIKE_LEAST; i++) {
        assert_true(spike_judge(&w, 1e9, 1e9).loss == 0);
        spike_add(&w, 2, 1);
    }
    /* No variation at all: half a percent counts as one deviation. */
    spike_scores z = spike_judge(&w, 2.02, 1.05);
    assert_true(z.loss > 1.9 && z.loss < 2.1 && z.norm > 0.9 && z.norm < 1.1);
}

TEST_MAIN(NULL, NULL)
