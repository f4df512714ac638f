/* A run whose numbers go wrong, run.spike: it goes back, and on without the data that led to it; and comes out as a run
 * without that data does. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { BATCH = 8, LENGTH = 32, VOCABULARY = 131 };

static int write_config(void **state)
{
    workfolder_setup(state);
    const char *top = *state;
    AUTO_FREE char *path = workfolder_path(top, "run.yaml"), *data = workfolder_path(top, "clean"),
                   *held = workfolder_path(top, "held");
    AUTO_FREE char *text = must_format(
        "model: {architecture: llama, layers: 2, hidden_size: 48, heads: 4, ffn_size: 96, vocab_size: 131}\n"
        "data: {train: %s, validation: %s, shuffle: false}\n"
        "train: {steps: 160, sequence: 32, precision: fp32, device: cpu, threads: 1, global_batch: 8, micro_batch: 4}\n"
        "optimizer: {lr: 1e-2, schedule: constant, warmup: 10}\n"
        "evaluate: {every: 1000000, batches: 10}\n"
        "checkpoint: {every: 20}\n"
        "run: {tensorboard: false, hang_seconds: 60}\n",
        data, held);
    runs_write_text(path, text);
    runs_write_data(data, VOCABULARY, 100000, 1);
    runs_write_data(held, VOCABULARY, 8000, 2);
    return 0;
}

/* The clean data with the batches of steps first .. last (from 1) replaced by what nothing can be learnt of. The
 * prefix, the caller's. */
static char *write_bad(const char *top, const char *name, int first, int last)
{
    char *prefix = workfolder_path(top, name);
    launch_result r = launch_run(30, "cp %s/clean.bin %s.bin && cp %s/clean.idx %s.idx", top, prefix, top, prefix);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    AUTO_FREE char *path = must_format("%s.bin", prefix);
    int file = open(path, O_WRONLY);
    uint32_t random = 12345;
    for (int i = (first - 1) * BATCH * LENGTH; i < last * BATCH * LENGTH; i++) {
        random = random * 1664525 + 1013904223;
        uint16_t id = (uint16_t)((random >> 16) % VOCABULARY);
        assert_int_equal(pwrite(file, &id, sizeof id, (off_t)i * (off_t)sizeof id), sizeof id);
    }
    close(file);
    return prefix;
}

static double held_loss(const char *top, const char *run)
{
    AUTO_FREE char *folder = workfolder_path(top, run);
    runs_metrics m = runs_read_metrics(folder);
    assert_int_equal(m.evaluations, 1);
    return m.evaluation[0].loss;
}

static void train(const char *top, const char *run, int ranks, const char *data, const char *more)
{
    free(runs_train_well(60, ranks, "%s/run.yaml run.folder=%s/%s data.train=%s %s", top, top, run, data, more));
}

#define REWIND "run.spike.zscore=8 run.spike.rewind=true "
#define ALIKE  REWIND "evaluate.every=0 "

/* name of data, its bad steps, the run's steps */
static void comes_out_alike(const char *top, const char *name, int first, int last, int steps)
{
    AUTO_FREE char *clean = workfolder_path(top, "clean"), *bad = write_bad(top, name, first, last);
    AUTO_FREE char *more = must_format(REWIND "train.steps=%d", steps), *plain = must_format("train.steps=%d", steps);
    char *runs[3] = {must_format("%s-clean", name), must_format("%s-plain", name), must_format("%s-back", name)};
    train(top, runs[0], 1, clean, more);
    train(top, runs[1], 1, bad, plain);
    train(top, runs[2], 1, bad, more);
    double good = held_loss(top, runs[0]), missed = held_loss(top, runs[1]), back = held_loss(top, runs[2]);
    if (!(fabs(back / good - 1) <= 0.01) || !(missed / good - 1 > 0.01))
        fail_msg("%s: loss %g without the bad data, %g after going back, %g otherwise", name, good, back, missed);
    AUTO_FREE char *folder = workfolder_path(top, runs[2]), *other = workfolder_path(top, runs[0]);
    runs_metrics m = runs_read_metrics(folder), quiet = runs_read_metrics(other);
    assert_true(m.events > 0 && quiet.events == 0);
    assert_int_equal(m.count, steps); /* each step once */
    json_t *summary = runs_read_summary(folder);
    assert_int_equal(json_integer_value(json_object_get(summary, "times_gone_back")), m.events);
    assert_true(json_integer_value(json_object_get(summary, "samples_left_out")) >= (last - first + 1) * BATCH);
    json_decref(summary);
    for (int i = 0; i < 3; i++)
        free(runs[i]);
}

