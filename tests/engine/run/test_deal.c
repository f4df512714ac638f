/* Deals of a micro-batch's tokens to context ranks: each token once, as many for each rank, whole blocks, and work as
 * equal as deal.h says. */
#include <stdlib.h>
#include <string.h>

#include "engine/run/deal.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/oracle/op_case.h"
#include "tests/test.h"

static int64_t tokens_of(const deal *d)
{
    return d->samples * d->sequence;
}

/* Documents of 1 to `longest` tokens. */
static int32_t *make_documents(const deal *d, int longest, uint64_t seed)
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
static void is_whole(const int32_t *places, const deal *d)
{
    AUTO_FREE char *seen = must_calloc((unsigned long)tokens_of(d), 1);
    for (int64_t i = 0; i < tokens_of(d); i++) {
        assert_in_range(places[i], 0, tokens_of(d) - 1);
        assert_int_equal(seen[places[i]]++, 0);
        if (i % d->run)
            assert_int_equal(places[i], places[i - 1] + 1);
        else
            assert_int_equal(places[i] / d->sequence, (places[i] + d->run - 1) / d->sequence);
    }
}

TEST(halves_have_equal_work_under_a_causal_mask)
{
    for (int ranks = 2; ranks <= 8; ranks++) {
        const deal d = {.samples = 3, .sequence = 10 * ranks, .ranks = ranks, .run = 5};
        AUTO_FREE int32_t *places = must_alloc((unsigned long)tokens_of(&d) * sizeof *places);
        deal_halves(places, &d);
        is_whole(places, &d);
        assert_true(deal_imbalance(places, &d, NULL) == 1);
        assert_int_equal(places[0], 0);
        assert_int_equal(places[3 * 5], d.sequence - 5); /* rank 0's second run of the first sample */
    }
}

/* With windows the first run of a sample has less to do than others. */
TEST(a_window_makes_halves_unequal)
{
    const deal d = {.samples = 1, .sequence = 64, .ranks = 2, .run = 16, .window = 4};
    int32_t places[64];
    deal_halves(places, &d);
    assert_true(deal_imbalance(places, &d, NULL) > 1 && deal_imbalance(places, &d, NULL) < 1.1);
}

TEST(documents_are_dealt_by_their_cost)
{
    static const int longest[] = {3, 40, 500, 4000};
    for (int ranks = 2; ranks <= 4; ranks++)
        for (size_t i = 0; i < sizeof longest / sizeof *longest; i++) {
            const deal d = {.samples = 2, .sequence = 768, .ranks = ranks, .run = 16},
                       halves = {2, 768, ranks, 768 / 2 / ranks, 0};
            unsigned long bytes = (unsigned long)tokens_of(&d) * sizeof(int32_t);
            AUTO_FREE int32_t *start = make_documents(&d, longest[i], 7 * i + (uint64_t)ranks);
            AUTO_FREE int32_t *places = must_alloc(bytes), *again = must_alloc(bytes), *other = must_alloc(bytes);
            deal_documents(places, &d, start);
            deal_documents(again, &d, start);
            deal_halves(other, &halves);
            is_whole(places, &d);
            assert_memory_equal(places, again, bytes);
            assert_true(deal_imbalance(places, &d, start) <= deal_imbalance(other, &halves, start));
            assert_true(deal_imbalance(places, &d, start) < 1.02);
        }
}

/* One long document before many short ones: by halves the ranks that have its end do most of the work. */
TEST(halves_of_documents_are_unequal)
{
    const deal d = {.samples = 1, .sequence = 1024, .ranks = 4, .run = 128}, by_blocks = {1, 1024, 4, 32, 0};
    int32_t start[1024], places[1024];
    for (int i = 0; i < 1024; i++)
        start[i] = i < 600 ? 0 : i / 8 * 8;
    deal_halves(places, &d);
    assert_true(deal_imbalance(places, &d, start) > 1.5);
    deal_documents(places, &by_blocks, start);
    assert_true(deal_imbalance(places, &by_blocks, start) < 1.02);
}

/* Key by key. */
static int64_t count_unseen(const int32_t *places, const deal *d, const int32_t *start, int rank)
{
    int64_t all = tokens_of(d), each = all / d->ranks, unseen = 0;
    for (int64_t key = 0; key < all; key++) {
        bool seen = false;
        for (int64_t i = rank * each; i < (rank + 1) * each && !seen; i++) {
            int64_t query = places[i], sample = query - query % d->sequence;
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
            deal d = {.samples = 2, .sequence = 96, .ranks = 3, .run = masked ? 8 : 16, .window = windows[k]};
            AUTO_FREE int32_t *start = make_documents(&d, 40, 9), *places = must_alloc(192 * sizeof *places);
            if (masked)
                deal_documents(places, &d, start);
            else
                deal_halves(places, &d);
            for (int rank = 0; rank < d.ranks; rank++)
                assert_int_equal(deal_unseen(places, &d, masked ? start : NULL, rank),
                                 count_unseen(places, &d, masked ? start : NULL, rank));
        }
}

TEST_MAIN(NULL, NULL)
