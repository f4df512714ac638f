/* Lowered schedules and their replay: what lowering.h promises. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/lowering.h"
#include "parallel/schedule/simulate.h"
#include "parallel/schedule/schedule_make.h"
#include "tests/parallel/schedule/schedules.h"
#include "tests/test.h"

static const simulate_cost unit = {1, 1, 1};

static lowering lowered_for(const schedule *s, simulate_cost cost, double hop, lowering_options options)
{
    lowering l;
    simulation timing;
    status made = simulate_uniform(&timing, s, cost, hop, 0);
    if (made == STATUS_OK)
        made = lowering_make(&l, &timing, options);
    MUST(made == STATUS_OK, "%s: %s", schedules_title(s), status_message());
    simulate_free(&timing);
    return l;
}

static lowering lowered(const schedule *s, lowering_options options)
{
    return lowered_for(s, unit, 0, options);
}

static const lowering_options *the_options;

static void must_end(const schedule *s)
{
    lowering l = lowered(s, *the_options);
    if (lowering_check(&l, s) != STATUS_OK)
        fail_msg("%s, lookahead %d, %d sends under way: %s", schedules_title(s), the_options->lookahead,
                 the_options->sends_under_way, status_message());
    int messages = 0;
    for (int stage = 0; stage < s->stages; stage++)
        messages += l.launches[stage];
    /* an activation over each boundary of stages and a cotangent back; each is launched at both its ends */
    int boundaries = s->stages * s->chunks - 1 - (s->folded ? s->chunks - 1 : 0);
    assert_int_equal(messages, s->stages == 1 ? 0 : 4 * boundaries * s->microbatches);
    lowering_free(&l);
}

TEST(every_lowered_schedule_comes_to_its_end)
{
    the_options = &LOWERING_DEFAULTS;
    assert_int_equal(schedules_each(16, 4, 64, must_end), (4 + 1 + 3 + 4 + 1 + 3) * 16 * 64);
}

TEST(any_lookahead_and_number_of_sends_comes_to_its_end)
{
    static const lowering_options options[] = {{0, 1}, {1, 3}, {7, 2}, {1 << 30, 1}, {0, 1000}};
    for (unsigned i = 0; i < sizeof options / sizeof *options; i++) {
        the_options = &options[i];
        schedules_each(6, 3, 13, must_end);
    }
}

/* What an engine without this lowering would do: each communication is waited for where it is launched. */
static lowering naive(const schedule *s)
{
    lowering l = {.stages = s->stages};
    l.steps = must_calloc(s->stages, sizeof *l.steps);
    l.counts = must_calloc(s->stages, sizeof *l.counts);
    l.launches = must_calloc(s->stages, sizeof *l.launches);
    for (int stage = 0; stage < s->stages; stage++) {
        lowering_step *out = l.steps[stage] = must_calloc(5 * s->counts[stage], sizeof *out);
        for (int i = 0; i < s->counts[stage]; i++)
            for (int kind = 0; kind < 3; kind++) { /* receive, compute, send */
                static const uint8_t kinds[3] = {LOWERING_RECEIVE, LOWERING_COMPUTE, LOWERING_SEND};
                action a = s->actions[stage][i];
                int step = (a.kind == ACTION_FORWARD) == (kind == 2) ? 1 : -1;
                int other = schedule_global_chunk(s, stage, a.chunk) + step, at = l.counts[stage];
                bool talks = kinds[kind] != LOWERING_COMPUTE;
                if (talks && (a.kind == ACTION_BACKWARD_WEIGHT || other < 0 || other >= s->stages * s->chunks))
                    continue;
                out[at] = (lowering_step){kinds[kind], a.kind != ACTION_FORWARD, -1, a, -1, -1};
                l.counts[stage]++;
                if (!talks)
                    continue;
                out[at].peer = (int16_t)(other % s->stages);
                out[at].launch = l.launches[stage]++;
                out[at].pair = at + 1;
                out[at + 1] = out[at];
                out[at + 1].kind = LOWERING_WAIT;
                out[at + 1].pair = at;
                l.counts[stage]++;
            }
    }
    return l;
}

