/* Bits that flip in silence, run.verify_every: found, the rank named, undone; and the run then ends as if nothing had
 * happened.
 *
 * PHALANX_FLIPS=N adds N flips of every kind at random (a campaign, `make faults` style) and prints a table.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 16, EVERY = 5, MICRO_BATCHES = 4 };

static const struct {
    const char *name, *keys;
    int ranks;
} layouts[] = {
    {"one rank", "train.global_batch=4", 1},
    {"ZeRO 0", "parallel.zero=0 train.global_batch=8", 2},
    {"ZeRO 1", "parallel.zero=1 train.global_batch=8", 2},
    {"ZeRO 3", "parallel.zero=3 train.global_batch=8", 2},
    {"pipeline", "parallel.pipeline=2 train.global_batch=4", 2},
    {"tensor", "parallel.tensor=2 train.global_batch=4", 2},
    {"context", "parallel.context=2 parallel.zero=0 train.global_batch=4", 2},
    {"ZeRO 0 of 3", "parallel.zero=0 train.global_batch=12", 3},
};

enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static int write_config(void **state)
{
    workfolder_setup(state);
    const char *top = *state;
    AUTO_FREE char *data = workfolder_path(top, "data"), *path = workfolder_path(top, "run.yaml");
    AUTO_FREE char *text = must_format(
        "model: {architecture: llama, layers: 2, hidden_size: 32, heads: 4, ffn_size: 64, vocab_size: 131}\n"
        "data: {train: %s}\n"
        "train: {steps: %d, sequence: 32, precision: bf16, device: cpu, threads: 1, micro_batch: 1}\n"
        "evaluate: {every: 0}\n"
        "checkpoint: {every: 5, asynchronous: false}\n"
        "run: {tensorboard: false, hang_seconds: 120, slow_ratio: 0, verify_every: %d, hash_every: 1}\n",
        data, STEPS, EVERY);
    runs_write_data(data, 131, 30000, 1);
    runs_write_text(path, text);
    return 0;
}

static char *folder_of(const char *top, int layout, const char *name)
{
    return must_format("%s/%s-%d", top, name, layout);
}

static launch_result play(const char *top, int layout, const char *run, const char *fault)
{
    char *mpirun = layouts[layout].ranks > 1 ? launch_mpirun(layouts[layout].ranks) : must_strdup("");
    AUTO_FREE char *program = launch_beside("rank_faulty");
    launch_result r = launch_run(120, "rm -rf %s; PHALANX_FAULT='%s' %s %s %s/run.yaml run.folder=%s %s", run, fault,
                                 mpirun, program, top, run, layouts[layout].keys);
    free(mpirun);
    return r;
}

typedef struct outcome {
    bool injected, found, named, gave_up;
    bool alike; /* to the last bit, as a run without the fault */
    char *err;
} outcome;

/* Each layout's undisturbed run is made once. */
static outcome suffer(const char *top, int layout, const char *kind, int rank, int step, int seed)
{
    static bool there[LAYOUTS];
    AUTO_FREE char *good = folder_of(top, layout, "good"), *run = folder_of(top, layout, "bad");
    if (!there[layout]) {
        launch_result quiet = play(top, layout, good, "none -1 0 0");
        AUTO_FREE char *incidents = must_format("%s/incidents.jsonl", good);
        json_t *any = runs_last_line(incidents);
        if (quiet.status != 0 || any) /* nothing is found where nothing is wrong */
            fail_msg("%s: %s", layouts[layout].name, quiet.err);
        launch_free(&quiet);
        there[layout] = true;
    }
    char *fault = must_format("%s %d %d %d", kind, rank, step, seed), difference[512] = "";
    AUTO_FREE char *name = must_format("rank %d on ", rank), *path = must_format("%s/incidents.jsonl", run);
    launch_result r = play(top, layout, run, fault);
    outcome out = {.injected = strstr(r.err, "injected: "), .gave_up = r.status == 1};
    json_t *incident = out.injected ? runs_last_line(path) : NULL;
    const char *words = json_string_value(json_object_get(incident, "words"));
    out.found = words != NULL;
    out.named = words && strstr(words, name);
    if (out.found) {
        int64_t at = json_integer_value(json_object_get(incident, "step"));
        assert_string_equal(json_string_value(json_object_get(incident, "verdict")), "numbers");
        assert_true(out.gave_up || (at >= step && at < step + EVERY));
    }
    if (!out.gave_up) {
        runs_metrics a = runs_read_metrics(run), b = runs_read_metrics(good);
        int tensors = runs_compare_checkpoints(difference, sizeof difference, run, good);
        out.alike = tensors > 10 && !*difference && runs_same_metrics(&a, &b);
    }
    json_decref(incident);
    out.err = must_strdup(r.err);
    if (r.timed_out || r.status > 1)
        fail_msg("%s, %s: status %d: %s", layouts[layout].name, fault, r.status, r.err);
    launch_free(&r);
    free(fault);
    return out;
}

