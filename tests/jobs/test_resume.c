/* Promise 3: what is stopped goes on, bit for bit; in another layout, as one and the same training. The runs blend two
 * data sets, shuffle, drop out and evaluate, and stop wherever: between steps, by SIGTERM, by SIGKILL. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 8, STOP = 3 };

/* Of five steps' samples two sets in the proportion 5 to 3: the stop falls within a round of the blend. */
static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    AUTO_FREE char *first = workfolder_path(top, "first"), *second = workfolder_path(top, "second");
    AUTO_FREE char *held = workfolder_path(top, "held"), *path = workfolder_path(top, "run.yaml");
    runs_write_data(first, 131, 9000, 1);
    runs_write_data(second, 131, 6000, 2);
    runs_write_data(held, 131, 4000, 3);
    char *text = must_format(
        "model: {architecture: gpt2, layers: 4, hidden_size: 48, heads: 4, vocab_size: 131, max_sequence: 32}\n"
        "data: {train: [{path: %s, weight: 5}, {path: %s, weight: 3}], validation: %s, shuffle: true}\n"
        "train: {steps: %d, sequence: 32, micro_batch: 2, global_batch: 12, precision: fp32, "
        "device: cpu, threads: 1, seed: 3, dropout: 0.1}\n"
        "optimizer: {lr: 3e-3, schedule: constant, warmup: 3}\n"
        "checkpoint: {every: 0, keep: 0}\n"
        "evaluate: {every: 2, batches: 2}\n"
        "run: {tensorboard: false, hang_seconds: 60}\n",
        first, second, held, STEPS);
    runs_write_text(path, text);
    free(text);
    return 0;
}

__attribute__((format(printf, 3, 4))) static void train(const char *top, int ranks, const char *format, ...)
{
    char keys[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(keys, sizeof keys, format, arguments);
    va_end(arguments);
    free(runs_train_well(120, ranks, "%s/run.yaml %s", top, keys));
}

/* Same metrics to the last bit, and the same tensors in the latest checkpoints. */
static void assert_same(const char *top, const char *run, const char *other)
{
    char *a = workfolder_path(top, run), *b = workfolder_path(top, other), difference[256];
    runs_metrics x = runs_read_metrics(a), y = runs_read_metrics(b);
    if (!runs_same_metrics(&x, &y))
        fail_msg("%s and %s: metrics differ (losses by %.1e)", run, other, runs_loss_error(&x, &y));
    assert_int_equal(x.count, STEPS);
    assert_true(x.evaluations >= STEPS / 2);
    int equal = runs_compare_checkpoints(difference, sizeof difference, a, b);
    if (*difference)
        fail_msg("%s and %s: checkpoints differ in %s", run, other, difference);
    assert_true(equal >= 3 * 50); /* weights and two moments */
    free(a);
    free(b);
}

/* Steps and steps again; steps in two parts; the second part from a whole run's checkpoint. */
static void resume_is_bitwise(const char *top, int ranks, const char *name, const char *keys)
{
    train(top, ranks, "%s run.folder=%s/%s-whole checkpoint.every=%d", keys, top, name, STOP);
    train(top, ranks, "%s run.folder=%s/%s-parts train.steps=%d evaluate.every=0", keys, top, name, STOP);
    AUTO_FREE char *parts = must_format("%s-parts", name), *whole = must_format("%s-whole", name),
                   *again = must_format("%s-again", name);
    train(top, ranks, "%s run.folder=%s/%s", keys, top, parts);
    char *a = workfolder_path(top, parts), *b = workfolder_path(top, whole), difference[256];
    runs_metrics x = runs_read_metrics(a), y = runs_read_metrics(b);
    assert_int_equal(x.count, STEPS);
    y.evaluations = x.evaluations = 0;
    assert_true(runs_same_metrics(&x, &y));
    assert_true(runs_compare_checkpoints(difference, sizeof difference, a, b) >= 3 * 50);
    assert_string_equal(difference, "");
    free(a);
    free(b);
    train(top, ranks, "%s run.folder=%s/%s checkpoint.every=%d", keys, top, again, STOP);
    assert_same(top, again, whole);
}

TEST(resume_is_bitwise_in_fp32)
{
    resume_is_bitwise(*state, 1, "fp32", "");
}

TEST(resume_is_bitwise_in_bf16)
{
    resume_is_bitwise(*state, 1, "bf16", "train.precision=bf16 data.document_mask=true");
}

TEST(resume_is_bitwise_on_four_ranks)
{
    resume_is_bitwise(*state, 4, "four",
                      "train.precision=bf16 parallel.tensor=2 parallel.zero=3 parallel.zero_reduce=micro_batch");
}

/* Ended by a signal in the middle of LONG steps, then started again: as if it had not happened. */
static void a_signal_changes_nothing(const char *top, const char *name, int how, int expected)
{
    enum { LONG = 60 };
    char *folder = workfolder_path(top, name), *whole = workfolder_path(top, "long"), difference[256];
    AUTO_FREE char *keys = must_format("train.steps=%d checkpoint.every=2 checkpoint.keep=2 evaluate.every=0", LONG);
    AUTO_FREE char *line = must_format("%s/run.yaml run.folder=%s %s", top, folder, keys);
    if (access(whole, F_OK) != 0)
        train(top, 1, "run.folder=%s %s", whole, keys);
    launch *l = runs_start(60, 1, line);
    assert_true(runs_wait_for_step(folder, 5, 30));
    kill(launch_pid(l), how);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, expected);
    launch_free(&r);
    runs_metrics part = runs_read_metrics(folder), all = runs_read_metrics(whole);
    assert_in_range(part.count, 5, LONG - 1); /* it was in the middle */
    checkpoint *c = NULL;
    assert_int_equal(checkpoint_open(&c, folder), STATUS_OK);
    int64_t saved = (int64_t)json_integer_value(json_object_get(checkpoint_meta(c), "step"));
    checkpoint_close(c);
    if (how == SIGTERM)
        assert_int_equal(saved, part.count); /* the step at hand was finished and saved */
    assert_true(saved > 0 && saved <= part.count + 1);
    r = runs_train(60, 1, line);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "resumed from"));
    launch_free(&r);
    part = runs_read_metrics(folder);
    assert_int_equal(part.count, LONG);
    assert_true(runs_same_metrics(&part, &all));
    assert_true(runs_compare_checkpoints(difference, sizeof difference, folder, whole) >= 3 * 50);
    assert_string_equal(difference, "");
    free(whole);
    free(folder);
}

