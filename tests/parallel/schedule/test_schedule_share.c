/* A vocabulary divided over the stages: what schedule_make.h promises, and the checks that look at it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/exchange.h"
#include "parallel/schedule/lowering.h"
#include "parallel/schedule/schedule.h"
#include "parallel/schedule/schedule_make.h"
#include "tests/parallel/schedule/schedules.h"
#include "tests/test.h"

/* Of a stage's layers a micro-batch takes 1, 1 and 1; of the whole head `head` times that. */
static simulate_cost *costs_of(const schedule *layers, double head)
{
    int stages = layers->stages, n = schedule_layer_chunks(layers), all = n + stages * SCHEDULE_SHARED;
    simulate_cost *costs = must_calloc((unsigned long)all, sizeof *costs);
    for (int g = 0; g < all; g++) {
        double f = g < n ? 1.0 / layers->chunks : g < n + stages ? head / stages : 0.01;
        costs[g] = (simulate_cost){f, f, g < n + stages ? f : 0};
    }
    return costs;
}

enum { HEAD_COST = 2 };
static const double HOP = 0.05;

/* With a second reader of embeddings, or without. */
static bool next_tokens;

static schedule shared(const schedule *layers)
{
    schedule s;
    AUTO_FREE simulate_cost *costs = costs_of(layers, HEAD_COST);
    schedule_share(&s, layers, costs, HOP);
    s.next_tokens = next_tokens;
    return s;
}

static simulation simulated(const schedule *s)
{
    simulation sim;
    schedule layers = *s;
    layers.shared = 0;
    AUTO_FREE simulate_cost *costs = costs_of(&layers, HEAD_COST);
    if (simulate_run(&sim, s, costs, HOP, 0) != STATUS_OK)
        fail_msg("%s: %s", schedules_title(s), status_message());
    return sim;
}

static lowering lowered(const schedule *s, lowering_options options)
{
    lowering l;
    simulation sim = simulated(s);
    if (lowering_make(&l, &sim, options) != STATUS_OK)
        fail_msg("%s: %s", schedules_title(s), status_message());
    simulate_free(&sim);
    return l;
}

/* ---- every kind
 * ------------------------------------------------------------------------------------------------------ */

static const lowering_options options[] = {{1, 1}, {0, 1}, {1, 3}, {7, 2}, {1 << 30, 1}};
static int visited;

static void must_be_right(const schedule *layers)
{
    if (layers->stages == 1)
        return;
    schedule s = shared(layers);
    if (schedule_check(&s) != STATUS_OK)
        fail_msg("%s: %s", schedules_title(layers), status_message());
    assert_int_equal(schedule_splits(&s), schedule_splits(layers));
    for (unsigned i = 0; i < sizeof options / sizeof *options; i++) {
        lowering l = lowered(&s, options[i]);
        if (lowering_check(&l, &s) != STATUS_OK)
            fail_msg("%s, lookahead %d: %s", schedules_title(layers), options[i].lookahead, status_message());
        int meetings = 0;
        for (int stage = 0; stage < s.stages; stage++)
            for (int k = 0; k < l.counts[stage]; k++)
                meetings += l.steps[stage][k].kind == LOWERING_EXCHANGE;
        assert_int_equal(meetings, 5 * s.stages * s.microbatches);
        lowering_free(&l);
    }
    visited++;
    schedule_free(&s);
}

TEST(every_schedule_takes_the_vocabulary_in)
{
    int all = schedules_each(6, 3, 13, must_be_right);
    print_message("%d of %d schedules, the others of one stage\n", visited, all);
    assert_true(visited >= 500);
}

TEST(the_last_layers_take_the_next_tokens_in)
{
    visited = 0;
    next_tokens = true;
    schedules_each(5, 2, 9, must_be_right);
    next_tokens = false;
    print_message("%d schedules\n", visited);
    assert_true(visited >= 100);
}

/* The same costs where the last stage has all of the head: the longest stage decides. */
static double undivided(schedule_kind kind, int stages, int chunks, int microbatches)
{
    schedule s;
    simulation sim;
    assert_int_equal(schedule_make(&s, kind, stages, chunks, microbatches), STATUS_OK);
    simulate_cost *costs = costs_of(&s, HEAD_COST);
    simulate_cost *last = &costs[stages * chunks - 1];
    *last = (simulate_cost){last->forward + HEAD_COST, last->input + HEAD_COST, last->weight + HEAD_COST};
    assert_int_equal(simulate_run(&sim, &s, costs, HOP, 0), STATUS_OK);
    double length = sim.length;
    simulate_free(&sim);
    free(costs);
    schedule_free(&s);
    return length;
}

