/* Which coordinates a rank has and with whom it shares an axis: what grid.h promises. */
#include <string.h>

#include "parallel/comm/grid.h"
#include "tests/test.h"

enum { MOST = 256 };

static const int layouts[][GRID_AXES] = {{1, 1, 1, 1}, {2, 1, 1, 2}, {3, 1, 2, 1}, {2, 3, 4, 5},
                                         {1, 2, 1, 3}, {6, 1, 2, 2}, {1, 1, 7, 1}, {2, 2, 2, 2}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };
/* Ranks that divide the experts, which divide tensor x context x data. */
static const int expert_blocks[LAYOUTS] = {1, 2, 3, 6, 2, 4, 7, 4};

static grid make(const int size[GRID_AXES], int rank)
{
    grid g;
    int ranks = size[0] * size[1] * size[2] * size[3];
    assert_int_equal(grid_make(&g, ranks, rank, GRID_SIZES(size[0], size[1], 0, size[3])), STATUS_OK);
    assert_int_equal(g.size[GRID_DATA], size[2]);
    return g;
}

TEST(ranks_run_tensor_context_data_pipeline)
{
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

/* Every axis partitions the ranks (the ends: those of the first and last stage), the members agree on their group,
 * ascend, and each finds itself at its index. Members differ in the coordinates that the axis spans only. */
TEST(axes_partition_the_ranks)
{
    for (int l = 0; l < LAYOUTS; l++)
        for (axis a = 0; a < AXIS_COUNT; a++) {
            grid any = make(layouts[l], 0);
            any.block[AXIS_KV] = layouts[l][0] % 2 ? 1 : 2;
            any.block[AXIS_EXPERT] = expert_blocks[l];
            int owner[MOST], members[MOST], again[MOST];
            for (int r = 0; r < any.ranks; r++)
                owner[r] = -1;
            for (int r = 0; r < any.ranks; r++) {
                grid g = grid_for_rank(&any, r);
                int count = grid_members(members, &g, a), index = grid_index(&g, a);
                assert_int_equal(count, grid_group_size(&g, a));
                bool between = g.at[GRID_PIPELINE] > 0 && g.at[GRID_PIPELINE] < g.size[GRID_PIPELINE] - 1;
                if (axis_rows[a].rule == AXIS_ENDS && between) {
                    assert_int_equal(count, 0);
                    assert_int_equal(index, -1);
                    continue;
                }
                assert_int_equal(members[index], r);
                assert_true(owner[r] == -1 || owner[r] == members[0]);
                owner[r] = members[0];
                assert_int_equal(members[0] / grid_span(&g, a), members[count - 1] / grid_span(&g, a));
                for (int i = 0; i < count; i++) {
                    grid other = grid_for_rank(&any, members[i]);
                    assert_true(i == 0 || members[i] > members[i - 1]);
                    assert_int_equal(grid_members(again, &other, a), count);
                    assert_memory_equal(again, members, (size_t)count * sizeof *members);
                    for (int k = 0; k < GRID_AXES; k++)
                        assert_true(axis_spans(a, k) || other.at[k] == g.at[k]);
                }
            }
        }
}

/* tensor 2 x context 2 x data 3 x pipeline 3, seen from rank 17: tensor 1, context 0, data 1, pipeline 1 */
TEST(the_table_says_who_is_where)
{
    static const struct {
        axis a;
        int count, member[6], span;
    } wanted[] = {
        {AXIS_TENSOR, 2, {16, 17}, 2},
        {AXIS_CONTEXT, 2, {17, 19}, 4},
        {AXIS_SAMPLES, 3, {13, 17, 21}, 12},
        {AXIS_GRADIENT, 6, {13, 15, 17, 19, 21, 23}, 12},
        {AXIS_PIPELINE, 3, {5, 17, 29}, 36},
        {AXIS_TIE, 0, {0}, 36},
        {AXIS_KV, 2, {16, 17}, 2},
        {AXIS_EXPERT, 4, {16, 17, 18, 19}, 4},
        {AXIS_EXPERT_DATA, 3, {13, 17, 21}, 12},
    };
    grid g = make((const int[]){2, 2, 3, 3}, 17);
    g.block[AXIS_KV] = 2;
    g.block[AXIS_EXPERT] = 4;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        int members[MOST];
        assert_int_equal(grid_members(members, &g, wanted[i].a), wanted[i].count);
        assert_memory_equal(members, wanted[i].member, (size_t)wanted[i].count * sizeof *members);
        assert_int_equal(grid_span(&g, wanted[i].a), wanted[i].span);
    }
    assert_int_equal(grid_group_size(&g, AXIS_GRID), 36);
    grid last = grid_for_rank(&g, 35);
    assert_int_equal(grid_index(&last, AXIS_TIE), 1);
    assert_int_equal(grid_member(&last, AXIS_TIE, 0), 11);
}