TEST(a_divergence_is_undone)
{
    comes_out_alike(*state, "fifty", 101, 150, 160);
}

TEST(a_spike_is_undone)
{
    comes_out_alike(*state, "short", 108, 112, 112);
}

static void is_bitwise(const char *top, const char *run, const char *other)
{
    char difference[512], *a = workfolder_path(top, run), *b = workfolder_path(top, other);
    runs_metrics x = runs_read_metrics(a), y = runs_read_metrics(b);
    int tensors = runs_compare_checkpoints(difference, sizeof difference, a, b);
    if (tensors < 10 || *difference || !runs_same_metrics(&x, &y))
        fail_msg("%s and %s: %d tensors are equal, %s", run, other, tensors, difference);
    free(a);
    free(b);
}

/* Stopped before the spike, off the schedule of checkpoints; and behind it. */
TEST(going_back_is_bitwise_over_reruns_and_resumes)
{
    const char *top = *state;
    AUTO_FREE char *bad = write_bad(top, "again", 51, 53);
    train(top, "again-a", 2, bad, ALIKE "train.steps=70");
    train(top, "again-b", 2, bad, ALIKE "train.steps=70");
    train(top, "again-c", 2, bad, ALIKE "train.steps=47");
    train(top, "again-c", 2, bad, ALIKE "train.steps=55");
    train(top, "again-c", 2, bad, ALIKE "train.steps=70");
    AUTO_FREE char *folder = workfolder_path(top, "again-a");
    runs_metrics m = runs_read_metrics(folder);
    assert_true(m.events >= 2);
    is_bitwise(top, "again-b", "again-a");
    is_bitwise(top, "again-c", "again-a");
}

/* Before there is a checkpoint, back is the beginning. */
TEST(a_run_without_checkpoints_begins_anew)
{
    const char *top = *state;
    AUTO_FREE char *bad = write_bad(top, "early", 25, 25);
    AUTO_FREE char *out = runs_train_well(
        60, 2, "%s/run.yaml run.folder=%s/early-run data.train=%s " REWIND "train.steps=40 checkpoint.every=0", top,
        top, bad);
    assert_non_null(strstr(out, "going on after step 0, without samples 0 to 199"));
}

TEST(without_rewind_a_spike_is_said)
{
    const char *top = *state;
    AUTO_FREE char *bad = write_bad(top, "said", 31, 31), *run = workfolder_path(top, "said-run");
    char *line =
        must_format("%s/run.yaml run.folder=%s data.train=%s train.steps=34 run.spike.zscore=8", top, run, bad);
    launch_result r = runs_train(60, 1, line);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err, "step 31: a spike: loss "));
    AUTO_FREE char *path = must_format("%s/incidents.jsonl", run);
    json_t *incident = runs_last_line(path);
    assert_string_equal(json_string_value(json_object_get(incident, "verdict")), "numbers");
    assert_int_equal(json_integer_value(json_object_get(incident, "step")), 31);
    json_decref(incident);
    runs_metrics m = runs_read_metrics(run);
    assert_int_equal(m.events, 1);
    launch_free(&r);
    free(line);
}

/* Data that is bad to its end: the run gives up, and says where to look. */
TEST(a_run_does_not_go_back_for_ever)
{
    const char *top = *state;
    AUTO_FREE char *bad = write_bad(top, "ever", 31, 300);
    AUTO_FREE char *line =
        must_format("%s/run.yaml run.folder=%s/ever-run data.train=%s train.steps=60 " REWIND, top, top, bad);
    launch_result r = runs_train(60, 1, line);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "the run has gone back to step 20 8 times"));
    launch_free(&r);
}

TEST_MAIN(write_config, workfolder_teardown)
