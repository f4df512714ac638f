/* Schedules with published figures, and those that are found: what schedule_search.h and schedule_make.h promise.
 *
 * Figures: Tables 5 and 9 of 2401.10241 (rows of 1.5B and 28.3B), and the folded schedules of 2405.15362. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "parallel/schedule/schedule.h"
#include "parallel/schedule/schedule_make.h"
#include "tests/parallel/schedule/schedules.h"
#include "tests/test.h"

enum { STAGES_MOST = 32, CHUNKS_MOST = 2 * STAGES_MOST };

/* One row: costs in milliseconds, and the bubbles. */
typedef struct published {
    int stages, microbatches, chunks; /* chunks: of interleaved */
    double forward, input, weight, message;
    double one_f_one_b, interleaved, zb_h1, zb_h2, found[2]; /* found in the memory of p and 2p micro-batches */
    double defers;                                           /* share of the activations held between I and W */
} published;

/* Of s b h bytes a layer a forward keeps 34 + 5 a s / h, and 32 stay between I and W. */
#define SHARE(hidden, heads) (32. / (34 + 5. * (heads)*1024 / (hidden)))

static const published table[] = {
    {8, 24, 3, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585, 0.1083, {0.1585, 0.0433}, SHARE(2304, 24)},
    {8, 32, 3, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.0818, 0.1242, 0.0837, {0.1242, 0.0039}, SHARE(2304, 24)},
    {8, 64, 3, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 0.0674, 0.0444, {0.0674, 0.0026}, SHARE(2304, 24)},
    {32, 96, 2, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1493, 0.1421, 0.0641, {0.1421, 0.0038}, SHARE(6144, 48)},
    {32, 128, 2, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 0.1106, 0.0490, {0.1106, 0.0029}, SHARE(6144, 48)},
    {32, 256, 2, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0624, 0.0594, 0.0257, {0.0594, 0.0018}, SHARE(6144, 48)},
};
enum { ROWS = sizeof table / sizeof *table };

/* Half of the last digit printed. */
static const double ROUNDING = 0.00005 + 1e-9;

static double work_of(const published *row)
{
    return row->microbatches * (row->forward + row->input + row->weight);
}

static double span_of(const schedule *s, const simulate_cost *costs, double hop)
{
    simulation sim;
    if (schedule_check(s) != STATUS_OK || simulate_run(&sim, s, costs, hop, 0) != STATUS_OK)
        fail_msg("%s: %s", schedules_title(s), status_message());
    double span = sim.span;
    simulate_free(&sim);
    return span;
}

static void fill(simulate_cost *out, const published *row, int chunks)
{
    for (int g = 0; g < row->stages * chunks; g++)
        out[g] = (simulate_cost){row->forward / chunks, row->input / chunks, row->weight / chunks};
}

static double bubble_of(const published *row, schedule_kind kind, int chunks)
{
    schedule s;
    simulate_cost costs[CHUNKS_MOST + STAGES_MOST];
    fill(costs, row, chunks);
    assert_int_equal(schedule_make(&s, kind, row->stages, chunks, row->microbatches), STATUS_OK);
    double span = span_of(&s, costs, row->message);
    schedule_free(&s);
    return 1 - work_of(row) / span;
}

static void must_be(double found, double expected, const char *what, int row)
{
    if (!(fabs(found - expected) <= ROUNDING))
        fail_msg("row %d, %s: bubble %.5f, published %.4f", row, what, found, expected);
}

TEST(named_schedules_have_the_published_bubbles)
{
    for (int i = 0; i < ROWS; i++) {
        const published *row = &table[i];
        must_be(bubble_of(row, SCHEDULE_1F1B, 1), row->one_f_one_b, "1f1b", i);
        must_be(bubble_of(row, SCHEDULE_ZB_H1, 1), row->zb_h1, "zb-h1", i);
        must_be(bubble_of(row, SCHEDULE_ZB_H2, 1), row->zb_h2, "zb-h2", i);
    }
}