/* A head of two stages' work, divided: what is left idle is about what the schedule leaves of layers alone. */
TEST(a_divided_head_leaves_about_the_bubble_of_layers_alone)
{
    static const struct {
        schedule_kind kind;
        int chunks;
    } cases[] = {{SCHEDULE_1F1B, 1}, {SCHEDULE_INTERLEAVED, 3}, {SCHEDULE_ZB_H1, 1}, {SCHEDULE_ZB_V, 2}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int stages = 4; stages <= 8; stages *= 2) {
            enum { MICROBATCHES = 32 };
            schedule layers;
            assert_int_equal(schedule_make(&layers, cases[i].kind, stages, cases[i].chunks, MICROBATCHES), STATUS_OK);
            schedule s = shared(&layers);
            simulation with = simulated(&s), alone = simulated(&layers);
            double own = 3.0 * MICROBATCHES * (1 + (double)HEAD_COST / stages), bubble = with.length - own;
            double of_layers = alone.length - 3.0 * MICROBATCHES;
            double before = undivided(cases[i].kind, stages, cases[i].chunks, MICROBATCHES);
            print_message("%s, %d stages: idle %.2f, of layers alone %.2f; %.1f long, undivided %.1f\n",
                          schedule_name(cases[i].kind), stages, bubble, of_layers, with.length, before);
            assert_true(bubble <= of_layers + 4 * (1 + (double)HEAD_COST / stages));
            assert_true(with.length < 0.65 * before);
            assert_true(with.stages[0].in_flight <= alone.stages[0].in_flight + 3 * cases[i].chunks);
            simulate_free(&with);
            simulate_free(&alone);
            schedule_free(&s);
            schedule_free(&layers);
        }
}

/* ---- mutants
 * --------------------------------------------------------------------------------------------------------- */

static schedule an_example(void)
{
    schedule layers;
    assert_int_equal(schedule_make(&layers, SCHEDULE_ZB_H1, 4, 1, 8), STATUS_OK);
    schedule s = shared(&layers);
    schedule_free(&layers);
    return s;
}

static int find(const schedule *s, int stage, action_kind kind, int chunk, int microbatch)
{
    for (int i = 0; i < s->counts[stage]; i++) {
        action a = s->actions[stage][i];
        if (a.kind == kind && a.chunk == chunk && a.microbatch == microbatch)
            return i;
    }
    fail_msg("stage %d has no such action", stage);
    return -1;
}

static void must_refuse(const schedule *s, const char *why)
{
    assert_int_not_equal(schedule_check(s), STATUS_OK);
    if (!strstr(status_message(), why))
        fail_msg("refused as \"%s\", not as \"%s\"", status_message(), why);
}

/* Takes an action out and puts it back so that it is number `to`. */
static void move(schedule *s, int stage, int from, int to)
{
    action *list = s->actions[stage], a = list[from];
    if (from < to)
        memmove(&list[from], &list[from + 1], sizeof a * (unsigned long)(to - from));
    else
        memmove(&list[to + 1], &list[to], sizeof a * (unsigned long)(from - to));
    list[to] = a;
}

TEST(a_stage_without_its_part_is_refused)
{
    const int head = 1 + SCHEDULE_HEAD, embedding = 1 + SCHEDULE_EMBEDDING;
    schedule s = an_example();
    assert_int_equal(schedule_check(&s), STATUS_OK);
    int at = find(&s, 2, ACTION_FORWARD, head, 3);
    action a = s.actions[2][at];
    s.actions[2][at].microbatch = 4;
    must_refuse(&s, "already done at position");
    s.actions[2][at] = a;
    s.counts[1]--; /* the last of the list */
    must_refuse(&s, "is missing");
    s.counts[1]++;
    int loss = find(&s, 0, ACTION_BACKWARD_INPUT, head, 0), own = find(&s, 0, ACTION_FORWARD, head, 0);
    move(&s, 0, loss, own);
    must_refuse(&s, "its forward has not been done");
    move(&s, 0, own, loss);
    int backward = find(&s, 3, ACTION_BACKWARD_INPUT, 0, 0), its = find(&s, 3, ACTION_BACKWARD_INPUT, head, 0);
    move(&s, 3, backward, its);
    must_refuse(&s, "never comes");
    move(&s, 3, its, backward);
    int hidden = find(&s, 3, ACTION_FORWARD, 0, 0), asks = find(&s, 3, ACTION_FORWARD, head, 0);
    move(&s, 3, asks, hidden);
    must_refuse(&s, "never comes");
    move(&s, 3, hidden, asks);
    int made = find(&s, 1, ACTION_FORWARD, embedding, 7);
    move(&s, 1, made, s.counts[1] - 1);
    must_refuse(&s, "never comes");
    schedule_free(&s);
}

static int find_step(const lowering *l, int stage, int kind, int payload, int microbatch)
{
    for (int i = 0; i < l->counts[stage]; i++) {
        const lowering_step *x = &l->steps[stage][i];
        if (x->kind == kind && x->payload == payload && x->action.microbatch == microbatch)
            return i;
    }
    fail_msg("stage %d has no such step", stage);
    return -1;
}

