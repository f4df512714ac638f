/* Training in stages: a batch that grows (train.batch_ramp), and a run that begins from another run's checkpoint with
 * other data, batches or sequences. Every stage keeps weights, the optimizer's state and the count of its updates: what
 * is divided into stages is, to the last bit, what one run would have done. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

#define RAMP "train.batch_ramp='[[0, 4], [3, 8], [5, 12]]' train.global_batch=12"

static int setup(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 6000, 8, "micro_batch: 2, global_batch: 4, dropout: 0.1",
                     "checkpoint: {every: 0, keep: 0}\noptimizer: {lr: 3e-3, schedule: constant, warmup: 3}\n");
    return 0;
}

__attribute__((format(printf, 3, 4))) static char *train(const char *top, int ranks, const char *format, ...)
{
    char keys[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(keys, sizeof keys, format, arguments);
    va_end(arguments);
    return runs_train_well(120, ranks, "%s/run.yaml %s", top, keys);
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" is not in:\n%s", part, text);
}

/* The steps of `run` from number `first` on, and its last checkpoint, are those of `whole`. */
static void assert_same(const char *top, const char *run, const char *whole, int first)
{
    char *a = workfolder_path(top, run), *b = workfolder_path(top, whole), difference[256];
    runs_metrics x = runs_read_metrics(a), y = runs_read_metrics(b);
    assert_true(x.count > 0);
    assert_int_equal(x.step[0].step, first);
    int skip = first - (int)y.step[0].step;
    assert_int_equal(x.count, y.count - skip);
    memmove(y.step, y.step + skip, (size_t)x.count * sizeof *y.step);
    y.count = x.count;
    if (!runs_same_metrics(&x, &y))
        fail_msg("%s and %s: metrics differ (losses by %.1e)", run, whole, runs_loss_error(&x, &y));
    assert_true(runs_compare_checkpoints(difference, sizeof difference, a, b) >= 3 * 20); /* weights and two moments */
    assert_string_equal(difference, "");
    free(a);
    free(b);
}

/* ---- a batch that grows ------------------------------------------------------------------------------------------ */

static void resume_within_a_ramp(const char *top, int ranks, const char *name, const char *keys)
{
    free(train(top, ranks, RAMP " %s run.folder=%s/%s-whole", keys, top, name));
    AUTO_FREE char *parts = must_format("%s-parts", name), *whole = must_format("%s-whole", name);
    for (int stop = 2; stop <= 8; stop += 2) /* within the first, within the second, within the last */
        free(train(top, ranks, RAMP " %s run.folder=%s/%s train.steps=%d", keys, top, parts, stop));
    assert_same(top, parts, whole, 1);
}

TEST_WITH(resume_within_a_ramp_is_bitwise, setup, workfolder_teardown)
{
    resume_within_a_ramp(*state, 1, "one", "");
}

TEST_WITH(resume_within_a_ramp_is_bitwise_on_four_ranks, setup, workfolder_teardown)
{
    resume_within_a_ramp(*state, 4, "four", "parallel.pipeline=2 parallel.zero=2 train.precision=bf16");
}

/* The batches of a ramp as runs of their own, each from the checkpoint of the one before. */
TEST_WITH(a_ramp_is_its_stages_in_turn, setup, workfolder_teardown)
{
    const char *top = *state;
    char *said = train(top, 1, RAMP " run.folder=%s/ramp", top);
    has(said, "batch       4 from step 0 on, 8 from step 3 on, 12 from step 5 on");
    free(said);
    free(train(top, 1, "train.global_batch=4 train.steps=3 run.folder=%s/a", top));
    said = train(top, 1, "train.global_batch=8 train.steps=5 run.folder=%s/b checkpoint.resume=%s/a", top, top);
    has(said, "begins after step 3 of");
    has(said, "data go on at sample 12, the learning rate's schedule goes on");
    free(said);
    free(train(top, 1, "train.global_batch=12 run.folder=%s/c checkpoint.resume=%s/b", top, top));
    assert_same(top, "c", "ramp", 6);
}

TEST_WITH(every_layout_ramps_alike, setup, workfolder_teardown)
{
    const char *top = *state;
    free(train(top, 1, RAMP " run.folder=%s/one train.dropout=0", top));
    free(train(top, 2, RAMP " run.folder=%s/two train.dropout=0", top));
    AUTO_FREE char *a = workfolder_path(top, "one"), *b = workfolder_path(top, "two");
    runs_metrics x = runs_read_metrics(a), y = runs_read_metrics(b);
    assert_int_equal(x.count, 8);
    assert_true(runs_loss_error(&x, &y) <= 1e-5);
}

