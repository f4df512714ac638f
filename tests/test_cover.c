/* Rings: the covering share of a table holds each of its words, and rest and check make the whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cover.h"
#include "tests/jobs/layouts.h"
#include "tests/test.h"

enum { ROWS = 60 };

/* Rows of four facts with 3, 4, 5 and 2 values; one row has a word of its own. */
static void make_table(char *facts[ROWS])
{
    for (int i = 0; i < ROWS; i++)
        facts[i] =
            must_format("a=%d b=%d c=%d d=%d%s", i % 3, i / 3 % 4, i / 12 % 5, i * 7 % 2, i == 37 ? " alone" : "");
}

static void free_table(char *facts[ROWS])
{
    for (int i = 0; i < ROWS; i++)
        free(facts[i]);
}

/* `text` has `word`, whole. */
static bool has_word(const char *text, const char *word, size_t length)
{
    for (const char *at = text; (at = strstr(at, word)); at += length)
        if ((at == text || at[-1] == ' ') && (at[length] == 0 || at[length] == ' '))
            return true;
    return false;
}

/* Words of all rows that no chosen row has. */
static int missing_words(char *facts[ROWS], const bool *chosen)
{
    int missing = 0;
    for (int i = 0; i < ROWS; i++) {
        char *copy = must_strdup(facts[i]), *rest = copy;
        for (char *word; (word = strtok_r(rest, " ", &rest));) {
            bool found = false;
            for (int k = 0; k < ROWS; k++)
                found |= chosen[k] && has_word(facts[k], word, strlen(word));
            missing += !found;
        }
        free(copy);
    }
    return missing;
}

TEST(a_covering_share_has_every_word)
{
    char *facts[ROWS];
    bool chosen[ROWS], few[ROWS];
    int count = 0, least = 0;
    make_table(facts);
    cover_choose(chosen, (const char *const *)facts, ROWS, 3);
    cover_choose(few, (const char *const *)facts, ROWS, ROWS);
    for (int i = 0; i < ROWS; i++) {
        count += chosen[i];
        least += few[i];
    }
    assert_int_equal(count, ROWS / 3);
    assert_true(least >= 5 &&
                least <= 7); /* as many as words need, more than the share asks for: 5 values of c, and "alone" */
    assert_true(chosen[37]);
    assert_int_equal(missing_words(facts, chosen), 0);
    assert_int_equal(missing_words(facts, few), 0);
    chosen[37] = false; /* and the count of missing words can fail */
    assert_true(missing_words(facts, chosen) > 0);
    free_table(facts);
}

TEST(rings_make_the_whole_and_share_nothing)
{
    static const char *const rings[] = {"check", "rest", "all"};
    char *facts[ROWS], *before = getenv("TEST_RING") ? must_strdup(getenv("TEST_RING")) : NULL;
    bool takes[3][ROWS];
    make_table(facts);
    for (int r = 0; r < 3; r++) {
        setenv("TEST_RING", rings[r], 1);
        cover_take(takes[r], (const char *const *)facts, ROWS, 3);
    }
    for (int i = 0; i < ROWS; i++) {
        assert_true(takes[0][i] != takes[1][i]);
        assert_true(takes[2][i]);
    }
    if (before)
        setenv("TEST_RING", before, 1);
    else
        unsetenv("TEST_RING");
    free(before);
    free_table(facts);
}

/* The table of layouts: each architecture, schedule, ZeRO level, number of ranks and type is in the ring of `make
 * check`. */
TEST(the_check_ring_of_layouts_has_every_value)
{
    AUTO_FREE char *before = getenv("TEST_RING") ? must_strdup(getenv("TEST_RING")) : NULL;
    AUTO_FREE bool *takes = must_calloc((unsigned long)layouts_count(), 1);
    setenv("TEST_RING", "check", 1);
    layouts_take(takes);
    int lacking = 0, count = 0;
    for (int i = 0; i < layouts_count(); i++) {
        const layouts_row *x = layouts_at(i);
        bool found[7] = {false};
        count += takes[i];
        for (int k = 0; k < layouts_count(); k++) {
            const layouts_row *y = layouts_at(k);
            if (!takes[k])
                continue;
            found[0] |= !strcmp(x->model, y->model);
            found[1] |= x->schedule == y->schedule;
            found[2] |= x->zero == y->zero;
            found[3] |= x->tensor == y->tensor && x->pipeline == y->pipeline;
            found[4] |= x->group == y->group && (!x->group || layouts_first_of_group(k) != k);
            found[5] |= layouts_ranks(x) == layouts_ranks(y);
            found[6] |= x->context == y->context;
        }
        for (int f = 0; f < 7; f++) {
            if (!found[f])
                print_message("fact %d of row %d is in no row of the ring\n", f, i);
            lacking += !found[f] && f != 3; /* pairs are taken as far as there is room */
        }
    }
    print_message("%d of %d layouts\n", count, layouts_count());
    assert_int_equal(lacking, 0);
    assert_true(2 * count < layouts_count());
    if (before)
        setenv("TEST_RING", before, 1);
    else
        unsetenv("TEST_RING");
}

TEST_MAIN(NULL, NULL)
