/* What a plan says of a load of experts, held against steps that are dealt out at random and played. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/tokens.h"
#include "engine/compile/plan/load.h"
#include "kernels/philox.h"
#include "kernels/record/storage.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { EXPERTS = 16, ACTIVE = 2, LAYERS = 4, RANKS = 4, TOKENS = 64, MICROBATCHES = 2, STEPS = 4000 };

static compile_options options_of(double capacity, int spill)
{
    model_shape s = {.architecture = SHAPE_OLMOE,
                     .layers = LAYERS,
                     .hidden_size = 64,
                     .heads = 4,
                     .kv_heads = 4,
                     .ffn_size = 64,
                     .vocab_size = 256,
                     .max_sequence = TOKENS,
                     .experts = EXPERTS,
                     .experts_per_token = ACTIVE,
                     .expert_capacity = capacity,
                     .expert_spill = spill};
    shape_fill(&s);
    compile_options o = {.shape = s,
                         .sequence = TOKENS,
                         .micro_batch = 1,
                         .microbatches = MICROBATCHES,
                         .layout = {.schedule = SCHEDULE_1F1B, .virtual_stages = 1, .expert = RANKS, .sequence = true},
                         .threads = 1,
                         .train = true};
    grid_single(o.layout.size);
    o.layout.size[GRID_DATA] = RANKS;
    assert_int_equal(grid_make(&o.grid, RANKS, 0, o.layout.size), STATUS_OK);
    return o;
}

static load_outcome outcome_of(const char *text, const compile_options *o)
{
    load_law law;
    load_outcome out;
    if (load_open(&law, text, &o->shape) != STATUS_OK)
        fail_msg("%s", status_message());
    load_expect(&out, &law, o);
    load_free(&law);
    return out;
}

/* ---- dealt out --------------------------------------------------------------------------------------------------- */

static double uniform(uint64_t *at)
{
    uint32_t word[4];
    philox_draws(word, 7, 0, 0, 0, (*at)++);
    return ((double)word[0] + 0.5) / 4294967296.0;
}

/* The most rows that a rank gets when each of its TOKENS x RANKS x (experts of a token) choices is dealt. */
static double shard_layer(const double *share, uint64_t *at)
{
    double rows[RANKS] = {0}, most = 0;
    for (int i = 0; i < TOKENS * RANKS * ACTIVE; i++) {
        double u = uniform(at);
        int e = 0;
        for (; e < EXPERTS - 1 && u >= share[e]; e++)
            u -= share[e];
        rows[e / (EXPERTS / RANKS)]++;
    }
    for (int r = 0; r < RANKS; r++)
        most = rows[r] > most ? rows[r] : most;
    return most;
}

/* Replays and plays of one draw's steps, as a run goes up and down the capacity. */
static void play_steps(double plays[CAPACITY_BUCKETS], double *slowest, const load_law *law, int draw,
                       const compile_options *o, uint64_t *at)
{
    capacity_shape s = buckets_capacity(o);
    bucket_state capacity = {0};
    for (int i = 0; i < STEPS; i++) {
        int needed = 0;
        for (int k = 0; k < LAYERS * MICROBATCHES; k++) {
            double rows = shard_layer(law->shares + (draw * LAYERS + k % LAYERS) * EXPERTS, at);
            *slowest += rows / ((double)TOKENS * ACTIVE) / (LAYERS * MICROBATCHES) / STEPS / law->draws;
            capacity_passes w = capacity_passes_of(&s, needed);
            while (rows > (double)capacity_rows(&w))
                w = capacity_passes_of(&s, ++needed);
        }
        plays[capacity.at] += 1.0 / STEPS / law->draws;
        plays[needed] += needed > capacity.at ? 1.0 / STEPS / law->draws : 0;
        bucket_after(&capacity, needed);
    }
}

/* Rows are dealt with repetition here, which a token's different experts are not; the plan's binomial law has as many
 * trials as that makes possible, so its spread is at most a twentieth off. */