TEST_WITH(ramps_that_make_no_sense_are_refused, setup, workfolder_teardown)
{
    static const struct {
        const char *keys, *says;
    } cases[] = {
        {"train.batch_ramp='[[1, 2], [3, 4]]'", "train.batch_ramp begins at step 1"},
        {"train.batch_ramp='[[0, 4], [3, 4]]'", "[3, 4] does not rise above [0, 4]"},
        {"train.batch_ramp='[[0, 3], [3, 4]]'", "3 is not a multiple of train.micro_batch 2"},
        {"train.batch_ramp='[[0, 2], [3, 8]]'", "ends with 8, and train.global_batch is 4"},
        {"train.batch_ramp='[[0, 2, 3]]'", "a list of pairs of integers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO_FREE char *line = must_format("%s/run.yaml %s", (const char *)*state, cases[i].keys);
        launch_result r = runs_train(60, 1, line);
        assert_int_equal(r.status, 2);
        has(r.err, cases[i].says);
        launch_free(&r);
    }
}

/* ---- another run goes on
 * ------------------------------------------------------------------------------------------ */

enum { LENGTH = 32, BATCH = 4, STAGE = 3, STEPS = 6, TOKENS = STEPS * BATCH * LENGTH + 1 };

static void write_ids(const char *top, const char *name, const int32_t *ids, int64_t count)
{
    AUTO_FREE char *prefix = workfolder_path(top, name);
    indexed_writer *w;
    assert_int_equal(indexed_writer_open(&w, prefix, 131), STATUS_OK);
    assert_int_equal(indexed_writer_document(w, ids, count), STATUS_OK);
    assert_int_equal(indexed_writer_close(w), STATUS_OK);
}

/* Two data sets, and `both`: what the first STAGE steps take of the first, then the second, whose first token is the
 * last target. */
static void write_two(const char *top)
{
    enum { CUT = STAGE * BATCH * LENGTH };
    static int32_t ids[TOKENS + 1];
    uint32_t x = 7;
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)((x = x * 1664525 + 1013904223) >> 16) % 131;
    write_ids(top, "first", ids, CUT + 1);
    write_ids(top, "second", ids + CUT, TOKENS - CUT);
    write_ids(top, "both", ids, TOKENS);
}

/* With the optimizer's state and its bias correction: else the steps after the change would differ. Without dropout,
 * which is drawn by the number of the sample. */
TEST_WITH(other_data_go_on_as_if_they_had_followed, setup, workfolder_teardown)
{
    const char *top = *state, *common = "data.shuffle=false train.dropout=0 optimizer.schedule=cosine";
    write_two(top);
    free(train(top, 1, "%s data.train=%s/both train.steps=6 run.folder=%s/whole", common, top, top));
    /* the schedule is that of six steps: stopped after three, as if by its job's time limit */
    free(train(top, 1, "%s data.train=%s/both train.steps=6 run.folder=%s/a checkpoint.every=3", common, top, top));
    free(train(top, 1, "%s data.train=%s/first train.steps=3 optimizer.schedule=constant run.folder=%s/b",
               "data.shuffle=false train.dropout=0", top, top));
    free(train(top, 1,
               "data.shuffle=false train.dropout=0 data.train=%s/both train.steps=6 optimizer.schedule=constant "
               "run.folder=%s/flat",
               top, top));
    char *said = train(top, 1,
                       "data.shuffle=false train.dropout=0 data.train=%s/second train.steps=6 "
                       "optimizer.schedule=constant run.folder=%s/c "
                       "checkpoint.resume=%s/b",
                       top, top, top);
    has(said, "data from their first sample (data.train)");
    has(said, "resume: data.train changes");
    free(said);
    assert_same(top, "c", "flat", 4);
    /* nothing but the folder changes */
    said = train(top, 1,
                 "%s data.train=%s/both train.steps=6 run.folder=%s/d checkpoint.resume=%s/a/checkpoints/step-00000003",
                 common, top, top, top);
    has(said, "data go on at sample 12");
    free(said);
    assert_same(top, "d", "whole", 4);
}