/* What sums see is certain to be found. */
static void is_undone(const char *top, int layout, const char *kind, int rank, int step, int seed)
{
    outcome o = suffer(top, layout, kind, rank, step, seed);
    if (!o.injected || !o.found || !o.named || !o.alike)
        fail_msg("%s: %s of rank %d at step %d (%d): %s%s%s%s%s", layouts[layout].name, kind, rank, step, seed,
                 o.injected ? "" : "not injected, ", o.found ? "" : "not found, ", o.named ? "" : "not named, ",
                 o.alike ? "" : "another end, ", o.err);
    free(o.err);
}

TEST(state_that_changes_at_rest_is_found)
{
    for (int layout = 0; layout < LAYOUTS - 1; layout++)
        for (int k = 0; k < 2; k++)
            is_undone(*state, layout, "state", k % layouts[layout].ranks, 3 + 5 * k + layout, 10 * layout + k);
}

/* What a rank holds of other ranks' rows is read by its products, and gathered again a step later. */
TEST(rows_that_others_own_are_watched_while_they_are_read)
{
    for (int k = 0; k < 4; k++)
        is_undone(*state, 2, "others", k % 2, 4 + 2 * k, k);
}

TEST(messages_that_change_are_found)
{
    for (int layout = 1; layout < LAYOUTS - 1; layout++)
        is_undone(*state, layout, "message", layout % 2, 4 + layout, layout);
}

/* An update that goes wrong on one of three: what it wrote is what its sum says. */
TEST(replicas_that_differ_are_found)
{
    is_undone(*state, LAYOUTS - 1, "update", 1, 7, 1);
}

/* A unit that gives another result each time: found at the first repetition, and there to stay. */
TEST(arithmetic_that_does_not_repeat_is_found)
{
    for (int layout = 0; layout < 4; layout += 3) {
        outcome o = suffer(*state, layout, "results", layouts[layout].ranks - 1, 6, layout);
        if (!o.injected || !o.found || !o.named || !o.gave_up)
            fail_msg("%s: %s", layouts[layout].name, o.err);
        assert_non_null(strstr(o.err, "when it was computed again"));
        assert_non_null(strstr(o.err, "3 verifications in a row have failed: leave out that host"));
        free(o.err);
    }
}

/* One wrong result in a micro-batch that is not repeated: what this cannot see, and why it matters. The hash of the
 * weights shows at which step the two runs part. */
TEST(a_single_fault_outside_the_repetition_changes_the_run)
{
    const char *top = *state;
    char *good = folder_of(top, 0, "good"), *bad = folder_of(top, 0, "bad"), difference[512] = "";
    outcome o = suffer(top, 0, "result", 0, 11, 3); /* steps 10 and 15 repeat one */
    assert_true(o.injected && !o.found && !o.alike);
    runs_compare_checkpoints(difference, sizeof difference, bad, good);
    assert_true(*difference);
    runs_metrics a = runs_read_metrics(good), b = runs_read_metrics(bad);
    assert_true(a.count == STEPS && b.count == STEPS);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(strcmp(a.step[i].hash, b.step[i].hash) != 0, a.step[i].step >= 11);
    free(o.err);
    free(bad);
    free(good);
}

/* ---- a campaign -------------------------------------------------------------------------------------------------- */

TEST(flips_at_random)
{
    static const char *const kinds[] = {"state", "message", "result"};
    int wanted = getenv("PHALANX_FLIPS") ? atoi(getenv("PHALANX_FLIPS")) : 0, done[4][3] = {0}, found[4][3] = {0};
    int named[4][3] = {0}, alike[4][3] = {0};
    for (int i = 0, n = 0; n < wanted; i++) {
        int layout = i % 4, kind = i / 4 % 3;
        if (layouts[layout].ranks == 1 && kind == 1)
            continue;
        outcome o = suffer(*state, layout, kinds[kind], i % layouts[layout].ranks, 2 + (7 * i + i / 12) % 14, i);
        n += o.injected;
        done[layout][kind] += o.injected;
        found[layout][kind] += o.injected && o.found;
        named[layout][kind] += o.injected && o.named;
        alike[layout][kind] += o.injected && o.alike;
        if (o.injected && kind < 2 && (!o.found || !o.named || !o.alike))
            print_message("%s, %s, %d: found %d, named %d, alike %d: %s\n", layouts[layout].name, kinds[kind], i,
                          o.found, o.named, o.alike, o.err);
        free(o.err);
    }
    for (int l = 0; l < 4 && wanted > 0; l++)
        for (int k = 0; k < 3; k++)
            print_message("%-10s %-8s %3d injected, %3d found, %3d named, %3d ended bitwise alike\n", layouts[l].name,
                          kinds[k], done[l][k], found[l][k], named[l][k], alike[l][k]);
    for (int l = 0; l < 4; l++)
        for (int k = 0; k < 2; k++)
            assert_true(found[l][k] == done[l][k] && named[l][k] == done[l][k] && alike[l][k] == done[l][k]);
}

TEST_MAIN(write_config, workfolder_teardown)