/* Two launches of one stage change places, with their numbers and links kept true. */
static void swap_launches(lowering *l, int stage, int i, int k)
{
    lowering_step *x = l->steps[stage], a = x[i], b = x[k];
    int32_t first = a.launch, second = b.launch;
    x[i] = b;
    x[k] = a;
    x[i].launch = first;
    x[k].launch = second;
    x[x[i].pair].launch = first;
    x[x[k].pair].launch = second;
    x[x[i].pair].pair = i;
    x[x[k].pair].pair = k;
}

/* Each pair of neighbouring launches of one stage in the other order: what still ends is in no wrong order; what does
 * not is told. */
TEST(meetings_in_another_order_on_one_stage_are_refused)
{
    schedule s = an_example();
    lowering l = lowered(&s, LOWERING_DEFAULTS);
    assert_int_equal(lowering_check(&l, &s), STATUS_OK);
    int refused = 0;
    for (int m = 0; m + 1 < s.microbatches; m++) {
        int i = find_step(&l, 1, LOWERING_EXCHANGE, EXCHANGE_HIDDEN, m);
        int k = find_step(&l, 1, LOWERING_EXCHANGE, EXCHANGE_HIDDEN, m + 1);
        swap_launches(&l, 1, i, k);
        refused += lowering_check(&l, &s) != STATUS_OK;
        swap_launches(&l, 1, i, k);
    }
    assert_int_equal(refused, s.microbatches - 1);
    assert_int_equal(lowering_check(&l, &s), STATUS_OK);
    lowering_free(&l);
    schedule_free(&s);
}

TEST(a_meeting_that_is_changed_is_refused)
{
    schedule s = an_example();
    lowering l = lowered(&s, LOWERING_DEFAULTS);
    for (int kind = EXCHANGE_EMBEDDING; kind < EXCHANGES; kind++)
        for (int stage = 0; stage < s.stages; stage++) {
            int i = find_step(&l, stage, LOWERING_EXCHANGE, kind, 2);
            lowering_step *x = &l.steps[stage][i], was = *x;
            int after = x->pair;
            x->payload = (uint8_t)(kind + 1 < EXCHANGES ? kind + 1 : EXCHANGE_EMBEDDING);
            l.steps[stage][after].payload = x->payload;
            assert_int_not_equal(lowering_check(&l, &s), STATUS_OK);
            *x = was;
            l.steps[stage][after].payload = was.payload;
            x->peer = 0;
            assert_int_not_equal(lowering_check(&l, &s), STATUS_OK);
            *x = was;
        }
    assert_int_equal(lowering_check(&l, &s), STATUS_OK);
    lowering_free(&l);
    schedule_free(&s);
}

/* Launched where the stage's own part is made, as an engine without a global order would: a stage then stands in its
 * queue behind what waits for others, who wait for what is behind it. */
TEST(meetings_launched_as_soon_as_a_stage_has_its_part_deadlock)
{
    schedule s = an_example();
    lowering l = lowered(&s, LOWERING_DEFAULTS);
    int deadlocks = 0;
    for (int m = 1; m < s.microbatches; m++) {
        int stage = 0, i = find_step(&l, stage, LOWERING_EXCHANGE, EXCHANGE_EMBEDDING, m), to = 0;
        lowering_step *x = l.steps[stage];
        while (x[to].kind == LOWERING_COMPUTE || x[to].launch < 0)
            to++;
        if (to < i && x[to].kind != LOWERING_WAIT && x[i].pair > i) {
            swap_launches(&l, stage, to, i);
            deadlocks += lowering_check(&l, &s) != STATUS_OK;
            swap_launches(&l, stage, to, i);
        }
    }
    assert_true(deadlocks >= 3);
    assert_int_equal(lowering_check(&l, &s), STATUS_OK);
    lowering_free(&l);
    schedule_free(&s);
}

/* Moves a wait of one stage behind the next action. */
static void delay_wait(lowering *l, int stage, int k)
{
    lowering_step *x = l->steps[stage], wait = x[k];
    bool passed = false;
    for (; !passed; k++) {
        x[k] = x[k + 1];
        passed = x[k].kind == LOWERING_COMPUTE;
        if (!passed)
            x[x[k].pair].pair = k;
    }
    x[k] = wait;
    x[wait.pair].pair = k;
}

TEST(next_tokens_that_come_behind_the_last_layers_are_refused)
{
    next_tokens = true;
    schedule s = an_example();
    next_tokens = false;
    lowering l = lowered(&s, LOWERING_DEFAULTS);
    const int last = s.stages - 1, k = find_step(&l, last, LOWERING_WAIT, EXCHANGE_EMBEDDING, 3);
    assert_int_equal(l.steps[last][k].action.kind, ACTION_FORWARD);
    assert_int_equal(l.steps[last][k].action.chunk, 0);
    assert_int_equal(lowering_check(&l, &s), STATUS_OK);
    delay_wait(&l, last, k);
    assert_int_not_equal(lowering_check(&l, &s), STATUS_OK);
    assert_non_null(strstr(status_message(), "has not been received and waited for"));
    lowering_free(&l);
    schedule_free(&s);
}

TEST_MAIN(NULL, NULL)
