/* What is said of experts' loads, by hand: of two layers of four experts, the model's layers 1 and 3. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/guard/loads.h"
#include "memory/scope.h"
#include "tests/test.h"

enum { EXPERTS = 4 };

static const model_shape SHAPE = {.layers = 4, .experts = EXPERTS, .experts_every = 2};

/* Means are 10 and 5; two ranks have two experts each. */
static const int32_t COUNTS[2][EXPERTS] = {{10, 10, 15, 5}, {0, 10, 0, 10}};

TEST(the_worst_layer_is_named)
{
    loads *l = loads_open(&SHAPE, 2);
    loads_facts f = loads_judge(l, COUNTS[0]);
    assert_true(f.expert_max == 2 && f.layer == 3 && f.expert == 1);
    assert_true(f.rank_max == 1); /* whatever is uneven within a rank */
    assert_int_equal(f.dead, 2);
    assert_true(fabs(f.entropy - 0.5) < 1e-15); /* two of four alike: log 2 / log 4 */
    loads_close(l);
    l = loads_open(&SHAPE, 3); /* of two experts, one and one */
    assert_true(loads_judge(l, COUNTS[0]).rank_max == 1.5);
    loads_close(l);
    l = loads_open(&SHAPE, 1);
    assert_true(loads_judge(l, COUNTS[0]).rank_max == 0);
    loads_close(l);
    assert_null(loads_open(&(model_shape){.layers = 4}, 1));
}

TEST(the_hottest_of_a_rank_is_named)
{
    loads *l = loads_open(&SHAPE, 2);
    AUTO_FREE char *words = loads_hottest(l, COUNTS[0], 0, 1), *both = loads_hottest(l, COUNTS[0], 2, 2);
    assert_non_null(strstr(words, "expert 0 of layer 1 took 1.0 x"));
    assert_non_null(strstr(both, "expert 3 of layer 3 took 2.0 x"));
    loads_close(l);
}

TEST(a_line_lists_every_layer)
{
    loads *l = loads_open(&SHAPE, 2);
    assert_string_equal(loads_line(l, COUNTS[0], 7), "{\"step\": 7, \"loads\": [[10, 10, 15, 5], [0, 10, 0, 10]]}\n");
    static const int32_t most[2 * EXPERTS] = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX,
                                              INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
    assert_int_equal(strlen(loads_line(l, most, INT64_MAX)), 141);
    loads_close(l);
}

/* How many warnings come in so many steps of these counts; the last of them is `*words`. */
static int warn(loads *l, const int32_t *counts, int steps, char **words)
{
    int warnings = 0;
    for (int i = 0; i < steps; i++) {
        char *said = loads_warn(l, counts);
        warnings += said != NULL;
        if (said) {
            free(*words);
            *words = said;
        }
    }
    return warnings;
}

TEST(what_lasts_is_warned_of_once)
{
    static const int32_t even[2][EXPERTS] = {{1, 1, 1, 1}, {1, 1, 1, 1}}, nothing[2][EXPERTS] = {{0}};
    loads *l = loads_open(&SHAPE, 1);
    char *words = NULL;
    assert_int_equal(warn(l, COUNTS[0], LOADS_STEPS - 1, &words), 0);
    assert_int_equal(warn(l, nothing[0], 3, &words), 0); /* a step that nobody counted is no step */
    assert_int_equal(warn(l, COUNTS[0], 1, &words), 1);
    assert_non_null(strstr(words, "2 experts have had no token for 100 steps, the last of them expert 2 of layer 3"));
    assert_int_equal(warn(l, COUNTS[0], 3 * LOADS_STEPS, &words), 0);
    assert_int_equal(warn(l, even[0], 1, &words), 0);
    assert_int_equal(warn(l, COUNTS[0], LOADS_STEPS, &words), 1); /* again after it was better */
    loads_close(l);
    static const model_shape many = {.layers = 1, .experts = 8, .experts_every = 1};
    static const int32_t four[8] = {7, 1, 1, 1, 1, 1, 1, 1}, more[8] = {14, 1, 2, 2, 2, 2, 1, 2};
    l = loads_open(&many, 1);
    assert_int_equal(warn(l, four, 2 * LOADS_STEPS, &words), 0); /* 4 times the mean is not more than that */
    assert_int_equal(warn(l, more, 2 * LOADS_STEPS, &words), 1);
    assert_non_null(strstr(words, "an expert of layer 0 has had more than 4 x the mean"));
    loads_close(l);
    free(words);
}

TEST_MAIN(NULL, NULL)
