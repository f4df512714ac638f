/* Promise 3: what is stopped goes on, bit for bit; in another layout, as one and the same training. The runs blend two data
 * sets, shuffle, drop out and evaluate, and stop wherever: between steps, by SIGTERM, by SIGKILL. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/files/checkpoint.h"
#include "memory/log.h"
#include "tests/runs.h"
#include "tests/workfolder.h"

enum { STEPS = 8, STOP = 3 };

/* Of five steps' samples two sets in the proportion 5 to 3: the stop falls within a round of the blend. */
static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    char *first = workfolder_path(top, "first"), *second = workfolder_path(top, "second");
    char *held = workfolder_path(top, "held"), *path = workfolder_path(top, "run.yaml");
    runs_write_data(first, 131, 9000, 1);
    runs_write_data(second, 131, 6000, 2);
    runs_write_data(held, 131, 4000, 3);
    char *text = must_format("model: {architecture: gpt2, layers: 4, hidden_size: 48, heads: 4, vocab_size: 131, max_sequence: 32}\n"
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
    free(path);
    free(held);
    free(second);
    free(first);
    return 0;
}

__attribute__((format(printf, 3, 4))) static void train(const char *top, int ranks, const char *format, ...)
{
    char keys[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(keys, sizeof keys, format, arguments);
    va_end(arguments);
    char *line = must_format("%s/run.yaml %s", top, keys);
    launch_result r = runs_train(120, ranks, line);
    if (r.status)
        fprintf(stderr, "%s: status %d\n%s", keys, r.status, r.err);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    free(line);
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
    char *parts = must_format("%s-parts", name), *whole = must_format("%s-whole", name), *again = must_format("%s-again", name);
    /* The last step of the first part evaluates out of turn: that line is done again, or not at all. */
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
    free(parts);
    free(whole);
    free(again);
}

static void resume_is_bitwise_in_fp32(void **state)
{
    resume_is_bitwise(*state, 1, "fp32", "");
}

static void resume_is_bitwise_in_bf16(void **state)
{
    resume_is_bitwise(*state, 1, "bf16", "train.precision=bf16 data.document_mask=true");
}

static void resume_is_bitwise_on_four_ranks(void **state)
{
    resume_is_bitwise(*state, 4, "four",
                      "train.precision=bf16 parallel.tensor=2 parallel.zero=3 parallel.zero_reduce=micro_batch");
}

/* Ends the run once it has done a step, by a signal, in the middle of many; what follows must be as if it had not happened. */
static void stops_and_goes_on(const char *top, const char *name, int how, int expected)
{
    char *folder = workfolder_path(top, name);
    char *line = must_format("%s/run.yaml run.folder=%s checkpoint.every=2 evaluate.every=2 train.steps=%d", top, folder, STEPS);
    /* Slowed down, so that there is a middle to hit: eight times the work a step cannot be, the steps must be the same. */
    launch *l = runs_start(60, 1, line);
    assert_true(runs_wait_for_step(folder, 2, 30));
    kill(launch_pid(l), how);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, expected);
    launch_free(&r);
    runs_metrics part = runs_read_metrics(folder);
    if (part.count < STEPS) /* else it was too quick for us, and proves nothing: the test below still must hold */
        assert_true(access(folder, F_OK) == 0);
    r = runs_train(60, 1, line);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    free(line);
    free(folder);
}
