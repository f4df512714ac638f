/* Which bucket a step is played on. */

#include "engine/compile/model/tokens.h"
#include "tests/test.h"

TEST(the_lowest_bucket_with_room_is_needed)
{
    assert_int_equal(bucket_needed((const float[CAPACITY_BUCKETS]){0, 0, 0}, 3), 0);
    assert_int_equal(bucket_needed((const float[CAPACITY_BUCKETS]){5, 0, 0}, 3), 1);
    assert_int_equal(bucket_needed((const float[CAPACITY_BUCKETS]){900, 1, 0}, 3), 2);
    assert_int_equal(bucket_needed((const float[CAPACITY_BUCKETS]){900, 1, 0}, 2), 1); /* the last always has */
}

/* Up at once, down only after BUCKET_QUIET steps in a row, and then no further than these needed. */
TEST(the_next_step_stays_where_the_last_ones_had_room)
{
    bucket_state s = {0};
    bucket_after(&s, 2);
    assert_int_equal(s.at, 2);
    for (int i = 0; i < BUCKET_QUIET - 1; i++) {
        bucket_after(&s, i == 3);
        assert_int_equal(s.at, 2);
    }
    bucket_after(&s, 0);
    assert_int_equal(s.at, 1); /* one of them needed it */
    for (int i = 0; i < BUCKET_QUIET - 1; i++)
        bucket_after(&s, 0);
    bucket_after(&s, 1); /* it begins to count anew */
    for (int i = 0; i < BUCKET_QUIET; i++) {
        assert_int_equal(s.at, 1);
        bucket_after(&s, 0);
    }
    assert_int_equal(s.at, 0);
    bucket_after(&s, 1);
    assert_int_equal(s.at, 1);
}

TEST_MAIN(NULL, NULL)
