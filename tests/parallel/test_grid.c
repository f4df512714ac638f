/* Where a rank stands and with whom it shares an axis: what grid.h promises. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include "parallel/grid.h"

enum { MOST = 256 };

static const int layouts[][GRID_AXES] = {{1, 1, 1, 1}, {2, 1, 1, 2}, {3, 1, 2, 1}, {2, 3, 4, 5},
                                         {1, 2, 1, 3}, {6, 1, 2, 2}, {1, 1, 7, 1}, {2, 2, 2, 2}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static grid make(const int size[GRID_AXES], int rank)
{
    grid g;
    int ranks = size[0] * size[1] * size[2] * size[3];
    assert_int_equal(grid_make(&g, ranks, rank, size[0], size[1], 0, size[3]), STATUS_OK);
    assert_int_equal(g.size[GRID_DATA], size[2]);
    return g;
}

static void ranks_run_tensor_context_data_pipeline(void **state)
{
    (void)state;
    for (int l = 0; l < LAYOUTS; l++) {
        const int *n = layouts[l];
        int rank = 0;
        for (int p = 0; p < n[3]; p++)
            for (int d = 0; d < n[2]; d++)
                for (int c = 0; c < n[1]; c++)
                    for (int t = 0; t < n[0]; t++, rank++) {
                        grid g = make(n, rank);
                        assert_int_equal(g.at[GRID_TENSOR], t);
                        assert_int_equal(g.at[GRID_CONTEXT], c);
                        assert_int_equal(g.at[GRID_DATA], d);
                        assert_int_equal(g.at[GRID_PIPELINE], p);
                        assert_int_equal(grid_rank_at(&g, g.at), rank);
                    }
    }
}

/* Every group partitions the ranks (the tied pair: those of the first and last stage), its members agree on it, ascend, and each
 * finds itself at its index. Members differ along the group's axes only. */
static void groups_partition_the_ranks(void **state)
{
    (void)state;
    static const bool spans[GRID_GROUPS][GRID_AXES] = {
        [GRID_GROUP_TENSOR] = {1, 0, 0, 0},       [GRID_GROUP_CONTEXT] = {0, 1, 0, 0}, [GRID_GROUP_DATA] = {0, 0, 1, 0},
        [GRID_GROUP_PIPELINE] = {0, 0, 0, 1},     [GRID_GROUP_MODEL] = {1, 0, 0, 1},   [GRID_GROUP_TIED] = {0, 0, 0, 1},
        [GRID_GROUP_DATA_CONTEXT] = {0, 1, 1, 0}, [GRID_GROUP_WORLD] = {1, 1, 1, 1},
    };
    for (int l = 0; l < LAYOUTS; l++)
        for (grid_group kind = 0; kind < GRID_GROUPS; kind++) {
            grid any = make(layouts[l], 0);
            int owner[MOST], members[MOST], again[MOST];
            for (int r = 0; r < any.ranks; r++)
                owner[r] = -1;
            for (int r = 0; r < any.ranks; r++) {
                grid g = grid_of(&any, r);
                int count = grid_members(members, &g, kind), index = grid_index(&g, kind);
                assert_int_equal(count, grid_group_size(&g, kind));
                bool between = g.at[GRID_PIPELINE] > 0 && g.at[GRID_PIPELINE] < g.size[GRID_PIPELINE] - 1;
                if (kind == GRID_GROUP_TIED && between) {
                    assert_int_equal(count, 0);
                    assert_int_equal(index, -1);
                    continue;
                }
                assert_int_equal(members[index], r);
                assert_true(owner[r] == -1 || owner[r] == members[0]);
                owner[r] = members[0];
                for (int i = 0; i < count; i++) {
                    grid other = grid_of(&any, members[i]);
                    assert_true(i == 0 || members[i] > members[i - 1]);
                    assert_int_equal(grid_members(again, &other, kind), count);
                    assert_memory_equal(again, members, (size_t)count * sizeof *members);
                    for (int axis = 0; axis < GRID_AXES; axis++)
                        assert_true(spans[kind][axis] || other.at[axis] == g.at[axis]);
                }
            }
        }
}

static void neighbours_are_one_step_along_an_axis(void **state)
{
    (void)state;
    grid g = make((const int[]){2, 3, 4, 5}, ((2 * 4 + 3) * 3 + 1) * 2 + 1);
    assert_int_equal(grid_neighbour(&g, GRID_PIPELINE, 1), g.rank + 24);
    assert_int_equal(grid_neighbour(&g, GRID_PIPELINE, -2), g.rank - 48);
    assert_int_equal(grid_neighbour(&g, GRID_PIPELINE, 3), -1);
    assert_int_equal(grid_neighbour(&g, GRID_DATA, 1), -1);
    assert_int_equal(grid_neighbour(&g, GRID_DATA, -1), g.rank - 6);
    assert_int_equal(grid_neighbour(&g, GRID_TENSOR, -1), g.rank - 1);
    assert_int_equal(grid_neighbour(&g, GRID_CONTEXT, 1), g.rank + 2);
    assert_false(grid_first_stage(&g));
    assert_false(grid_last_stage(&g));
}

static void a_layout_that_does_not_multiply_says_so_in_one_line(void **state)
{
    (void)state;
    grid g;
    static const struct {
        int ranks, tensor, context, data, pipeline;
        const char *says[3];
    } bad[] = {
        {4, 3, 1, 0, 1, {"tensor 3 x pipeline 1", "are 4", "multiple of 3"}},
        {8, 2, 1, 3, 2, {"tensor 2 x pipeline 2 x data 3", "needs 12 ranks", "are 8"}},
        {1, 2, 2, 0, 2, {"tensor 2 x context 2 x pipeline 2", "by 8", "is 1"}},
        {4, 0, 1, 0, 1, {"parallel.tensor=0", "from 1 to 32768", ""}},
        {4, 2, 1, -2, 1, {"parallel.data=-2", "from 1 to 32768", ""}},
        {4, 32768, 32768, 32768, 32768, {"tensor 32768", "are 4", ""}},
        {4, 1, 1, 0, 2147483647, {"parallel.pipeline=2147483647", "from 1 to 32768", ""}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(grid_make(&g, bad[i].ranks, 0, bad[i].tensor, bad[i].context, bad[i].data, bad[i].pipeline),
                         STATUS_USAGE);
        for (int j = 0; j < 3; j++)
            assert_non_null(strstr(status_message(), bad[i].says[j]));
        assert_null(strchr(status_message(), '\n'));
    }
    assert_int_equal(grid_make(&g, 12, 11, 2, 1, 3, 2), STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_run_tensor_context_data_pipeline),
        cmocka_unit_test(groups_partition_the_ranks),
        cmocka_unit_test(neighbours_are_one_step_along_an_axis),
        cmocka_unit_test(a_layout_that_does_not_multiply_says_so_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
