/* The simulator against the closed forms of the literature (1811.06965, 2104.04473, 2401.10241), and the drawings. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/simulate.h"
#include "parallel/schedule/schedule_make.h"
#include "tests/parallel/schedule/schedules.h"
#include "tests/test.h"

static const simulate_cost unit = {1, 1, 1};
static const simulate_cost several[] = {{1, 1, 1}, {1, 1.5, 0.5}, {1, 2, 1}, {3, 1, 1}};
enum { SEVERAL = sizeof several / sizeof *several };

static simulation simulated(const schedule *s, simulate_cost cost, double hop)
{
    simulation sim;
    status result = simulate_uniform(&sim, s, cost, hop, 0.5);
    MUST(result == STATUS_OK, "%s: %s", schedules_title(s), status_message());
    return sim;
}

static bool is_same(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(1, fabs(b));
}

static int compared;

/* The table of the pipeline papers, written out once more here: idle time of a stage, `v` chunks of (F, I, W) each. */
static double idle_by_table(const schedule *s, simulate_cost c)
{
    int p = s->stages;
    switch (s->kind) {
    case SCHEDULE_ZB_H1:
        return (p - 1) * (c.forward + c.input - c.weight);
    default: /* (p-1) (vF + vI + vW) / v, for GPipe in chunks too */
        return (p - 1) * (c.forward + c.input + c.weight);
    }
}

static void must_have_the_bubble(const schedule *s)
{
    int p = s->stages, m = s->microbatches, v = s->chunks;
    if (m < 2 * p || (v > 1 && m % p) || s->folded || s->kind == SCHEDULE_ZB_H2)
        return;
    for (int i = 0; i < SEVERAL; i++) {
        simulate_cost c = several[i];
        simulation sim = simulated(s, c, 0);
        double expected = idle_by_table(s, c), work = m * v * (c.forward + c.input + c.weight);
        for (int stage = 0; stage < p; stage++)
            if (!is_same(sim.stages[stage].idle, expected))
                fail_msg("%s: stage %d idles %g, formula %g", schedules_title(s), stage, sim.stages[stage].idle,
                         expected);
        assert_true(is_same(sim.bubble, expected / (work + expected)));
        simulate_free(&sim);
        compared++;
    }
}

TEST(bubbles_equal_the_formulas)
{
    compared = 0;
    schedules_each(16, 4, 64, must_have_the_bubble);
    assert_true(compared > 4 * 2000);
    print_message("compared %d bubbles\n", compared);
}

/* ZB-H2's is a stage's own, from its first action to its last: (p-1)(F+I-2W). */
static void must_have_the_bubble_of_zb_h2(const schedule *s)
{
    int p = s->stages, m = s->microbatches;
    if (m < 2 * p || s->chunks > 1 || s->kind != SCHEDULE_ZB_H2)
        return;
    for (int i = 0; i < SEVERAL; i++) {
        simulate_cost c = several[i];
        simulation sim = simulated(s, c, 0);
        double idle = sim.span - m * (c.forward + c.input + c.weight);
        double expected = (p - 1) * (c.forward + c.input - 2 * c.weight);
        if (!is_same(idle, expected))
            fail_msg("%s: costs %d: idles %g, formula %g", schedules_title(s), i, idle, expected);
        simulate_free(&sim);
        compared++;
    }
}

TEST(zb_h2_has_its_bubble)
{
    compared = 0;
    schedules_each(16, 1, 64, must_have_the_bubble_of_zb_h2);
    assert_true(compared > 2000);
}

/* Peaks from the table, i from 1: GPipe m; 1F1B p-i+1; interleaved vp + p - 1 chunks at stage 1, two fewer at each
 * stage below; ZB-H1 p-i+1 and (i-1) M_W; ZB-H2 2p-2i+1 and (2i-2) M_W. */
static void must_have_the_peak(const schedule *s)
{
    int p = s->stages, m = s->microbatches, v = s->chunks;
    if (m < 2 * p || (v > 1 && m % p) || s->folded)
        return;
    simulation sim = simulated(s, unit, 0);
    for (int stage = 0; stage < p; stage++) {
        int chunks = s->kind == SCHEDULE_GPIPE ? m * v : v == 1 ? p - stage : v * p + p - 1 - 2 * stage;
        int deferred = s->kind == SCHEDULE_ZB_H1 ? stage : s->kind == SCHEDULE_ZB_H2 ? 2 * stage : 0;
        chunks += s->kind == SCHEDULE_ZB_H2 ? p - 1 - stage : 0;
        const simulate_stage *st = &sim.stages[stage];
        if (st->in_flight != chunks || st->deferred != deferred || !is_same(st->peak, (chunks + 0.5 * deferred) / v))
            fail_msg("%s: stage %d holds %d, %d deferred, peak %g; table %d, %d", schedules_title(s), stage,
                     st->in_flight, st->deferred, st->peak, chunks, deferred);
    }
    simulate_free(&sim);
    compared++;
}