/* The figure was measured elsewhere, with another program: 2 to 12 stages, 1 to 32 micro-batches. */
TEST(the_naive_lowering_is_caught_as_a_deadlock)
{
    int deadlocks = 0, pairs = 0;
    for (int p = 2; p <= 12; p++)
        for (int m = 1; m <= 32; m++, pairs++) {
            schedule s;
            assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, p, 1, m), STATUS_OK);
            lowering l = naive(&s);
            if (lowering_check(&l, &s) != STATUS_OK) {
                assert_non_null(strstr(status_message(), "it waits for ever (deadlock)"));
                deadlocks++;
            }
            lowering_free(&l);
            schedule_free(&s);
        }
    assert_int_equal(pairs, 352);
    assert_int_equal(deadlocks, 341);
}

TEST(one_stage_sends_nothing)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_INTERLEAVED, 1, 4, 5), STATUS_OK);
    lowering l = lowered(&s, LOWERING_DEFAULTS);
    assert_int_equal(l.counts[0], s.counts[0]);
    for (int i = 0; i < l.counts[0]; i++)
        assert_int_equal(l.steps[0][i].kind, LOWERING_COMPUTE);
    assert_int_equal(lowering_check(&l, &s), STATUS_OK);
    lowering_free(&l);
    schedule_free(&s);
}

/* The lists as clocks: a rank performs its steps, its queue is serial, a message takes `hop` from when both ends head
 * their queues. Returns the time at which the last rank ends. */
typedef struct clock_rank {
    double now, queue_free;
    double *launched_at, *passed_at; /* [launches] */
    int *step_of;                    /* [launches] */
    int step, launched, passed;
} clock_rank;

static bool clock_step(clock_rank *r, const lowering *l, int stage, const simulate_cost *c)
{
    const lowering_step *x = &l->steps[stage][r->step];
    const double lengths[ACTION_KINDS] = {c->forward, c->input + c->weight, c->input, c->weight};
    if (r->step == l->counts[stage] || (x->kind == LOWERING_WAIT && x->launch >= r->passed))
        return false;
    if (x->kind == LOWERING_COMPUTE)
        r->now += lengths[x->action.kind];
    else if (x->kind == LOWERING_WAIT)
        r->now = fmax(r->now, r->passed_at[x->launch]);
    else {
        r->step_of[r->launched] = r->step;
        r->launched_at[r->launched++] = r->now;
    }
    r->step++;
    return true;
}

static bool clock_message(clock_rank *ranks, const lowering *l, int from, double hop)
{
    clock_rank *a = &ranks[from];
    if (a->passed == a->launched)
        return false;
    const lowering_step *send = &l->steps[from][a->step_of[a->passed]];
    clock_rank *b = &ranks[send->peer];
    if (send->kind != LOWERING_SEND || b->passed == b->launched)
        return false;
    const lowering_step *receive = &l->steps[send->peer][b->step_of[b->passed]];
    if (receive->kind != LOWERING_RECEIVE || receive->peer != from)
        return false;
    double start = fmax(fmax(a->launched_at[a->passed], b->launched_at[b->passed]), fmax(a->queue_free, b->queue_free));
    a->queue_free = b->queue_free = a->passed_at[a->passed] = b->passed_at[b->passed] = start + hop;
    a->passed++;
    b->passed++;
    return true;
}

static double clocked(const lowering *l, simulate_cost cost, double hop)
{
    clock_rank *ranks = must_calloc(l->stages, sizeof *ranks);
    double end = 0;
    for (int stage = 0; stage < l->stages; stage++) {
        ranks[stage].launched_at = must_calloc(l->launches[stage] + 1, sizeof(double));
        ranks[stage].passed_at = must_calloc(l->launches[stage] + 1, sizeof(double));
        ranks[stage].step_of = must_calloc(l->launches[stage] + 1, sizeof(int));
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < l->stages; stage++) {
            while (clock_step(&ranks[stage], l, stage, &cost))
                moved = true;
            while (clock_message(ranks, l, stage, hop))
                moved = true;
        }
    }
    for (int stage = 0; stage < l->stages; stage++) {
        end = fmax(end, ranks[stage].now);
        free(ranks[stage].launched_at);
        free(ranks[stage].passed_at);
        free(ranks[stage].step_of);
    }
    free(ranks);
    return end;
}

/* What runs, and what the lowering was told would run. */
static simulate_cost true_cost, told_cost;
static double true_hop, told_hop, worst, worst_folded;