TEST(replays_are_those_of_steps_that_are_dealt_out)
{
    const compile_options o = options_of(1.25, 1);
    load_law law;
    load_outcome out;
    double plays[CAPACITY_BUCKETS] = {0}, slowest = 0, replays = -1;
    uint64_t at = 0;
    assert_int_equal(load_open(&law, "lognormal:0.3", &o.shape), STATUS_OK);
    law.draws = 8;
    load_expect(&out, &law, &o);
    for (int d = 0; d < law.draws; d++)
        play_steps(plays, &slowest, &law, d, &o, &at);
    for (int i = 0; i < CAPACITY_BUCKETS; i++)
        replays += plays[i];
    print_message("replays %.5f, expected %.5f; plays %.4f %.4f %.4f, expected %.4f %.4f %.4f; slowest %.4f, "
                  "expected %.4f\n",
                  replays, out.replays, plays[0], plays[1], plays[2], out.plays[0], out.plays[1], out.plays[2], slowest,
                  out.slowest);
    assert_true(replays > 0.001);
    assert_true(fabs(out.replays - replays) < 0.25 * replays);
    assert_true(fabs(out.plays[0] - plays[0]) < 0.05);
    assert_true(fabs(out.slowest - slowest) < 0.01 * slowest);
    load_free(&law);
}

/* Nothing overflows where the worst routing has room, and less with more room. */
TEST(more_room_means_fewer_replays)
{
    double before = 1;
    const char *const law = "lognormal:0.6";
    for (int spill = 1; spill <= 3; spill++) {
        const compile_options o = options_of(1.0, spill);
        load_outcome out = outcome_of(law, &o);
        double plays = out.plays[0] + out.plays[1] + out.plays[2];
        assert_true(fabs(plays - 1 - out.replays) < 1e-12);
        assert_true(out.lacks[0] > 0 && out.lacks[0] < before && out.lacks[out.buckets - 1] == 0);
        before = out.lacks[0];
    }
    compile_options alone = options_of(1.25, 2);
    alone.layout.expert = 1;
    assert_true(outcome_of(law, &alone).replays == 0);
}

TEST(as_many_tokens_for_all_are_a_lognormal_law_without_spread)
{
    const compile_options o = options_of(1.25, 2);
    load_outcome even = outcome_of("balanced", &o), flat = outcome_of("lognormal:0", &o);
    assert_true(fabs(even.rank - 1) < 1e-9 && fabs(even.expert - 1) < 1e-9);
    assert_true(even.slowest > 1 && fabs(flat.slowest - even.slowest) < 1e-9);
    assert_true(fabs(flat.replays - even.replays) < 1e-12);
}

/* ---- a run's own ------------------------------------------------------------------------------------------------- */

/* `hot` of a thousand tokens choose expert 0 of each layer, the others what is left. */
static void append_record(char *text, int step, int hot)
{
    sprintf(text + strlen(text), "{\"step\": %d, \"loads\": [", step);
    for (int l = 0; l < LAYERS; l++) {
        strcat(text, l ? ", [" : "[");
        for (int e = 0; e < EXPERTS; e++)
            sprintf(text + strlen(text), "%s%d", e ? ", " : "", e ? (1000 - hot) * 15 : hot * 225);
        strcat(text, "]");
    }
    strcat(text, "]}\n");
}

static char *write_trace(void **state, const char *text)
{
    char *path = workfolder_path(*state, "loads.jsonl");
    workfolder_write(path, text, (int64_t)strlen(text));
    return path;
}

/* 199 steps in which one rank has nearly everything, and two in which all have the same: the first one is played twice,
 * and the capacity stays up to the end. */
TEST(a_trace_is_played_step_by_step)
{
    char text[8192] = "";
    append_record(text, 1, 980);
    append_record(text, 2, 980);
    append_record(text, 200, 62);
    append_record(text, 201, 62);
    const compile_options o = options_of(1.25, 2);
    AUTO_FREE char *path = write_trace(state, text);
    load_outcome out = outcome_of(path, &o);
    assert_true(fabs(out.replays - 1.0 / 201) < 1e-6 && fabs(out.plays[0] - 1.0 / 201) < 1e-6);
    assert_true(fabs(out.lacks[0] - 199.0 / 201) < 1e-6);
}

TEST(what_is_no_load_is_refused)
{
    const compile_options o = options_of(1.25, 2);
    AUTO_FREE char *path = write_trace(state, "{\"step\": 1, \"loads\": [[1, 2]]}\n");
    const char *const wrong[] = {path, "lognormal:", "lognormal:-1", "lognormal:x", "/nowhere/loads.jsonl"};
    load_law law;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(load_open(&law, wrong[i], &o.shape), STATUS_USAGE);
        assert_non_null(strstr(status_message(), "--load"));
    }
    model_shape dense = o.shape;
    dense.experts = 0;
    assert_int_equal(load_open(&law, "balanced", &dense), STATUS_USAGE);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