TEST(peaks_in_flight_equal_the_formulas)
{
    compared = 0;
    schedules_each(16, 4, 64, must_have_the_peak);
    assert_true(compared > 2000);
}

/* Against 1F1B with each stage's chunks merged into one: (m + p - 1) v (F + I + W), however few the micro-batches. */
static void must_not_be_slower_than_1f1b(const schedule *s)
{
    if (s->folded)
        return; /* what holds less memory may be slower */
    for (int i = 0; i < SEVERAL; i++) {
        simulate_cost c = several[i];
        schedule merged;
        assert_int_equal(schedule_make(&merged, SCHEDULE_1F1B, s->stages, 1, s->microbatches), STATUS_OK);
        simulation theirs = simulated(&merged, c, 0), ours = simulated(s, c, 0);
        if (!(ours.length <= theirs.length * s->chunks + 1e-9))
            fail_msg("%s: %g, 1F1B %g", schedules_title(s), ours.length, theirs.length * s->chunks);
        if (!is_same(theirs.length, (s->microbatches + s->stages - 1) * (c.forward + c.input + c.weight)))
            fail_msg("%s: 1F1B takes %g", schedules_title(s), theirs.length);
        simulate_free(&theirs);
        simulate_free(&ours);
        schedule_free(&merged);
    }
}

TEST(no_schedule_is_slower_than_1f1b)
{
    schedules_each(16, 4, 64, must_not_be_slower_than_1f1b);
}

/* Mutants of the formula tests: a schedule with another warm-up has another bubble or holds more. */
TEST(another_warm_up_shows_in_bubble_or_peak)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 4, 1, 12), STATUS_OK);
    /* stage 0: F F F F B F B ... -> F F F B F F B ...: its second forward pair starts late */
    action held = s.actions[0][3];
    s.actions[0][3] = s.actions[0][4];
    s.actions[0][4] = held;
    simulation sim = simulated(&s, unit, 0);
    assert_int_equal(sim.stages[0].in_flight, 4);
    assert_true(sim.stages[0].idle > idle_by_table(&s, unit) + 0.5);
    simulate_free(&sim);
    schedule_free(&s);

    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 4, 1, 12), STATUS_OK);
    /* F F F F B F -> F F F F F B */
    held = s.actions[0][4];
    s.actions[0][4] = s.actions[0][5];
    s.actions[0][5] = held;
    sim = simulated(&s, unit, 0);
    assert_int_equal(sim.stages[0].in_flight, 5);
    simulate_free(&sim);
    schedule_free(&s);
}

/* Two stages, two micro-batches, by hand: stage 0 F = 1, I + W = 3; stage 1 F = 2, I + W = 4; a hop takes 0.5. */
TEST(uneven_stages_and_hops_are_timed_by_hand)
{
    static const simulate_cost costs[2] = {{1, 2, 1}, {2, 3, 1}};
    schedule s;
    simulation sim;
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 2, 1, 2), STATUS_OK);
    assert_int_equal(simulate_run(&sim, &s, costs, 0.5, 0), STATUS_OK);
    static const simulate_span first[4] = {{0, 1}, {1, 2}, {8, 11}, {14, 17}};                /* F0 F1 B0 B1 */
    static const simulate_span second[4] = {{1.5, 3.5}, {3.5, 7.5}, {7.5, 9.5}, {9.5, 13.5}}; /* F0 B0 F1 B1 */
    for (int i = 0; i < 4; i++) {
        assert_true(is_same(sim.spans[0][i].start, first[i].start) && is_same(sim.spans[0][i].end, first[i].end));
        assert_true(is_same(sim.spans[1][i].start, second[i].start) && is_same(sim.spans[1][i].end, second[i].end));
    }
    assert_true(is_same(sim.length, 17) && is_same(sim.stages[0].idle, 9) && is_same(sim.stages[1].idle, 5));
    assert_true(is_same(sim.bubble, 14. / 34) && is_same(sim.shortest, 1));
    simulate_free(&sim);
    schedule_free(&s);
}

