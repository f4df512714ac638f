/* A rank that computes slowly is named, and no other; where all are well, none is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { RANKS = 4, STEPS = 45, SLOW = 2 };

enum { LONG = 2048, FIRST = LONG / 8 * 5, SHORT = 8 };

/* Each sample of LONG tokens is one document of five eighths and short ones behind. Of four context ranks each has two
 * eighths; the last one's are the fourth and the fifth, in which most work is: five times that of the median. */
static void write_unequal(const char *prefix)
{
    int32_t document[LONG];
    indexed_writer *w = NULL;
    for (int i = 0; i < LONG; i++)
        document[i] = (i * 7 + 3) % 131;
    status s = indexed_writer_open(&w, prefix, 131);
    for (int sample = 0; sample < 40; sample++) {
        s = s == STATUS_OK ? indexed_writer_document(w, document, FIRST) : s;
        for (int i = FIRST; i < LONG; i += SHORT)
            s = s == STATUS_OK ? indexed_writer_document(w, document + i, SHORT) : s;
    }
    s = s == STATUS_OK ? indexed_writer_close(w) : s;
    MUST(s == STATUS_OK, "%s", status_message());
}

static int write_config(void **state)
{
    workfolder_setup(state);
    const char *top = *state;
    AUTO_FREE char *data = workfolder_path(top, "data"), *path = workfolder_path(top, "run.yaml");
    /* ops that last long enough to be told from noise */
    AUTO_FREE char *text = must_format(
        "model: {architecture: llama, layers: 4, hidden_size: 192, heads: 4, ffn_size: 512, vocab_size: 131}\n"
        "data: {train: %s}\n"
        "train: {steps: %d, sequence: 64, precision: fp32, device: cpu, threads: 1, micro_batch: 2, "
        "global_batch: 8}\n"
        "evaluate: {every: 0}\ncheckpoint: {every: 0}\nrun: {tensorboard: false}\n",
        data, STEPS);
    runs_write_data(data, 131, 60000, 1);
    runs_write_text(path, text);
    AUTO_FREE char *unequal = workfolder_path(top, "unequal");
    write_unequal(unequal);
    return 0;
}

/* Under PHALANX_FAULT=`fault`. */
static launch_result play(const char *top, const char *run, const char *fault, const char *more)
{
    AUTO_FREE char *mpirun = launch_mpirun(RANKS), *program = launch_beside("rank_faulty");
    launch_result r = launch_run(200, "PHALANX_FAULT='%s' %s %s %s/run.yaml run.folder=%s/%s %s", fault, mpirun,
                                 program, top, top, run, more);
    if (r.timed_out || r.status != 0)
        fail_msg("status %d: %s", r.status, r.err);
    return r;
}

/* The program of a stage has ops in common with the others' only in part. */
TEST(a_slow_rank_is_named_in_every_layout)
{
    static const char *const layouts[] = {"", "parallel.tensor=2", "parallel.pipeline=2 train.global_batch=8",
                                          "parallel.pipeline=4 train.global_batch=8"};
    const char *top = *state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        AUTO_FREE char *run = must_format("slow-%d", (int)i), *more = must_format("%s run.slow_ratio=2", layouts[i]);
        /* four times as long, and twice is asked for: no load of the machine adds up to that */
        launch_result r = play(top, run, "slow 2 3 10", more);
        AUTO_FREE char *path = must_format("%s/%s/incidents.jsonl", top, run);
        json_t *incident = runs_last_line(path);
        if (!incident || !strstr(r.err, " is slow: "))
            fail_msg("%s: nobody is named: %s", layouts[i], r.err);
        assert_string_equal(json_string_value(json_object_get(incident, "verdict")), "slow");
        assert_int_equal(json_integer_value(json_object_get(incident, "rank")), SLOW);
        assert_true(strlen(json_string_value(json_object_get(incident, "host"))) > 0);
        assert_true(json_is_false(json_object_get(incident, "ends")));
        /* from step 10 on, over a window of 20 */
        int64_t step = json_integer_value(json_object_get(incident, "step"));
        assert_true(step > 10 && step <= 40);
        json_decref(incident);
        assert_null(strstr(strstr(r.err, " is slow: ") + 1, " is slow: "));
        AUTO_FREE char *metrics = must_format("%s/%s/metrics.jsonl", top, run);
        json_t *line = runs_last_line(metrics);
        assert_int_equal(json_integer_value(json_object_get(line, "slowest_rank")), SLOW);
        assert_true(json_real_value(json_object_get(line, "slowest_ratio")) > 2);
        assert_true(json_real_value(json_object_get(line, "wait_seconds")) > 0);
        json_decref(line);
        launch_free(&r);
    }
}

TEST(a_quiet_run_names_nobody)
{
    const char *top = *state;
    launch_result r = play(top, "quiet", "slow -1 0 0", "run.slow_ratio=2");
    assert_null(strstr(r.err, " is slow: "));
    launch_free(&r);
    /* and without a limit nobody looks */
    r = play(top, "unwatched", "slow 1 3 0", "run.slow_ratio=0");
    assert_null(strstr(r.err, " is slow: "));
    launch_free(&r);
}

/* Nobody computes slowly where documents are dealt unequally; and a rank that does is still seen. */
TEST(who_is_dealt_more_is_not_slow)
{
    const char *top = *state;
    /* products of 0.2 ms, so that those of a faster machine are above PACE_SHORTEST, too */
    AUTO_FREE char *keys =
        must_format("model.hidden_size=96 model.ffn_size=96 train.micro_batch=1 train.global_batch=2 "
                    "model.max_sequence=%d train.sequence=%d data.train=%s/unequal "
                    "data.shuffle=false data.document_mask=true parallel.context=4 run.slow_ratio=2",
                    LONG, LONG, top);
    launch_result r = play(top, "unequal-run", "slow -1 0 0", keys);
    AUTO_FREE char *metrics = must_format("%s/unequal-run/metrics.jsonl", top);
    json_t *line = runs_last_line(metrics);
    assert_true(json_real_value(json_object_get(line, "context_imbalance")) > 2.4);
    if (strstr(r.err, " is slow: "))
        fail_msg("%s", r.err);
    launch_free(&r);
    r = play(top, "unequal-slow", "slow 2 3 10", keys);
    AUTO_FREE char *path = must_format("%s/unequal-slow/incidents.jsonl", top);
    json_t *incident = runs_last_line(path);
    assert_int_equal(json_integer_value(json_object_get(incident, "rank")), SLOW);
    json_decref(incident);
    json_decref(line);
    launch_free(&r);
}

TEST_MAIN(write_config, workfolder_teardown)