/* The same command resumes its own run, not the stage's beginning. */
TEST_WITH(a_stage_that_was_interrupted_goes_on_by_the_same_command, setup, workfolder_teardown)
{
    const char *top = *state, *stage = "train.sequence=16 train.global_batch=8 checkpoint.restart_schedule=true";
    free(train(top, 1, "train.steps=3 run.folder=%s/a", top));
    free(train(top, 1, "%s run.folder=%s/whole checkpoint.resume=%s/a", stage, top, top));
    free(train(top, 1, "%s train.steps=5 optimizer.schedule=constant run.folder=%s/parts checkpoint.resume=%s/a", stage,
               top, top));
    AUTO_FREE char *said = train(top, 1, "%s run.folder=%s/parts checkpoint.resume=%s/a", stage, top, top);
    has(said, "parts/checkpoints/step-00000005 after step 5");
    if (strstr(said, "  stage "))
        fail_msg("it begins the stage again:\n%s", said);
    assert_same(top, "parts", "whole", 4);
}

/* Nor does it need the run that it began from any more, which may be archived or have pruned that checkpoint. */
TEST_WITH(a_stage_that_has_begun_does_not_need_its_source, setup, workfolder_teardown)
{
    const char *top = *state, *stage = "train.global_batch=8 checkpoint.restart_schedule=true";
    AUTO_FREE char *source = workfolder_path(top, "source"), *gone = workfolder_path(top, "gone");
    free(train(top, 1, "train.steps=3 run.folder=%s", source));
    free(train(top, 1, "%s run.folder=%s/once checkpoint.resume=%s", stage, top, source));
    free(train(top, 1, "%s train.steps=5 optimizer.schedule=constant run.folder=%s/twice checkpoint.resume=%s", stage,
               top, source));
    assert_int_equal(rename(source, gone), 0);
    AUTO_FREE char *said = train(top, 1, "%s run.folder=%s/twice checkpoint.resume=%s", stage, top, source);
    has(said, "twice/checkpoints/step-00000005 after step 5");
    assert_same(top, "twice", "once", 4);
}

/* Warm-up and decay over the steps that are left; without the key they go on. */
TEST_WITH(a_stage_may_restart_the_schedule, setup, workfolder_teardown)
{
    const char *top = *state, *rate = "optimizer.schedule=cosine optimizer.warmup=2 optimizer.lr=1e-3";
    free(train(top, 1, "%s train.steps=4 run.folder=%s/a", rate, top));
    char *said =
        train(top, 1, "%s train.steps=9 run.folder=%s/b checkpoint.resume=%s/a checkpoint.restart_schedule=true", rate,
              top, top);
    has(said, "the learning rate's schedule begins anew (checkpoint.restart_schedule)");
    free(said);
    free(train(top, 1, "%s train.steps=9 run.folder=%s/c checkpoint.resume=%s/a", rate, top, top));
    AUTO_FREE char *b = workfolder_path(top, "b"), *c = workfolder_path(top, "c");
    runs_metrics x = runs_read_metrics(b), y = runs_read_metrics(c);
    assert_int_equal(x.count, 5);
    assert_int_equal(y.count, 5);
    const double pi = acos(-1);
    for (int i = 0; i < 5; i++) {
        int t = i + 1, all = i + 5; /* steps of the stage, of both */
        double anew = t <= 2 ? 1e-3 * t / 2 : 1e-3 * (1 + cos(pi * (t - 2) / (5 - 2))) / 2;
        double on = 1e-3 * (1 + cos(pi * (all - 2) / (9 - 2))) / 2;
        assert_true(fabs(x.step[i].lr - anew) <= 1e-10);
        assert_true(fabs(y.step[i].lr - on) <= 1e-10);
    }
}

TEST_WITH(a_stage_of_longer_sequences_changes_rope, setup, workfolder_teardown)
{
    const char *top = *state;
    free(train(top, 1, "train.steps=3 run.folder=%s/a", top));
    AUTO_FREE char *said =
        train(top, 1,
              "train.steps=5 run.folder=%s/b checkpoint.resume=%s/a train.sequence=64 model.max_sequence=64 "
              "train.global_batch=2 data.document_mask=true model.rope_theta=500000",
              top, top);
    has(said, "data from their first sample (train.sequence)");
    AUTO_FREE char *b = workfolder_path(top, "b");
    runs_metrics x = runs_read_metrics(b);
    assert_int_equal(x.count, 2);
    assert_int_equal(x.step[0].step, 4);
}

static int64_t last_tokens(const char *top, const char *run)
{
    AUTO_FREE char *path = must_format("%s/%s/metrics.jsonl", top, run);
    json_t *line = runs_last_line(path);
    int64_t tokens = json_integer_value(json_object_get(line, "tokens"));
    json_decref(line);
    return tokens;
}

/* Sequences of 32 tokens: 4 steps of 4; then, with a ramp of the stage's own, 2 of 2 and 2 of 6, before and after a
 * restart; a third stage with that ramp goes on with it. */
