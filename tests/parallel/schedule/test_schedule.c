/* Pipeline schedules and their check: what schedule.h and schedule_check.h promise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "parallel/schedule/schedule.h"
#include "parallel/schedule/simulate.h"
#include "parallel/schedule/schedule_make.h"
#include "tests/parallel/schedule/optimum.h"
#include "tests/parallel/schedule/schedules.h"
#include "tests/test.h"

static void must_pass(const schedule *s)
{
    if (schedule_check(s) != STATUS_OK)
        fail_msg("%s: %s", schedules_title(s), status_message());
}

TEST(every_schedule_does_each_action_once_in_a_possible_order)
{
    /* gpipe, zb-h1 with 1..4 chunks, 1f1b and zb-h2 with one, interleaved with 2..4, three folded kinds with two */
    assert_int_equal(schedules_each(16, 4, 64, must_pass), (4 + 1 + 3 + 4 + 1 + 3) * 16 * 64);
}

static int units(const schedule *s)
{
    simulation sim;
    assert_int_equal(simulate_uniform(&sim, s, (simulate_cost){1, 1, 1}, 0, 0), STATUS_OK);
    int length = (int)sim.length;
    simulate_free(&sim);
    return length;
}

static int searched;

/* None is shorter by two units; among the smaller cases none by one, and the search finds the schedule's own length. */
static void must_be_near_the_optimum(const schedule *s)
{
    if (!optimum_fits(s))
        return;
    /* ZB-H2's pattern is made for many micro-batches */
    bool small = s->stages * s->chunks * s->microbatches <= 16 && s->kind != SCHEDULE_ZB_H2;
    int length = units(s), shorter = length - (small ? 1 : 2);
    searched++;
    if (small && !optimum_reachable(s, length))
        fail_msg("%s: the search does not find its %d units", schedules_title(s), length);
    if (optimum_reachable(s, shorter))
        fail_msg("%s: takes %d units, but %d are enough", schedules_title(s), length, shorter);
}

TEST(no_schedule_in_the_same_memory_is_faster_by_two_units)
{
    searched = 0;
    schedules_each(4, 3, 7, must_be_near_the_optimum);
    assert_true(searched >= 180);
    print_message("searched %d schedules exhaustively\n", searched);
}

/* The oracle's own test: a schedule that waits needlessly is found out. */
TEST(the_search_finds_out_a_slow_schedule)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 2, 1, 4), STATUS_OK);
    static const action last[8] = {{ACTION_FORWARD, 0, 0},  {ACTION_FORWARD, 0, 1}, {ACTION_BACKWARD, 0, 0},
                                   {ACTION_BACKWARD, 0, 1}, {ACTION_FORWARD, 0, 2}, {ACTION_FORWARD, 0, 3},
                                   {ACTION_BACKWARD, 0, 2}, {ACTION_BACKWARD, 0, 3}};
    memcpy(s.actions[1], last, sizeof last);
    assert_int_equal(schedule_check(&s), STATUS_OK);
    assert_true(optimum_reachable(&s, units(&s)));
    assert_true(optimum_reachable(&s, units(&s) - 2));
    schedule_free(&s);
}

TEST(one_f_one_b_of_several_chunks_is_interleaved)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 4, 2, 8), STATUS_OK);
    assert_int_equal(s.kind, SCHEDULE_INTERLEAVED);
    schedule_free(&s);
    assert_int_equal(schedule_make(&s, SCHEDULE_INTERLEAVED, 4, 1, 8), STATUS_OK);
    assert_int_equal(s.kind, SCHEDULE_1F1B);
    schedule_free(&s);
}

TEST(impossible_sizes_are_refused)
{
    static const int sizes[][3] = {{0, 1, 1},     {1, 0, 1},           {1, 1, 0},       {-1, 1, 1},
                                   {40000, 1, 1}, {1024, 1024, 10000}, {1, 1 << 20, 1}, {2, 1, 1 << 30}};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        schedule s = {.stages = 77};
        assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, sizes[i][0], sizes[i][1], sizes[i][2]), STATUS_USAGE);
        assert_int_equal(s.stages, 77);
        assert_null(strchr(status_message(), '\n'));
    }
}

/* The mutants. Each must be refused, at every stage and position. */

static void remove_action(schedule *s, int stage, int i)
{
    int left = --s->counts[stage] - i;
    memmove(&s->actions[stage][i], &s->actions[stage][i + 1], sizeof **s->actions * left);
}

static void insert_action(schedule *s, int stage, int i, action a)
{
    int right = s->counts[stage]++ - i;
    memmove(&s->actions[stage][i + 1], &s->actions[stage][i], sizeof **s->actions * right);
    s->actions[stage][i] = a;
}

static int mutants;

static void must_refuse(schedule *mutant, const char *what, int stage, int i)
{
    char text[32];
    mutants++;
    if (schedule_check(mutant) == STATUS_OK)
        fail_msg("%s: %s at stage %d, position %d passed", schedules_title(mutant), what, stage, i);
    snprintf(text, sizeof text, "stage %d", stage);
    if (strcmp(what, "swapped") && !strstr(status_message(), text))
        fail_msg("%s: %s at stage %d, position %d: %s", schedules_title(mutant), what, stage, i, status_message());
    schedule_free(mutant);
}

