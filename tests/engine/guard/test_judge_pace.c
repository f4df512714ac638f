/* Who is slow, by what the ranks say of their time. */
#include <stdbool.h>

#include "engine/guard/pace.h"
#include "tests/test.h"

enum { RANKS = 8 };

static double uniform(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)(*state * 2685821657736338717u >> 11) * 0x1p-53;
}

/* Ranks 0 .. 3 have kinds of ops 0 and 1, the others 1 and 2; noise of 10%, and now and then a step that takes twice as
 * long. */
static void fill(pace_figures out[RANKS], int slow, double ratio, uint64_t *random)
{
    for (int i = 0; i < RANKS; i++) {
        double noise = 0.95 + 0.1 * uniform(random);
        noise *= uniform(random) < 0.05 ? 2 : 1;
        noise *= i == slow ? ratio : 1;
        out[i] = (pace_figures){.waited = 0.5f};
        out[i].seconds[1] = (float)(2e-3 * noise);
        out[i].seconds[i < 4 ? 0 : 2] = (float)(i < 4 ? 5e-3 * noise : 1e-4 * noise);
    }
}

static int first_named(int slow, double ratio, int steps, int *named_at)
{
    pace_judge *j = pace_judge_open(RANKS);
    pace_figures shares[RANKS];
    uint64_t random = 88172645463325252u + (uint64_t)(slow + 1);
    int named = -1;
    for (int s = 1; s <= steps && named < 0; s++) {
        bool recovered;
        fill(shares, s > 40 ? slow : -1, ratio, &random);
        pace_judge_add(j, shares, sizeof *shares);
        named = pace_change(j, 1.15, &recovered);
        *named_at = s - 40;
    }
    assert_true(pace_waited(j) > 0.49 && pace_waited(j) < 0.51);
    pace_judge_close(j);
    return named;
}

TEST(a_fifth_is_named_within_the_window)
{
    for (int slow = 0; slow < RANKS; slow++) {
        int at = 0;
        assert_int_equal(first_named(slow, 1.2, 140, &at), slow);
        assert_true(at > 0 && at <= 30);
    }
}

TEST(noise_names_nobody)
{
    int at;
    assert_int_equal(first_named(-1, 1, 20000, &at), -1);
    assert_int_equal(first_named(3, 1.05, 20000, &at), -1);
}

TEST(who_recovers_is_told_once)
{
    pace_judge *j = pace_judge_open(2);
    int told = 0, again = 0;
    for (int s = 0; s < 200; s++) {
        pace_figures shares[2] = {{.seconds = {1}}, {.seconds = {s < 100 ? 1.5f : 1}}};
        bool recovered;
        pace_judge_add(j, shares, sizeof *shares);
        for (int rank; (rank = pace_change(j, 1.15, &recovered)) >= 0;) {
            assert_int_equal(rank, 1);
            told += !recovered;
            again += recovered;
        }
    }
    assert_int_equal(told, 1);
    assert_int_equal(again, 1);
    pace_judge_close(j);
}

TEST(ranks_with_nothing_in_common_are_not_compared)
{
    pace_judge *j = pace_judge_open(2);
    pace_figures shares[2] = {{.seconds = {1}}, {.seconds = {0, 9}}};
    bool recovered;
    for (int s = 0; s < 100; s++)
        pace_judge_add(j, shares, sizeof *shares);
    assert_true(pace_ratio(j, 0) == 0 && pace_ratio(j, 1) == 0);
    assert_int_equal(pace_change(j, 1.15, &recovered), -1);
    pace_judge_close(j);
}

TEST_MAIN(NULL, NULL)