static void compare_clocks(const schedule *s)
{
    simulation sim;
    assert_int_equal(simulate_uniform(&sim, s, true_cost, true_hop, 0), STATUS_OK);
    lowering l = lowered_for(s, told_cost, told_hop, *the_options);
    double ratio = clocked(&l, true_cost, true_hop) / sim.length;
    double *at = s->folded ? &worst_folded : &worst;
    *at = ratio > *at ? ratio : *at;
    if (!(ratio >= 1 - 1e-9))
        fail_msg("%s: the lowered lists are faster than possible (%g)", schedules_title(s), ratio);
    lowering_free(&l);
    simulate_free(&sim);
}

static double worst_ratio(lowering_options options)
{
    the_options = &options;
    worst = worst_folded = 0;
    schedules_each(7, 3, 21, compare_clocks);
    return worst;
}

/* Serial queues, rendezvous and launch order cost nothing over the schedule alone, if the costs are what was said. If
 * they are not, messages wait for one another, but not for long. */
TEST(the_launch_order_adds_no_time)
{
    static const simulate_cost costs[] = {{1, 1, 1}, {1, 1.3, 0.8}, {1, 1.2, 0.8}};
    for (unsigned i = 0; i < sizeof costs / sizeof *costs; i++) {
        true_cost = told_cost = costs[i];
        true_hop = told_hop = i == 0 ? 0 : 0.02;
        assert_true(worst_ratio((lowering_options){0, 1}) <= 1 + 1e-9);
        /* where activations and cotangents go both ways between two stages, one may wait while the other passes */
        assert_true(worst_folded <= 1 + (true_hop > 0 ? 0.005 : 1e-9));
        assert_true(worst_ratio(LOWERING_DEFAULTS) <= 1 + 1e-9);
        assert_true(worst_folded <= 1 + (true_hop > 0 ? 0.005 : 1e-9));
    }
    told_cost = unit;
    told_hop = 0;
    double surprised = worst_ratio(LOWERING_DEFAULTS);
    assert_true(worst_folded <= 1.25);
    print_message("with costs other than said, slower than the schedule by at most a factor of %.4f\n", surprised);
    assert_true(surprised > 1.05 && surprised <= 1.15);
}

TEST(actions_without_time_are_refused)
{
    schedule s;
    simulation timing;
    lowering l = {.stages = 77};
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 3, 1, 4), STATUS_OK);
    assert_int_equal(simulate_run(&timing, &s, (simulate_cost[]){{1, 1, 1}, {1, 1, 1}, {0, 1, 1}}, 0, 0), STATUS_OK);
    assert_int_equal(lowering_make(&l, &timing, LOWERING_DEFAULTS), STATUS_FAILED);
    assert_string_equal(status_message(),
                        "stage 2, position 0, forward of chunk 0, micro-batch 0: takes no time, so messages "
                        "cannot be put in order");
    assert_int_equal(l.stages, 77);
    simulate_free(&timing);
    /* weight gradients may: a stage of nothing but a head has few */
    schedule_free(&s);
    assert_int_equal(schedule_make(&s, SCHEDULE_ZB_H1, 3, 2, 7), STATUS_OK);
    l = lowered_for(&s, (simulate_cost){1, 1, 0}, 0, LOWERING_DEFAULTS);
    assert_int_equal(lowering_check(&l, &s), STATUS_OK);
    lowering_free(&l);
    schedule_free(&s);
}

/* Any positive costs, however uneven, give lists that come to their end. */
static void must_end_for_random_costs(const schedule *s)
{
    static unsigned random = 12345;
    simulate_cost costs[64];
    simulation timing;
    lowering l;
    for (int g = 0; g < s->stages * s->chunks; g++) {
        double *times[3] = {&costs[g].forward, &costs[g].input, &costs[g].weight};
        for (int k = 0; k < 3; k++) {
            random = random * 1664525u + 1013904223u;
            *times[k] = 0.01 + (random >> 16) % 7; /* often equal, often very unlike */
        }
    }
    assert_int_equal(simulate_run(&timing, s, costs, random >> 31 ? 0.5 : 0, 0), STATUS_OK);
    assert_int_equal(lowering_make(&l, &timing, (lowering_options){(int)(random >> 20) % 3, 1}), STATUS_OK);
    if (lowering_check(&l, s) != STATUS_OK)
        fail_msg("%s: %s", schedules_title(s), status_message());
    lowering_free(&l);
    simulate_free(&timing);
}

TEST(uneven_stages_come_to_their_end)
{
    schedules_each(8, 3, 20, must_end_for_random_costs);
}

/* Mutants. Steps are moved or removed, then launches are numbered and linked again, so that only the meaning is
 * wrong. */