TEST_WITH(a_ramp_of_a_stage_counts_from_its_first_step, setup, workfolder_teardown)
{
    static const char ramp[] = "train.batch_ramp='[[0, 2], [2, 6]]' train.global_batch=6";
    const char *top = *state;
    free(train(top, 1, "train.steps=4 train.global_batch=4 run.folder=%s/a", top));
    char *said = train(top, 1, "train.steps=7 run.folder=%s/b checkpoint.resume=%s/a checkpoint.restart_data=true %s",
                       top, top, ramp);
    has(said, "  batch       2 from step 4 on, 6 from step 6 on\n");
    free(said);
    assert_int_equal(last_tokens(top, "b"), (2 * 2 + 6) * 32);
    free(train(top, 1, "train.steps=8 run.folder=%s/b checkpoint.resume=%s/a checkpoint.restart_data=true %s", top, top,
               ramp));
    assert_int_equal(last_tokens(top, "b"), (2 * 2 + 2 * 6) * 32);
    free(train(top, 1, "train.steps=9 run.folder=%s/c checkpoint.resume=%s/b checkpoint.restart_data=true %s", top, top,
               ramp));
    assert_int_equal(last_tokens(top, "c"), 6 * 32);
}

/* Twice the steps at the end of a cosine: the rate is a third of the peak again, and that is said. */
TEST_WITH(a_rate_that_jumps_at_a_resume_is_said, setup, workfolder_teardown)
{
    const char *top = *state;
    const char *rate = "optimizer.schedule=cosine optimizer.lr=1e-3 optimizer.warmup=0 optimizer.min_lr=0";
    free(train(top, 1, "train.steps=4 %s run.folder=%s/a", rate, top));
    char *said = train(top, 1, "train.steps=8 %s run.folder=%s/a", rate, top);
    has(said,
        "the learning rate jumps: of step 5 it is 0.0003087, and was to be 0: its schedule is of 8 steps now, and "
        "was of 4");
    free(said);
    said = train(top, 1, "train.steps=9 optimizer.schedule=constant run.folder=%s/a", top);
    has(said, "the learning rate jumps: of step 9 it is ");
    free(said);
    said = train(top, 1, "train.steps=12 optimizer.schedule=constant run.folder=%s/a", top);
    assert_null(strstr(said, "jumps"));
    free(said);
}

/* Within a run nothing of this may change, and the refusal says what may. */
TEST_WITH(in_its_own_folder_a_run_stays_as_it_is, setup, workfolder_teardown)
{
    static const char *const changes[] = {"train.global_batch=8", "train.sequence=16", "data.document_mask=true",
                                          "train.batch_ramp='[[0, 2], [3, 4]]'"};
    const char *top = *state;
    free(train(top, 1, "train.steps=3 run.folder=%s/a", top));
    for (size_t i = 0; i < 2 * sizeof changes / sizeof *changes; i++) {
        char *line = must_format("%s/run.yaml run.folder=%s/a checkpoint.resume=%s%s %s", top, top,
                                 i % 2 ? top : "auto", i % 2 ? "/a/checkpoints/step-00000003" : "", changes[i / 2]);
        launch_result r = runs_train(60, 1, line);
        assert_int_equal(r.status, 2);
        has(r.err, "begin a new stage: another run.folder");
        launch_free(&r);
        free(line);
    }
    AUTO_FREE char *data = workfolder_path(top, "data"), *more = workfolder_path(top, "more");
    runs_write_data(more, 131, 1000, 9);
    AUTO_FREE char *said = train(top, 1, "train.steps=4 run.folder=%s/b checkpoint.resume=%s/a data.train='[%s, %s]'",
                                 top, top, data, more);
    has(said, "data from their first sample (data.train)");
}

/* Samples taken anew though they are the same. */
TEST_WITH(a_stage_may_restart_the_data, setup, workfolder_teardown)
{
    const char *top = *state;
    free(train(top, 1, "train.steps=3 run.folder=%s/a", top));
    char *said =
        train(top, 1, "train.steps=6 run.folder=%s/b checkpoint.resume=%s/a checkpoint.restart_data=true", top, top);
    has(said, "data from their first sample (checkpoint.restart_data)");
    free(said);
    free(train(top, 1, "train.steps=6 run.folder=%s/c checkpoint.resume=%s/a", top, top));
    AUTO_FREE char *b = workfolder_path(top, "b"), *c = workfolder_path(top, "c");
    runs_metrics x = runs_read_metrics(b), y = runs_read_metrics(c);
    assert_int_equal(x.count, y.count);
    assert_false(runs_same_metrics(&x, &y));
}

TEST_MAIN(NULL, NULL)