/* m T + (p-1) T / v + ((2v-1)p - 2) message is theirs; the order that is run passes p messages more. */
TEST(interleaved_is_the_closed_form_and_a_message_for_each_stage)
{
    for (int i = 0; i < ROWS; i++) {
        const published *row = &table[i];
        int p = row->stages, v = row->chunks;
        double work = work_of(row), each = work / row->microbatches;
        double closed = work + (p - 1) * each / v + ((2 * v - 1) * p - 2) * row->message;
        must_be(1 - work / closed, row->interleaved, "closed form", i);
        must_be(bubble_of(row, SCHEDULE_INTERLEAVED, v), 1 - work / (closed + p * row->message), "interleaved", i);
    }
}

/* A schedule found in `memory` micro-batches of a stage. */
static void find(schedule *out, const published *row, int chunks, bool folded, double memory)
{
    simulate_cost costs[CHUNKS_MOST];
    double holds[CHUNKS_MOST], defers[CHUNKS_MOST], limit[STAGES_MOST], peaks[STAGES_MOST];
    fill(costs, row, chunks);
    for (int g = 0; g < row->stages * chunks; g++) {
        holds[g] = 1. / chunks;
        defers[g] = row->defers / chunks;
    }
    for (int i = 0; i < row->stages; i++)
        limit[i] = memory;
    schedule_search_terms terms = {.stages = row->stages,
                                   .chunks = chunks,
                                   .microbatches = row->microbatches,
                                   .costs = costs,
                                   .hop = row->message,
                                   .holds = holds,
                                   .defers = defers,
                                   .limit = {folded ? NULL : limit, folded ? limit : NULL}};
    if (schedule_search(out, &terms) != STATUS_OK)
        fail_msg("%s", status_message());
    schedule_search_peaks(peaks, out, holds, defers);
    for (int i = 0; i < row->stages; i++)
        if (!(peaks[i] <= memory * (1 + 1e-9)))
            fail_msg("%s: stage %d holds %g of %g", schedules_title(out), i, peaks[i], memory);
}

TEST(found_schedules_are_not_above_the_published_ones)
{
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < 2; k++) {
            const published *row = &table[i];
            simulate_cost costs[CHUNKS_MOST];
            schedule s;
            fill(costs, row, 1);
            find(&s, row, 1, false, (k + 1) * row->stages);
            double bubble = 1 - work_of(row) / span_of(&s, costs, row->message);
            print_message("%d stages, %d micro-batches, memory of %d: %.4f, published %.4f\n", row->stages,
                          row->microbatches, (k + 1) * row->stages, bubble, row->found[k]);
            if (!(bubble <= row->found[k] + ROUNDING))
                fail_msg("row %d, %d p: bubble %.5f, published %.4f", i, k + 1, bubble, row->found[k]);
            schedule_free(&s);
        }
}

/* All actions of half a stage take a tick, and its activations are held from F to W. */
static const published even = {4, 12, 2, 2, 2, 2, 0, 0, 0, 0, 0, {0}, 1};

static int idle_ticks(const schedule *s)
{
    simulate_cost costs[CHUNKS_MOST];
    for (int g = 0; g < s->stages * s->chunks; g++)
        costs[g] = (simulate_cost){1, 1, 1};
    return (int)lround(span_of(s, costs, 0)) - 3 * s->chunks * s->microbatches;
}

TEST(less_memory_costs_what_the_buckets_say)
{
    static const struct {
        int half_chunks, idle;
    } capacity[] = {{4, 11}, {5, 8}, {6, 5}, {7, 3}, {8, 0}};
    for (int i = 0; i < 5; i++) {
        schedule s;
        find(&s, &even, 2, true, capacity[i].half_chunks / 2.);
        assert_int_equal(idle_ticks(&s), capacity[i].idle);
        schedule_free(&s);
    }
}