static lowering copy_of(const lowering *l)
{
    lowering copy = *l;
    copy.steps = must_alloc(sizeof *copy.steps * l->stages);
    copy.counts = must_alloc(sizeof *copy.counts * l->stages);
    copy.launches = must_alloc(sizeof *copy.launches * l->stages);
    memcpy(copy.counts, l->counts, sizeof *copy.counts * l->stages);
    memcpy(copy.launches, l->launches, sizeof *copy.launches * l->stages);
    for (int stage = 0; stage < l->stages; stage++) {
        copy.steps[stage] = must_alloc(sizeof **copy.steps * (l->counts[stage] + 1));
        memcpy(copy.steps[stage], l->steps[stage], sizeof **copy.steps * l->counts[stage]);
    }
    return copy;
}

static void renumber(lowering *l, int stage)
{
    lowering_step *steps = l->steps[stage];
    int launched = 0;
    AUTO_FREE int *number = must_calloc(l->launches[stage] + 1, sizeof *number),
                  *at = must_calloc(l->launches[stage] + 1, sizeof *at);
    for (int i = 0; i < l->counts[stage]; i++) /* launches: old name -> new number and place */
        if (steps[i].kind == LOWERING_RECEIVE || steps[i].kind == LOWERING_SEND) {
            number[steps[i].launch] = launched++;
            at[steps[i].launch] = i;
        }
    for (int i = 0; i < l->counts[stage]; i++)
        if (steps[i].kind == LOWERING_WAIT) {
            int launch = at[steps[i].launch];
            steps[i].pair = launch;
            steps[launch].pair = i;
        }
    for (int i = 0; i < l->counts[stage]; i++)
        if (steps[i].kind != LOWERING_COMPUTE)
            steps[i].launch = number[steps[i].launch];
    l->launches[stage] = launched;
}

static void remove_step(lowering *l, int stage, int i)
{
    memmove(&l->steps[stage][i], &l->steps[stage][i + 1], sizeof **l->steps * (--l->counts[stage] - i));
}

static void move_step(lowering *l, int stage, int from, int to)
{
    lowering_step step = l->steps[stage][from];
    remove_step(l, stage, from);
    memmove(&l->steps[stage][to + 1], &l->steps[stage][to], sizeof **l->steps * (l->counts[stage]++ - to));
    l->steps[stage][to] = step;
}

static int mutants;

static void must_refuse(lowering *mutant, const schedule *s, const char *what, int stage, int i)
{
    mutants++;
    if (lowering_check(mutant, s) == STATUS_OK)
        fail_msg("%s: %s at stage %d, step %d passed", schedules_title(s), what, stage, i);
    lowering_free(mutant);
}

/* The next step of a stage that is a send to the same peer, -1: none. */
static int next_send(const lowering *l, int stage, int i)
{
    for (int j = i + 1; j < l->counts[stage]; j++)
        if (l->steps[stage][j].kind == LOWERING_SEND && l->steps[stage][j].peer == l->steps[stage][i].peer)
            return j;
    return -1;
}

static void communication_mutants(const lowering *l, const schedule *s, int stage, int i)
{
    const lowering_step *x = &l->steps[stage][i];
    lowering dropped = copy_of(l); /* with its wait */
    remove_step(&dropped, stage, x->pair);
    remove_step(&dropped, stage, i);
    renumber(&dropped, stage);
    must_refuse(&dropped, s, "communication dropped", stage, i);

    lowering unwaited = copy_of(l);
    remove_step(&unwaited, stage, x->pair);
    must_refuse(&unwaited, s, "wait dropped", stage, i);

    lowering redirected = copy_of(l);
    redirected.steps[stage][i].action.microbatch ^= 1;
    redirected.steps[stage][x->pair].action.microbatch ^= 1;
    must_refuse(&redirected, s, "message for another micro-batch", stage, i);

    if (x->kind == LOWERING_RECEIVE) {
        lowering late = copy_of(l); /* waited for after its action */
        move_step(&late, stage, x->pair, x->pair + 1);
        renumber(&late, stage);
        must_refuse(&late, s, "late wait", stage, i);
        return;
    }
    int maker = i;
    while (l->steps[stage][maker].kind != LOWERING_COMPUTE)
        maker--;
    lowering early = copy_of(l); /* sent before it is made */
    move_step(&early, stage, i, maker);
    renumber(&early, stage);
    must_refuse(&early, s, "early send", stage, i);

    int j = next_send(l, stage, i);
    if (j < 0)
        return;
    lowering swapped = copy_of(l); /* what is sent, not when: both are made by then */
    lowering_step held = l->steps[stage][i];
    move_step(&swapped, stage, i, j); /* now at j, the other at j - 1 */
    swapped.steps[stage][j] = held;
    renumber(&swapped, stage);
    must_refuse(&swapped, s, "sends swapped", stage, i);
}

