/* Deals of a micro-batch's tokens to context ranks: each token once, as many for each rank, whole blocks, and work as
 * equal as shard.h says. */
#include <stdlib.h>
#include <string.h>

#include "engine/run/shard.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/oracle/op_case.h"
#include "tests/test.h"

static int64_t tokens_of(const shard_shape *d)
{
    return d->samples * d->sequence;
}

/* Documents of 1 to `longest` tokens. */
static int32_t *make_documents(const shard_shape *d, int longest, uint64_t seed)
{
    test_random random = {seed};
    int32_t *start = must_alloc((unsigned long)tokens_of(d) * sizeof *start);
    for (int64_t i = 0, left = 0, first = 0; i < tokens_of(d); i++, left--) {
        if (i % d->sequence == 0 || left <= 0) {
            first = i % d->sequence;
            left = 1 + (int64_t)(test_uniform(&random) * longest);
        }
        start[i] = (int32_t)first;
    }
    return start;
}

/* Every token once, and each rank's in blocks of neighbours. */
static void is_whole(const int32_t *token_positions, const shard_shape *d)
{
    AUTO_FREE char *seen = must_calloc((unsigned long)tokens_of(d), 1);
    for (int64_t i = 0; i < tokens_of(d); i++) {
        assert_in_range(token_positions[i], 0, tokens_of(d) - 1);
        assert_int_equal(seen[token_positions[i]]++, 0);
        if (i % d->run)
            assert_int_equal(token_positions[i], token_positions[i - 1] + 1);
        else
            assert_int_equal(token_positions[i] / d->sequence, (token_positions[i] + d->run - 1) / d->sequence);
    }
}

TEST(zigzag_shards_have_equal_work_under_a_causal_mask)
{
    for (int ranks = 2; ranks <= 8; ranks++) {
        const shard_shape d = {.samples = 3, .sequence = 10 * ranks, .ranks = ranks, .run = 5};
        AUTO_FREE int32_t *token_positions = must_alloc((unsigned long)tokens_of(&d) * sizeof *token_positions);
        shard_zigzag(token_positions, &d);
        is_whole(token_positions, &d);
        assert_true(shard_imbalance(token_positions, &d, NULL) == 1);
        assert_int_equal(token_positions[0], 0);
        assert_int_equal(token_positions[3 * 5], d.sequence - 5); /* rank 0's second run of the first sample */
    }
}

/* With windows the first run of a sample has less to do than others. */
TEST(a_window_makes_zigzag_shards_unequal)
{
    const shard_shape d = {.samples = 1, .sequence = 64, .ranks = 2, .run = 16, .window = 4};
    int32_t token_positions[64];
    shard_zigzag(token_positions, &d);
    assert_true(shard_imbalance(token_positions, &d, NULL) > 1 && shard_imbalance(token_positions, &d, NULL) < 1.1);
}

TEST(documents_are_dealt_by_their_cost)
{
    static const int longest[] = {3, 40, 500, 4000};
    for (int ranks = 2; ranks <= 4; ranks++)
        for (size_t i = 0; i < sizeof longest / sizeof *longest; i++) {
            const shard_shape d = {.samples = 2, .sequence = 768, .ranks = ranks, .run = 16},
                              zigzag = {2, 768, ranks, 768 / 2 / ranks, 0};
            unsigned long bytes = (unsigned long)tokens_of(&d) * sizeof(int32_t);
            AUTO_FREE int32_t *start = make_documents(&d, longest[i], 7 * i + (uint64_t)ranks);
            AUTO_FREE int32_t *token_positions = must_alloc(bytes), *again = must_alloc(bytes),
                              *other = must_alloc(bytes);
            shard_documents(token_positions, &d, start);
            shard_documents(again, &d, start);
            shard_zigzag(other, &zigzag);
            is_whole(token_positions, &d);
            assert_memory_equal(token_positions, again, bytes);
            assert_true(shard_imbalance(token_positions, &d, start) <= shard_imbalance(other, &zigzag, start));
            assert_true(shard_imbalance(token_positions, &d, start) < 1.02);
        }
}

/* One long document before many short ones: by halves the ranks that have its end do most of the work. */
TEST(zigzag_shards_of_documents_are_unequal)
{
    const shard_shape d = {.samples = 1, .sequence = 1024, .ranks = 4, .run = 128}, by_blocks = {1, 1024, 4, 32, 0};
    int32_t start[1024], token_positions[1024];
    for (int i = 0; i < 1024; i++)
        start[i] = i < 600 ? 0 : i / 8 * 8;
    shard_zigzag(token_positions, &d);
    assert_true(shard_imbalance(token_positions, &d, start) > 1.5);
    shard_documents(token_positions, &by_blocks, start);
    assert_true(shard_imbalance(token_positions, &by_blocks, start) < 1.02);
}

/* Key by key. */
static int64_t count_unseen(const int32_t *token_positions, const shard_shape *d, const int32_t *start, int rank)
{
    int64_t all = tokens_of(d), each = all / d->ranks, unseen = 0;
    for (int64_t key = 0; key < all; key++) {
        bool seen = false;
        for (int64_t i = rank * each; i < (rank + 1) * each && !seen; i++) {
            int64_t query = token_positions[i], sample = query - query % d->sequence;
            seen = key >= sample + (start ? start[query] : 0) && key <= query &&
                   (d->window == 0 || query - key < d->window);
        }
        unseen += !seen;
    }
    return unseen;
}

TEST(unseen_keys_are_those_of_no_query)
{
    static const int windows[] = {0, 1, 5, 24, 100};
    for (int k = 0; k < 5; k++)
        for (int masked = 0; masked < 2; masked++) {
            shard_shape d = {.samples = 2, .sequence = 96, .ranks = 3, .run = masked ? 8 : 16, .window = windows[k]};
            AUTO_FREE int32_t *start = make_documents(&d, 40, 9),
                              *token_positions = must_alloc(192 * sizeof *token_positions);
            if (masked)
                shard_documents(token_positions, &d, start);
            else
                shard_zigzag(token_positions, &d);
            for (int rank = 0; rank < d.ranks; rank++)
                assert_int_equal(shard_unseen(token_positions, &d, masked ? start : NULL, rank),
                                 count_unseen(token_positions, &d, masked ? start : NULL, rank));
        }
}

TEST_MAIN(NULL, NULL)