static bool is_whole_or(int kind, action a)
{
    return a.kind == kind || a.kind == ACTION_BACKWARD;
}

static void mutants_at(const schedule *s, int stage, int i)
{
    action a = s->actions[stage][i];
    schedule dropped = schedules_copy(s);
    remove_action(&dropped, stage, i);
    must_refuse(&dropped, "dropped", stage, i);

    schedule twice = schedules_copy(s);
    insert_action(&twice, stage, i, a);
    must_refuse(&twice, "duplicated", stage, i);

    /* the count of actions stays right: what a check that counts or uses sets would pass */
    schedule replaced = schedules_copy(s);
    replaced.actions[stage][i] = s->actions[stage][(i + 1) % s->counts[stage]];
    must_refuse(&replaced, "replaced", stage, i);

    schedule foreign = schedules_copy(s);
    foreign.actions[stage][i].microbatch = s->microbatches;
    must_refuse(&foreign, "foreign micro-batch", stage, i);

    /* two micro-batches of one chunk in the wrong order */
    for (int j = i + 1; j < s->counts[stage]; j++) {
        action b = s->actions[stage][j];
        if (b.kind != a.kind || b.chunk != a.chunk)
            continue;
        schedule swapped = schedules_copy(s);
        swapped.actions[stage][i] = b;
        swapped.actions[stage][j] = a;
        must_refuse(&swapped, "swapped", stage, i);
    }
    /* a backward before its forward, a weight gradient before its input's */
    for (int j = 0; j < i; j++) {
        action b = s->actions[stage][j];
        bool pair = b.chunk == a.chunk && b.microbatch == a.microbatch;
        if (!pair || !((b.kind == ACTION_FORWARD && is_whole_or(ACTION_BACKWARD_INPUT, a)) ||
                       (b.kind == ACTION_BACKWARD_INPUT && a.kind == ACTION_BACKWARD_WEIGHT)))
            continue;
        schedule early = schedules_copy(s);
        remove_action(&early, stage, i);
        insert_action(&early, stage, j, a);
        must_refuse(&early, "swapped", stage, i);
    }
}

static void mutants_of(const schedule *s)
{
    if (s->chunks * s->microbatches < 2)
        return;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->counts[stage]; i++)
            mutants_at(s, stage, i);
}

TEST(broken_schedules_are_refused)
{
    mutants = 0;
    schedules_each(3, 2, 4, mutants_of);
    assert_true(mutants > 5000);
    print_message("refused %d mutants\n", mutants);
}

TEST(refusals_name_stage_position_and_action)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 2, 1, 3), STATUS_OK);
    s.actions[1][2] = s.actions[1][0];
    assert_int_equal(schedule_check(&s), STATUS_FAILED);
    assert_string_equal(status_message(),
                        "stage 1, position 2, forward of chunk 0, micro-batch 0: already done at position 0");
    s.actions[1][2] = (action){ACTION_BACKWARD_WEIGHT, 0, 1};
    assert_int_equal(schedule_check(&s), STATUS_FAILED);
    assert_string_equal(status_message(), "stage 1: forward of chunk 0, micro-batch 1 is missing");
    schedule_free(&s);
}

/* Each stage's list is fine on its own; together they wait for one another. */
TEST(stages_that_wait_for_one_another_are_refused)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 2, 1, 3), STATUS_OK);
    static const action first[6] = {{ACTION_FORWARD, 0, 0},  {ACTION_BACKWARD, 0, 0}, {ACTION_FORWARD, 0, 1},
                                    {ACTION_BACKWARD, 0, 1}, {ACTION_FORWARD, 0, 2},  {ACTION_BACKWARD, 0, 2}};
    static const action second[6] = {{ACTION_FORWARD, 0, 0},  {ACTION_FORWARD, 0, 1}, {ACTION_BACKWARD, 0, 0},
                                     {ACTION_BACKWARD, 0, 1}, {ACTION_FORWARD, 0, 2}, {ACTION_BACKWARD, 0, 2}};
    memcpy(s.actions[0], first, sizeof first);
    memcpy(s.actions[1], second, sizeof second);
    assert_int_equal(schedule_check(&s), STATUS_FAILED);
    assert_string_equal(status_message(), "stage 0, position 1, backward of chunk 0, micro-batch 0: the next chunk's "
                                          "backward never comes");
    schedule_free(&s);
}

TEST(a_gradient_computed_whole_and_in_parts_is_refused)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_ZB_H1, 2, 1, 2), STATUS_OK);
    schedule both = schedules_copy(&s);
    insert_action(&both, 1, both.counts[1], (action){ACTION_BACKWARD, 0, 1});
    assert_int_equal(schedule_check(&both), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "already computed by the backward"));
    schedule_free(&both);
    schedule_free(&s);
}

TEST_MAIN(NULL, NULL)