TEST(a_schedule_that_cannot_end_is_no_simulation)
{
    schedule s;
    simulation sim;
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 2, 1, 2), STATUS_OK);
    s.actions[1][0].microbatch = 1;
    s.actions[1][2].microbatch = 0;
    s.actions[0][1] = s.actions[0][2]; /* backward 0 in the place of forward 1, which never comes */
    assert_int_equal(simulate_uniform(&sim, &s, unit, 0, 0), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "it waits for ever"));
    schedule_free(&s);
}

static char folder[64];

static char *contents(const char *path)
{
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    char *text = must_calloc(1, 1 << 20);
    size_t bytes = fread(text, 1, (1 << 20) - 1, in);
    assert_true(bytes > 0 && bytes < (1 << 20) - 1);
    fclose(in);
    return text;
}

static char *printed(const simulation *sim, timeline_style style)
{
    char path[96];
    snprintf(path, sizeof path, "%s/timeline.txt", folder);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    timeline_print(out, sim, style);
    fclose(out);
    char *text = contents(path);
    unlink(path);
    return text;
}

static int occurrences(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

TEST(the_terminal_drawing_is_the_schedule)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_1F1B, 2, 1, 3), STATUS_OK);
    simulation sim = simulated(&s, unit, 0);
    AUTO_FREE char *text = printed(&sim, (timeline_style){.width = 75});
    assert_string_equal(text, "1f1b: 2 stages, 3 micro-batches, bubble 25.0%\n"
                              "                                               bubble in flight   peak\n"
                              "stage 0 |F0-F1-......B0----F2-B1----...B2----|  25.0%         2   2.00\n"
                              "stage 1 |...F0-B0----F1-B1----F2-B2----......|  25.0%         1   1.00\n");
    simulate_free(&sim);
    schedule_free(&s);
}

static void must_fit_the_width(const schedule *s)
{
    if (s->microbatches % 7 != 1)
        return;
    simulation sim = simulated(s, several[1], 0.25);
    for (int width = 60; width <= 260; width += 50) {
        AUTO_FREE char *text = printed(&sim, (timeline_style){.width = width});
        int lines = 0;
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++)
            if ((int)strlen(line) > width)
                fail_msg("%s: a line of %d in %d columns", schedules_title(s), (int)strlen(line), width);
        assert_int_equal(lines, s->stages + 2);
    }
    simulate_free(&sim);
}

TEST(no_line_is_wider_than_the_terminal)
{
    schedules_each(12, 2, 36, must_fit_the_width);
}

TEST(colours_are_for_terminals)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_ZB_H1, 2, 2, 4), STATUS_OK);
    simulation sim = simulated(&s, unit, 0);
    AUTO_FREE char *plain = printed(&sim, (timeline_style){.width = 120});
    AUTO_FREE char *coloured = printed(&sim, (timeline_style){.width = 120, .colour = true});
    assert_null(strchr(plain, '\033'));
    assert_true(occurrences(coloured, "\033[") > 20);
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_false(timeline_style_of(file).colour);
    fclose(file);
    simulate_free(&sim);
    schedule_free(&s);
}

TEST(the_svg_has_a_box_for_every_action)
{
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        schedule s;
        bool two = kind == SCHEDULE_INTERLEAVED || schedule_kind_folds((schedule_kind)kind);
        assert_int_equal(schedule_make(&s, (schedule_kind)kind, 4, two ? 2 : 1, 8), STATUS_OK);
        simulation sim = simulated(&s, unit, 0);
        char *text = NULL;
        size_t bytes;
        FILE *out = open_memstream(&text, &bytes);
        timeline_svg(out, &sim);
        fclose(out);
        int actions = 0, legend = (schedule_splits(&s) ? 3 : 2) * s.chunks;
        for (int stage = 0; stage < s.stages; stage++)
            actions += s.counts[stage];
        assert_int_equal(occurrences(text, "<rect "), actions + s.stages + 1 + legend);
        int ticks = occurrences(text, "<line ") - 1;
        assert_true(ticks >= 3 && ticks <= 20);
        assert_non_null(strstr(text, ">0 s<"));
        assert_int_equal(occurrences(text, "<rect ") + ticks + 1, occurrences(text, "/>"));
        assert_int_equal(occurrences(text, "<text"), occurrences(text, "</text>"));
        assert_int_equal(occurrences(text, "<g>"), occurrences(text, "</g>"));
        char bubble[16];
        snprintf(bubble, sizeof bubble, ">%.1f%%<", 100 * sim.stages[0].bubble);
        assert_int_equal(occurrences(text, bubble), s.stages);
        free(text);
        simulate_free(&sim);
        schedule_free(&s);
    }
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/phalanx-simulate-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

TEST_MAIN(make_folder, remove_folder)