/* Whole experts, in order, on the ranks of a block; over all blocks each has one holder in each, at the same place.
 * With blocks of one rank all hold the same, as of a dense model; with tensor ranks of their own they are other ranks
 * than those of AXIS_GRADIENT. */
TEST(expert_data_ranks_are_strided)
{
    for (int l = 0; l < LAYOUTS; l++) {
        grid any = make(layouts[l], 0);
        int stage = any.ranks / any.size[GRID_PIPELINE], block = expert_blocks[l];
        for (int alone = 0; alone < 2; alone++)
            for (int r = 0; r < any.ranks; r++) {
                grid g = grid_for_rank(&any, r);
                int members[MOST], size = alone ? 1 : block;
                g.block[AXIS_EXPERT] = size;
                assert_int_equal(grid_group_size(&g, AXIS_EXPERT), size);
                assert_int_equal(grid_members(members, &g, AXIS_EXPERT_DATA), stage / size);
                assert_int_equal(grid_index(&g, AXIS_EXPERT_DATA), r % stage / size);
                for (int i = 0; i < stage / size; i++) {
                    grid other = grid_for_rank(&g, members[i]);
                    assert_int_equal(members[i], r - r % stage + r % size + i * size);
                    assert_int_equal(grid_index(&other, AXIS_EXPERT), grid_index(&g, AXIS_EXPERT));
                }
            }
    }
}

/* A group's slots are those in which it has several ranks: of its coordinates, or its own. */
TEST(groups_say_where_placements_are)
{
    grid g = make((const int[]){2, 1, 3, 1}, 3);
    g.block[AXIS_EXPERT] = 3;
    const axis_group data = grid_group(&g, AXIS_GRADIENT), context = grid_group(&g, AXIS_CONTEXT),
                     holders = grid_group(&g, AXIS_EXPERT_DATA), kv = grid_group(&g, AXIS_KV);
    assert_true(data.ranks == 3 && data.rank == 1 && data.slots == 1u << AXIS_COORDINATE_DATA);
    assert_true(context.ranks == 1 && context.rank == 0 && context.slots == 0);
    assert_true(holders.ranks == 2 && holders.rank == 1 && holders.slots == 1u << AXIS_SLOT_EXPERT_DATA);
    assert_true(kv.ranks == 1 && kv.slots == 0);
    g = make((const int[]){1, 1, 1, 3}, 1);
    assert_true(grid_group(&g, AXIS_TIE).ranks == 0 && grid_group(&g, AXIS_TIE).rank == -1);
    /* no two axes have a slot in common but by their coordinates, and every slot has a name */
    unsigned used = 0;
    for (axis a = 0; a < AXIS_COUNT; a++) {
        unsigned own = axis_slots(a) >> AXIS_COORDINATES << AXIS_COORDINATES;
        assert_true((own & used) == 0 && (own == 0) == (axis_rows[a].rule == AXIS_WHOLE));
        used |= own;
        for (int slot = AXIS_COORDINATES; slot < AXIS_SLOTS; slot++)
            if (own >> slot & 1)
                assert_string_equal(axis_slot_name(slot), axis_name(a));
    }
    assert_int_equal(used, (1u << AXIS_SLOTS) - (1u << AXIS_COORDINATES));
    assert_string_equal(axis_slot_name(AXIS_COORDINATE_DATA), "data");
}

/* Context ranks see the same samples, and their gradients are sums: other ranks answer the two questions. */
TEST(context_ranks_sum_gradients_and_divide_no_samples)
{
    grid any = make((const int[]){1, 2, 2, 1}, 0);
    static const int sample[] = {0, 0, 1, 1}, gradient[] = {0, 1, 2, 3};
    for (int r = 0; r < 4; r++) {
        grid g = grid_for_rank(&any, r);
        assert_int_equal(grid_group_size(&g, AXIS_SAMPLES), 2);
        assert_int_equal(grid_index(&g, AXIS_SAMPLES), sample[r]);
        assert_int_equal(grid_group_size(&g, AXIS_GRADIENT), 4);
        assert_int_equal(grid_index(&g, AXIS_GRADIENT), gradient[r]);
    }
}

