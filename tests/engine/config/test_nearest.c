/* "Did you mean": distances by hand, and words that are too far off to be meant. */
#include <string.h>

#include "engine/config/nearest.h"
#include "tests/test.h"

TEST(distances_count_single_slips)
{
    assert_int_equal(nearest_distance("steps", "steps"), 0);
    assert_int_equal(nearest_distance("steps", "step"), 1);
    assert_int_equal(nearest_distance("stps", "steps"), 1);
    assert_int_equal(nearest_distance("stesp", "steps"), 1);
    assert_int_equal(nearest_distance("stexs", "steps"), 1);
    assert_int_equal(nearest_distance("kitten", "sitting"), 3);
    assert_int_equal(nearest_distance("", "abc"), 3);
    assert_int_equal(nearest_distance("abc", ""), 3);
}

TEST(long_words_are_cut)
{
    char a[1000], b[1000];
    memset(a, 'a', sizeof a - 1);
    memset(b, 'b', sizeof b - 1);
    a[999] = b[999] = 0;
    assert_int_equal(nearest_distance(a, b), 63);
    assert_int_equal(nearest_distance(a, a), 0);
}

TEST(only_what_was_probably_meant_is_offered)
{
    nearest n = {.wanted = "trian"};
    assert_null(nearest_word(&n));
    nearest_offer(&n, "plan");
    nearest_offer(&n, "train");
    nearest_offer(&n, "tokenize");
    assert_string_equal(nearest_word(&n), "train");
    n = (nearest){.wanted = "xyz"};
    nearest_offer(&n, "lr");
    nearest_offer(&n, "eval");
    assert_null(nearest_word(&n));
}

TEST_MAIN(NULL, NULL)
