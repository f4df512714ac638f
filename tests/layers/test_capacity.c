/* The buckets of programs for experts that ranks divide. */

#include "layers/capacity.h"
#include "tests/test.h"

static int64_t room_of(const capacity_shape *s, int bucket)
{
    const capacity_passes w = capacity_passes_of(s, bucket);
    return capacity_rows(&w);
}

/* The most rows that the tokens of a block can choose of one rank's experts. */
static int64_t worst_of(const capacity_shape *s)
{
    int64_t held = (s->experts + s->ranks - 1) / s->ranks;
    return s->tokens * (s->active < held ? s->active : held);
}

TEST(one_rank_has_room_for_all_in_one_wave)
{
    const capacity_shape s = {1000, 1, 64, 8, 1.25, 2, false};
    assert_int_equal(capacity_buckets(&s), 1);
    const capacity_passes w = capacity_passes_of(&s, 0);
    assert_int_equal(w.rows, 8000);
    assert_int_equal(w.count, 0);
}

/* DeepSeek-V3's router on 32 ranks, and Qwen3-30B-A3B's on 16: the last bucket has 26 and 13 passes. */
TEST(the_last_bucket_has_room_for_the_worst_routing)
{
    const capacity_shape shapes[] = {{32 * 4096, 32, 256, 8, 1.25, 2, false}, {16 * 4096, 16, 128, 8, 1.25, 2, false}};
    const int passes[] = {26, 13};
    for (int i = 0; i < 2; i++) {
        const capacity_shape *s = &shapes[i];
        const capacity_passes first = capacity_passes_of(s, 0), last = capacity_passes_of(s, CAPACITY_BUCKETS - 1);
        assert_int_equal(capacity_buckets(s), CAPACITY_BUCKETS);
        assert_int_equal(first.rows, s->tokens * 8 / s->ranks * 5 / 4);
        assert_int_equal(first.count, 2);
        assert_int_equal(4 * first.overflow, first.rows);
        assert_int_equal(last.rows, first.rows);
        assert_int_equal(1 + last.count, passes[i]);
        assert_true(capacity_rows(&last) >= worst_of(s));
    }
}

/* Where rows may be dropped there is the first bucket alone, with its passes. */
TEST(dropping_leaves_the_first_bucket)
{
    capacity_shape s = {32 * 4096, 32, 256, 8, 1.25, 2, false};
    const int64_t room = room_of(&s, 0);
    s.drop = true;
    assert_int_equal(capacity_buckets(&s), 1);
    assert_int_equal(room_of(&s, 0), room);
    assert_int_equal(room_of(&s, CAPACITY_BUCKETS - 1), room);
}

/* Each bucket has more room than the one below, all but the last too little for the worst, and passes begin where
 * assignments can be told apart: overflow a multiple of their rows. */
TEST(buckets_ascend_whatever_the_sizes)
{
    static const double capacities[] = {0.01, 0.5, 1, 1.25, 3, 100};
    int most = 0;
    for (int ranks = 2; ranks <= 9; ranks++)
        for (int experts = ranks; experts <= 24; experts += 5)
            for (int active = 1; active <= 4 && active <= experts; active++)
                for (int c = 0; c < 6; c++)
                    for (int spill = 0; spill <= 3; spill++) {
                        const capacity_shape s = {ranks * 7, ranks, experts, active, capacities[c], spill, false};
                        const int buckets = capacity_buckets(&s);
                        most = buckets > most ? buckets : most;
                        assert_in_range(buckets, 1, CAPACITY_BUCKETS);
                        for (int i = 0; i < buckets; i++) {
                            const capacity_passes w = capacity_passes_of(&s, i);
                            assert_int_equal(w.rows % w.overflow, 0);
                            assert_int_equal(room_of(&s, i) >= worst_of(&s), i == buckets - 1);
                            if (i > 0)
                                assert_true(room_of(&s, i) > room_of(&s, i - 1));
                        }
                        assert_int_equal(room_of(&s, buckets), room_of(&s, buckets - 1));
                    }
    assert_int_equal(most, CAPACITY_BUCKETS);
}

TEST_MAIN(NULL, NULL)