/* What the rows say of one another: a set of samples or of gradients is that of the coordinates' columns. */
TEST(rows_agree_with_the_coordinates)
{
    for (int i = 0; i < AXIS_COORDINATES; i++) {
        assert_int_equal(axis_spans(AXIS_SAMPLES, i), axis_coordinates[i].divides == AXIS_DIVIDES_SAMPLES);
        assert_int_equal(axis_spans(AXIS_GRADIENT, i), axis_coordinates[i].sums);
        assert_true(axis_spans(AXIS_GRID, i));
        /* who sees other tokens with the same weights, adds gradients */
        bool tokens = axis_coordinates[i].divides == AXIS_DIVIDES_TOKENS;
        assert_int_equal(axis_coordinates[i].sums, tokens || axis_coordinates[i].divides == AXIS_DIVIDES_SAMPLES);
    }
    assert_true(axis_spans(AXIS_GRADIENT, GRID_CONTEXT) && !axis_spans(AXIS_SAMPLES, GRID_CONTEXT));
    assert_int_equal(axis_rows[AXIS_GRADIENT].gradients, AXIS_SUMS_REPLICAS);
    assert_false(axis_has_messages(AXIS_SAMPLES));
    for (axis a = 0; a < AXIS_COUNT; a++)
        for (axis b = 0; b < a; b++)
            assert_string_not_equal(axis_name(a), axis_name(b));
}

TEST(a_layout_that_does_not_multiply_says_so_in_one_line)
{
    grid g;
    static const struct {
        int ranks, tensor, context, data, pipeline;
        const char *says[3];
    } bad[] = {
        {4, 3, 1, 0, 1, {"tensor 3 x pipeline 1", "4 ranks cannot", "multiple of 3"}},
        {8, 2, 1, 3, 2, {"parallel.data 3 x tensor 2 x pipeline 2", "is 12 ranks", "8 were started"}},
        {1, 2, 2, 0, 2, {"tensor 2 x context 2 x pipeline 2", "multiple of 8", "1 rank cannot"}},
        {4, 0, 1, 0, 1, {"parallel.tensor=0", "from 1 to 32768", ""}},
        {4, 2, 1, -2, 1, {"parallel.data=-2", "from 1 to 32768", ""}},
        {4, 32768, 32768, 32768, 32768, {"tensor 32768", "4 ranks", ""}},
        {4, 1, 1, 0, 2147483647, {"parallel.pipeline=2147483647", "from 1 to 32768", ""}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(
            grid_make(&g, bad[i].ranks, 0, GRID_SIZES(bad[i].tensor, bad[i].context, bad[i].data, bad[i].pipeline)),
            STATUS_USAGE);
        for (int j = 0; j < 3; j++)
            assert_non_null(strstr(status_message(), bad[i].says[j]));
        assert_null(strchr(status_message(), '\n'));
    }
    assert_int_equal(grid_make(&g, 12, 11, GRID_SIZES(2, 1, 3, 2)), STATUS_OK);
}

/* A context axis of one rank goes without saying, and is said as soon as it has more. */
TEST(sizes_are_told_in_words)
{
    char words[GRID_WORDS];
    const int *plain = GRID_SIZES(2, 1, 4, 1), *context = GRID_SIZES(2, 3, 0, 1);
    const char *const note[GRID_AXES] = {[GRID_DATA] = " (ZeRO 1)"};
    grid_words(words, plain, grid_shown(plain), " x ", note);
    assert_string_equal(words, "tensor 2 x data 4 (ZeRO 1) x pipeline 1");
    grid_words(words, context, grid_shown(context) & ~(1u << GRID_DATA), ", ", NULL);
    assert_string_equal(words, "tensor 2, context 3, pipeline 1");
    assert_int_equal(grid_ranks_of(plain), 8);
    assert_int_equal(grid_ranks_of(context), 6);
    int none[GRID_AXES];
    grid_single(none);
    assert_int_equal(grid_ranks_of(none), 1);
}

/* Of the ranks that read the same samples one leads, whatever they divide among them; of a pipeline's the first. */
TEST(one_rank_leads)
{
    grid g;
    assert_int_equal(grid_make(&g, 36, 0, GRID_SIZES(2, 3, 2, 3)), STATUS_OK);
    for (int rank = 0; rank < g.ranks; rank++) {
        grid mine = grid_for_rank(&g, rank);
        assert_int_equal(grid_is_first(&mine, AXIS_SAMPLES), rank == 0 || rank == 6);
        assert_int_equal(grid_is_first(&mine, AXIS_PIPELINE), rank % 12 == 0);
    }
}

TEST_MAIN(NULL, NULL)