static void mutants_of(const schedule *s)
{
    if (s->microbatches < 2 || s->stages < 2)
        return;
    lowering l = lowered(s, (lowering_options){1, 2});
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < l.counts[stage]; i++) {
            if (l.steps[stage][i].kind == LOWERING_WAIT)
                continue;
            if (l.steps[stage][i].kind != LOWERING_COMPUTE) {
                communication_mutants(&l, s, stage, i);
                continue;
            }
            lowering dropped = copy_of(&l);
            remove_step(&dropped, stage, i);
            renumber(&dropped, stage);
            must_refuse(&dropped, s, "action dropped", stage, i);
            lowering twice = copy_of(&l);
            twice.steps[stage][twice.counts[stage]] = l.steps[stage][i];
            move_step(&twice, stage, twice.counts[stage]++, i);
            renumber(&twice, stage);
            must_refuse(&twice, s, "action duplicated", stage, i);
        }
    lowering_free(&l);
}

TEST(broken_lowerings_are_refused)
{
    mutants = 0;
    schedules_each(4, 2, 5, mutants_of);
    assert_true(mutants > 10000);
    print_message("refused %d mutants\n", mutants);
}

/* Receives put where they are first needed, whatever the senders' order: neighbours that each send first. */
TEST(launches_in_unlike_orders_are_caught_as_a_deadlock)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 2, 1, 4), STATUS_OK);
    lowering l = lowered(&s, (lowering_options){0, 1});
    int found = 0;
    for (int i = 0; i + 1 < l.counts[1]; i++) {
        int receive = -1, send = -1;
        for (int j = i; j < l.counts[1] && (receive < 0 || send < 0); j++) {
            receive = receive < 0 && l.steps[1][j].kind == LOWERING_RECEIVE ? j : receive;
            send = receive >= 0 && send < 0 && l.steps[1][j].kind == LOWERING_SEND ? j : send;
        }
        if (receive != i || send < 0)
            continue;
        /* stage 1 launches a send it owes before the receive that stage 0 launched first */
        lowering mutant = copy_of(&l);
        move_step(&mutant, 1, i, send);
        renumber(&mutant, 1);
        assert_int_equal(lowering_check(&mutant, &s), STATUS_FAILED);
        lowering_free(&mutant);
        found++;
    }
    assert_true(found >= 4);
    lowering_free(&l);
    schedule_free(&s);
}

/* Actions that a stage computes between the launch of a receive and the wait for it, at most. */
static int longest_wait(const lowering *l, int stage)
{
    int longest = 0;
    for (int i = 0; i < l->counts[stage]; i++) {
        int actions = 0;
        if (l->steps[stage][i].kind != LOWERING_RECEIVE)
            continue;
        for (int j = i; j < l->steps[stage][i].pair; j++)
            actions += l->steps[stage][j].kind == LOWERING_COMPUTE;
        longest = actions > longest ? actions : longest;
    }
    return longest;
}

TEST(buffers_wait_no_longer_than_asked)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 4, 1, 16), STATUS_OK);
    int arrival = -1;
    for (int lookahead = 0; lookahead < 4; lookahead++) {
        lowering l = lowered(&s, (lowering_options){lookahead, 1});
        arrival = lookahead == 0 ? longest_wait(&l, 1) : arrival;
        assert_true(longest_wait(&l, 1) <= arrival + lookahead);
        assert_true(lookahead == 0 || longest_wait(&l, 1) > arrival);
        /* one send under way on each channel: it is waited for just before the next is launched, and not earlier */
        for (int i = 0; i < l.counts[1]; i++)
            if (l.steps[1][i].kind == LOWERING_SEND && next_send(&l, 1, i) >= 0)
                assert_int_equal(next_send(&l, 1, i), l.steps[1][i].pair + 1);
        lowering_free(&l);
    }
    assert_true(arrival <= 1);
    schedule_free(&s);
}

TEST_MAIN(NULL, NULL)
