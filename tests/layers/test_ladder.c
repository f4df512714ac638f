/* The rungs of programs for experts that ranks divide. */

#include "layers/ladder.h"
#include "tests/test.h"

static int64_t room_of(const ladder_shape *s, int rung)
{
    const ladder_waves w = ladder_waves_of(s, rung);
    return ladder_room(&w);
}

/* The most rows that the tokens of a block can choose of one rank's experts. */
static int64_t worst_of(const ladder_shape *s)
{
    int64_t held = (s->experts + s->ranks - 1) / s->ranks;
    return s->tokens * (s->active < held ? s->active : held);
}

TEST(one_rank_has_room_for_all_in_one_wave)
{
    const ladder_shape s = {1000, 1, 64, 8, 1.25, 2, false};
    assert_int_equal(ladder_rungs(&s), 1);
    const ladder_waves w = ladder_waves_of(&s, 0);
    assert_int_equal(w.rows, 8000);
    assert_int_equal(w.count, 0);
}

/* DeepSeek-V3's router on 32 ranks, and Qwen3-30B-A3B's on 16: the last rung has 26 and 13 waves. */
TEST(the_last_rung_has_room_for_the_worst_routing)
{
    const ladder_shape shapes[] = {{32 * 4096, 32, 256, 8, 1.25, 2, false}, {16 * 4096, 16, 128, 8, 1.25, 2, false}};
    const int waves[] = {26, 13};
    for (int i = 0; i < 2; i++) {
        const ladder_shape *s = &shapes[i];
        const ladder_waves first = ladder_waves_of(s, 0), last = ladder_waves_of(s, LADDER_RUNGS - 1);
        assert_int_equal(ladder_rungs(s), LADDER_RUNGS);
        assert_int_equal(first.rows, s->tokens * 8 / s->ranks * 5 / 4);
        assert_int_equal(first.count, 2);
        assert_int_equal(4 * first.behind, first.rows);
        assert_int_equal(last.rows, first.rows);
        assert_int_equal(1 + last.count, waves[i]);
        assert_true(ladder_room(&last) >= worst_of(s));
    }
}

/* Where rows may be dropped there is the first rung alone, with its waves. */
TEST(dropping_leaves_the_first_rung)
{
    ladder_shape s = {32 * 4096, 32, 256, 8, 1.25, 2, false};
    const int64_t room = room_of(&s, 0);
    s.drop = true;
    assert_int_equal(ladder_rungs(&s), 1);
    assert_int_equal(room_of(&s, 0), room);
    assert_int_equal(room_of(&s, LADDER_RUNGS - 1), room);
}

/* Each rung has more room than the one below, all but the last too little for the worst, and waves begin where
 * assignments can be told apart: behind a multiple of their rows. */
TEST(rungs_ascend_whatever_the_sizes)
{
    static const double capacities[] = {0.01, 0.5, 1, 1.25, 3, 100};
    int most = 0;
    for (int ranks = 2; ranks <= 9; ranks++)
        for (int experts = ranks; experts <= 24; experts += 5)
            for (int active = 1; active <= 4 && active <= experts; active++)
                for (int c = 0; c < 6; c++)
                    for (int spill = 0; spill <= 3; spill++) {
                        const ladder_shape s = {ranks * 7, ranks, experts, active, capacities[c], spill, false};
                        const int rungs = ladder_rungs(&s);
                        most = rungs > most ? rungs : most;
                        assert_in_range(rungs, 1, LADDER_RUNGS);
                        for (int i = 0; i < rungs; i++) {
                            const ladder_waves w = ladder_waves_of(&s, i);
                            assert_int_equal(w.rows % w.behind, 0);
                            assert_int_equal(room_of(&s, i) >= worst_of(&s), i == rungs - 1);
                            if (i > 0)
                                assert_true(room_of(&s, i) > room_of(&s, i - 1));
                        }
                        assert_int_equal(room_of(&s, rungs), room_of(&s, rungs - 1));
                    }
    assert_int_equal(most, LADDER_RUNGS);
}

TEST_MAIN(NULL, NULL)