TEST(folded_schedules_hold_and_idle_what_they_should)
{
    for (int p = 2; p <= STAGES_MOST; p++) {
        const int holds[] = {p, (p + 2) / 2, (p + 4) / 3}; /* zb-v, v-half, v-min */
        const int idles[] = {0, p == 2 ? 1 : p == 4 ? 5 : p % 2 ? 3 * p - 4 : 3 * p - 5, p == 2 ? 2 : 4 * p - 5};
        for (int k = 0; k < 3; k++) {
            schedule s;
            double ones[CHUNKS_MOST], peaks[STAGES_MOST];
            for (int g = 0; g < 2 * p; g++)
                ones[g] = 0.5;
            schedule_kind kind = k == 0 ? SCHEDULE_ZB_V : k == 1 ? SCHEDULE_V_HALF : SCHEDULE_V_MIN;
            assert_int_equal(schedule_make(&s, kind, p, 2, 3 * p), STATUS_OK);
            schedule_search_peaks(peaks, &s, ones, ones);
            for (int stage = 0; stage < p; stage++)
                if (!(peaks[stage] <= holds[k] + 1e-9))
                    fail_msg("%s: stage %d holds %g, not %d", schedules_title(&s), stage, peaks[stage], holds[k]);
            if (idle_ticks(&s) != idles[k])
                fail_msg("%s: idles %d ticks, not %d", schedules_title(&s), idle_ticks(&s), idles[k]);
            schedule_free(&s);
        }
    }
}

TEST(a_stage_holds_the_chunks_at_both_ends_of_a_fold)
{
    schedule s;
    assert_int_equal(schedule_make(&s, SCHEDULE_ZB_V, 4, 2, 1), STATUS_OK);
    for (int stage = 0; stage < 4; stage++) {
        assert_int_equal(schedule_global_chunk(&s, stage, 0), stage);
        assert_int_equal(schedule_global_chunk(&s, stage, 1), 7 - stage);
        assert_int_equal(schedule_stage_of(&s, 7 - stage), stage);
    }
    schedule_free(&s);
    assert_int_equal(schedule_make(&s, SCHEDULE_V_MIN, 4, 1, 8), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "v-min with 1 virtual stages: it needs 2"));
}

/* In the memory of each named schedule, with uneven stages and messages. */
TEST(found_schedules_are_not_worse_than_named_ones)
{
    enum { P = 3, M = 7 };
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        int chunks = kind == SCHEDULE_INTERLEAVED || schedule_kind_folds((schedule_kind)kind) ? 2 : 1;
        simulate_cost costs[2 * P];
        double holds[2 * P], defers[2 * P], limit[P], peaks[P];
        for (int g = 0; g < P * chunks; g++) {
            costs[g] = (simulate_cost){2 + g % 3, 2, 1 + 0.5 * (g % 2)};
            holds[g] = 3 + g % 2;
            defers[g] = 1;
        }
        schedule named, found, again;
        simulation a, b;
        assert_int_equal(schedule_make(&named, (schedule_kind)kind, P, chunks, M), STATUS_OK);
        schedule_search_peaks(limit, &named, holds, defers);
        schedule_search_terms terms = {P, chunks, M, costs, 0.25, holds, defers, {NULL, NULL}, true};
        terms.limit[named.folded] = limit;
        assert_int_equal(schedule_search(&found, &terms), STATUS_OK);
        assert_int_equal(schedule_search(&again, &terms), STATUS_OK);
        assert_int_equal(schedule_check(&found), STATUS_OK);
        schedule_search_peaks(peaks, &found, holds, defers);
        for (int i = 0; i < P; i++) {
            assert_true(peaks[i] <= limit[i] * (1 + 1e-9));
            assert_int_equal(found.counts[i], again.counts[i]);
            for (int k = 0; k < found.counts[i]; k++) {
                action x = found.actions[i][k], y = again.actions[i][k];
                assert_true(x.kind == y.kind && x.chunk == y.chunk && x.microbatch == y.microbatch);
            }
        }
        assert_int_equal(simulate_run(&a, &named, costs, 0.25, 0), STATUS_OK);
        assert_int_equal(simulate_run(&b, &found, costs, 0.25, 0), STATUS_OK);
        if (!(b.length <= a.length * (1 + 1e-12)))
            fail_msg("%s takes %g, found %g", schedules_title(&named), a.length, b.length);
        simulate_free(&a);
        simulate_free(&b);
        schedule_free(&named);
        schedule_free(&found);
        schedule_free(&again);
    }
}

TEST(nothing_fits_in_no_memory)
{
    simulate_cost costs[2] = {{1, 1, 1}, {1, 1, 1}};
    double ones[2] = {1, 1}, limit[2] = {0.5, 0.5};
    schedule s;
    schedule_search_terms terms = {2, 1, 4, costs, 0, ones, ones, {limit, NULL}, false};
    assert_int_equal(schedule_search(&s, &terms), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "fits in memory"));
}

TEST_MAIN(NULL, NULL)