TEST(after_sigterm_it_has_saved_and_goes_on_bit_for_bit)
{
    a_signal_changes_nothing(*state, "terminated", SIGTERM, 75);
}

TEST(after_sigkill_it_goes_on_from_the_last_checkpoint_bit_for_bit)
{
    a_signal_changes_nothing(*state, "killed", SIGKILL, 128 + SIGKILL);
}

/* Saved in one layout after STOP steps, continued in another: the losses of the uninterrupted run. */
TEST(another_layout_continues_the_same_training)
{
    static const struct {
        const char *name;
        int ranks;
        const char *keys;
        int then;
        const char *then_keys;
    } pairs[] = {
        {"uneven", 3, "parallel.zero=3 parallel.zero_gather=micro_batch", 2,
         "parallel.zero=3 parallel.zero_reduce=micro_batch train.micro_batch=3"},
        {"fewer", 4, "parallel.tensor=2 parallel.pipeline=2", 1, ""},
        {"more", 1, "", 4, "parallel.tensor=4 parallel.sequence=false"},
        {"divided", 4, "parallel.pipeline=4 parallel.vocabulary=stages", 2, "parallel.tensor=2"},
        {"together", 2, "parallel.tensor=2 parallel.zero=1", 4,
         "parallel.tensor=2 parallel.pipeline=2 parallel.vocabulary=stages parallel.schedule=zb-h1"},
        {"other", 4, "parallel.pipeline=2 parallel.schedule=zb-h1 parallel.zero=2", 6,
         "parallel.tensor=2 parallel.zero=1"},
    };
    const char *top = *state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *name = pairs[i].name;
        train(top, pairs[i].ranks, "%s run.folder=%s/%s checkpoint.every=%d", pairs[i].keys, top, name, STOP);
        train(top, pairs[i].then, "%s run.folder=%s/%s-then checkpoint.resume=%s/%s/checkpoints/step-%08d",
              pairs[i].then_keys, top, name, top, name, STOP);
        AUTO_FREE char *a = workfolder_path(top, name), *b = must_format("%s-then", a);
        runs_metrics whole = runs_read_metrics(a), rest = runs_read_metrics(b), tail = whole;
        assert_int_equal(rest.count, STEPS - STOP);
        tail.count = rest.count;
        memmove(tail.step, tail.step + STOP, (size_t)rest.count * sizeof *tail.step);
        double loss = runs_loss_error(&rest, &tail), norm = runs_norm_error(&rest, &tail);
        printf("%s: %d ranks %s, then %d ranks %s: loss %.1e norm %.1e\n", name, pairs[i].ranks, pairs[i].keys,
               pairs[i].then, pairs[i].then_keys, loss, norm);
        assert_true(loss <= 1e-5);
        assert_true(norm <= 1e-4);
    }
}

/* What decides the training may not change after a checkpoint; what does not may, and is said. */
TEST(keys_that_may_not_change_are_refused_by_name)
{
    static const struct {
        const char *change;
        bool may;
    } changes[] = {
        {"model.layers=5", false},     {"model.heads=6", false},      {"model.tied_embeddings=false", false},
        {"data.shuffle=false", false}, {"train.seed=4", false},       {"optimizer.name=lion", false},
        {"optimizer.lr=1e-3", true},   {"train.micro_batch=4", true}, {"optimizer.clip=2", true},
    };
    const char *top = *state;
    train(top, 1, "run.folder=%s/keys train.steps=4 evaluate.every=0", top);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        AUTO_FREE char *key = must_strdup(changes[i].change);
        *strchr(key, '=') = 0;
        AUTO_FREE char *line = must_format(
            "%s/run.yaml run.folder=%s/keys-now checkpoint.resume=%s/keys train.steps=4 evaluate.every=0 %s", top, top,
            top, changes[i].change);
        launch_result r = runs_train(60, 1, line);
        if (changes[i].may) {
            if (r.status || !strstr(r.out, key))
                fail_msg("%s: status %d: %s%s", changes[i].change, r.status, r.out, r.err);
        } else {
            if (r.status == 0 || !strstr(r.err, key) || runs_error_lines(r.err) != 1)
                fail_msg("%s: status %d: %s", changes[i].change, r.status, r.err);
        }
        launch_free(&r);
    }
}

TEST_MAIN(write_config, workfolder_teardown)
