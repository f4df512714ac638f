/* Dividing layers over pipeline chunks: what partition.h promises. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "parallel/schedule/partition.h"
#include "tests/test.h"

enum { MOST = 16 };

/* Every division, tried one by one. */
typedef struct trial {
    const partition_costs *costs;
    int layers, chunks;
    int now[MOST], best[MOST];
    double dearest, squares; /* of the best */
} trial;

static double squares_of(const trial *t)
{
    double sum = 0;
    for (int c = 0, l = 0; c < t->chunks; c++) {
        double cost = (c == 0 ? t->costs->first : 0) + (c == t->chunks - 1 ? t->costs->last : 0);
        for (int i = 0; i < t->now[c]; i++, l++)
            cost += t->costs->layers ? t->costs->layers[l] : 1;
        sum += cost * cost;
    }
    return sum;
}

/* The cost of the chunk that costs most. */
static double dearest_of(const int *counts, const partition_costs *costs, int chunks)
{
    double dearest = 0;
    for (int c = 0, l = 0; c < chunks; c++) {
        double cost = (c == 0 ? costs->first : 0) + (c == chunks - 1 ? costs->last : 0);
        for (int i = 0; i < counts[c]; i++, l++)
            cost += costs->layers ? costs->layers[l] : 1;
        dearest = fmax(dearest, cost);
    }
    return dearest;
}

static void try_all(trial *t, int chunk, int left)
{
    if (chunk == t->chunks - 1) {
        t->now[chunk] = left;
        double dearest = dearest_of(t->now, t->costs, t->chunks), squares = squares_of(t);
        bool better = dearest < t->dearest - 1e-9 || (dearest < t->dearest + 1e-9 && squares < t->squares - 1e-7);
        if (better) { /* earlier tries have more layers in the earlier chunks, and win ties */
            t->dearest = dearest;
            t->squares = squares;
            memcpy(t->best, t->now, sizeof t->best);
        }
        return;
    }
    for (int n = left - (t->chunks - 1 - chunk); n >= 1; n--) {
        t->now[chunk] = n;
        try_all(t, chunk + 1, left - n);
    }
}

TEST(automatic_division_is_the_best_of_all)
{
    unsigned random = 1;
    int compared = 0;
    for (int layers = 1; layers <= 11; layers++)
        for (int chunks = 1; chunks <= layers && chunks <= 6; chunks++)
            for (int round = 0; round < 8; round++, compared++) {
                double each[MOST], ends[2];
                for (int l = 0; l < layers + 2; l++) {
                    random = random * 1664525u + 1013904223u;
                    /* small whole numbers, so that ties abound, in half of the rounds */
                    double cost = round % 2 ? 1 + (random >> 16) % 3 : (random >> 8) * 1e-6;
                    *(l < layers ? &each[l] : &ends[l - layers]) = cost;
                }
                partition_costs costs = {round < 2 ? NULL : each, ends[0], ends[1]};
                trial t = {
                    .costs = &costs, .layers = layers, .chunks = chunks, .dearest = INFINITY, .squares = INFINITY};
                int counts[MOST];
                try_all(&t, 0, layers);
                assert_int_equal(partition_automatic(counts, &costs, layers, chunks), STATUS_OK);
                assert_true(fabs(dearest_of(counts, &costs, chunks) - t.dearest) <= 1e-9 * t.dearest);
                for (int c = 0; c < chunks; c++)
                    assert_int_equal(counts[c], t.best[c]);
            }
    assert_int_equal(compared, 51 * 8);
}

static void must_be(const int *counts, const int *expected, int chunks)
{
    for (int c = 0; c < chunks; c++)
        assert_int_equal(counts[c], expected[c]);
}

TEST(divisions_known_by_heart)
{
    int counts[MOST];
    partition_costs plain = {NULL, 0, 0};
    assert_int_equal(partition_automatic(counts, &plain, 7, 3), STATUS_OK);
    must_be(counts, (int[]){3, 2, 2}, 3);
    /* the head costs two layers, 14 in all: two chunks of 4, two of 3, the dearer ones first */
    partition_costs head = {NULL, 0, 2};
    assert_int_equal(partition_automatic(counts, &head, 12, 4), STATUS_OK);
    must_be(counts, (int[]){4, 4, 3, 1}, 4);
    /* 126 layers on 16 stages, embedding and head worth one layer each: the first and the last hold one fewer */
    partition_costs large = {NULL, 1, 1};
    assert_int_equal(partition_automatic(counts, &large, 126, 16), STATUS_OK);
    must_be(counts, (int[]){7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7}, 16);
}

TEST(too_few_layers_are_refused)
{
    int counts[MOST] = {77};
    partition_costs plain = {NULL, 0, 0};
    assert_int_equal(partition_automatic(counts, &plain, 3, 6), STATUS_USAGE);
    assert_int_equal(counts[0], 77);
    assert_string_equal(status_message(),
                        "3 layers cannot be divided over 6 pipeline chunks (stages x virtual stages): each but the "
                        "first and the last needs at least one layer");
    assert_int_equal(partition_automatic(counts, &plain, 3, 4), STATUS_OK);
    must_be(counts, (int[]){1, 1, 1, 0}, 4);
    assert_int_equal(partition_automatic(counts, &plain, 3, 5), STATUS_OK);
    must_be(counts, (int[]){0, 1, 1, 1, 0}, 5);
}

TEST(given_divisions_are_kept_or_refused_in_one_line)
{
    int counts[MOST] = {77};
    assert_int_equal(partition_given(counts, (int[]){1, 2, 1, 2}, 4, 6, 2, 2), STATUS_OK);
    must_be(counts, (int[]){1, 2, 1, 2}, 4);
    counts[0] = 77;
    assert_int_equal(partition_given(counts, (int[]){3, 3}, 2, 6, 2, 2), STATUS_USAGE);
    assert_string_equal(status_message(),
                        "parallel.layers_per_stage has 2 entries, but there are 4 chunks (2 stages x 2 "
                        "virtual stages): give one number for each");
    assert_int_equal(partition_given(counts, (int[]){3, 0, 3}, 3, 6, 3, 1), STATUS_USAGE);
    assert_string_equal(
        status_message(),
        "parallel.layers_per_stage: entry 2 is 0: each chunk but the first and the last needs at least one "
        "layer");
    assert_int_equal(partition_given(counts, (int[]){0, 6, 0}, 3, 6, 3, 1), STATUS_OK);
    must_be(counts, (int[]){0, 6, 0}, 3);
    counts[0] = 77;
    assert_int_equal(partition_given(counts, (int[]){3, 4}, 2, 6, 2, 1), STATUS_USAGE);
    assert_string_equal(status_message(), "parallel.layers_per_stage sums to 7, but the model has 6 layers");
    assert_int_equal(counts[0], 77);
}

TEST_MAIN(NULL, NULL)
