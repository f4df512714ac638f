/* Training in fp16: the loss scale falls until gradients are finite, rises after its window, and what is skipped
 * changes nothing but the data position. The scale after a step is read from that step's checkpoint. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 24, WARMUP = 4, BATCH = 8 };

static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 20000, STEPS, "micro_batch: 2, global_batch: 8, seed: 3",
                     "optimizer: {lr: 1e-2, schedule: constant, warmup: 4}\ncheckpoint: {keep: 0}\n");
    return 0;
}

typedef struct fp16_run {
    char *folder;
    runs_metrics m;
    double scale[STEPS + 1]; /* after each step, from 1, where it was saved; after the last in any case */
    int64_t updates[STEPS + 1], samples[STEPS + 1];
} fp16_run;

static fp16_run train(const char *top, const char *name, int ranks, int steps, int every, const char *keys)
{
    fp16_run r = {.folder = workfolder_path(top, name)};
    free(runs_train_well(60, ranks,
                         "%s/run.yaml run.folder=%s train.precision=fp16 train.steps=%d checkpoint.every=%d %s", top,
                         r.folder, steps, every, keys));
    r.m = runs_read_metrics(r.folder);
    assert_int_equal(r.m.count, steps);
    for (int i = 1; i <= steps; i++) {
        char *path = must_format("%s/checkpoints/step-%08d", r.folder, i);
        checkpoint *c = NULL;
        if (i < steps && every == 0) {
            free(path);
            continue;
        }
        if (checkpoint_open(&c, path) != STATUS_OK)
            fail_msg("%s", status_message());
        const json_t *meta = checkpoint_meta(c);
        r.scale[i] = json_number_value(json_object_get(meta, "loss_scale"));
        r.updates[i] = json_integer_value(json_object_get(meta, "updates"));
        r.samples[i] = json_integer_value(json_object_get(meta, "samples"));
        checkpoint_close(c);
        free(path);
    }
    return r;
}

static int steps_before_the_first_good(const fp16_run *r)
{
    int skipped = 0;
    while (skipped < r->m.count && r->m.step[skipped].skipped)
        skipped++;
    return skipped;
}

/* From 2^32 the cotangents of the loss, up to scale / tokens of the batch, exceed fp16's 65504 = 2^16: with 2^8 tokens
 * at least eight steps are skipped. Each halves the scale; later ones too, where a batch overflows at the scale so
 * far. */
static fp16_run falls_and_trains(const char *top, const char *name, int ranks, const char *keys)
{
    AUTO_FREE char *all = must_format("train.loss_scale=4294967296 train.max_skipped=14 %s", keys);
    fp16_run r = train(top, name, ranks, STEPS, ranks == 1, all);
    int skipped = 0;
    assert_in_range(steps_before_the_first_good(&r), 8, 12);
    for (int i = 1; i <= STEPS; i++) {
        int before = i - 1 - skipped; /* updates */
        skipped += r.m.step[i - 1].skipped;
        assert_int_equal(isfinite(r.m.step[i - 1].norm), !r.m.step[i - 1].skipped);
        if (ranks == 1 || i == STEPS) {
            assert_true(r.scale[i] == ldexp(1, 32 - skipped));
            assert_int_equal(r.updates[i], i - skipped);
            assert_int_equal(r.samples[i], i * BATCH);
        }
        /* skipped steps are no steps of the schedule */
        double lr = 1e-2 * fmin(1, (before + 1) / (double)WARMUP);
        assert_true(fabs(r.m.step[i - 1].lr / lr - 1) < 1e-6);
    }
    assert_in_range(skipped, 8, STEPS - 8);
    assert_true(r.m.step[STEPS - 1].loss < r.m.step[0].loss - 0.3); /* ln 131 = 4.9 at first */
    return r;
}

TEST(the_scale_falls_from_2_to_the_32_until_steps_count)
{
    fp16_run r = falls_and_trains(*state, "falls", 1, "");
    /* Up to then nothing has changed: the next step's loss is what a run in fp32 says of those samples at first
     * weights. */
    int skipped = steps_before_the_first_good(&r);
    AUTO_FREE char *fp32 = workfolder_path(*state, "still");
    free(runs_train_well(60, 1, "%s/run.yaml run.folder=%s train.steps=%d optimizer.lr=0 checkpoint.every=0",
                         (char *)*state, fp32, skipped + 1));
    runs_metrics still = runs_read_metrics(fp32);
    for (int i = 0; i <= skipped; i++)
        assert_true(fabs(r.m.step[i].loss / still.step[i].loss - 1) < 1e-3);
    free(r.folder);
}

TEST(ranks_skip_together)
{
    fp16_run r = falls_and_trains(*state, "two", 2, "parallel.tensor=2");
    free(r.folder);
    r = falls_and_trains(*state, "sharded", 2, "parallel.zero=3");
    free(r.folder);
}

TEST(the_scale_doubles_after_exactly_its_window)
{
    fp16_run r = train(*state, "window", 1, 7, 1, "train.loss_scale=1024 train.loss_scale_window=3");
    static const double wanted[] = {1024, 1024, 2048, 2048, 2048, 4096, 4096};
    for (int i = 0; i < 7; i++) {
        assert_false(r.m.step[i].skipped);
        assert_true(r.scale[i + 1] == wanted[i]);
    }
    free(r.folder);
}

/* A scale is taken out again before anything reads a gradient: powers of two that overflow nothing change no norm. */
TEST(a_scale_that_fits_changes_little)
{
    fp16_run a = train(*state, "small", 1, 4, 0, "train.loss_scale=4096"),
             b = train(*state, "large", 1, 4, 0, "train.loss_scale=65536");
    assert_true(runs_loss_error(&a.m, &b.m) < 1e-4);
    assert_true(runs_norm_error(&a.m, &b.m) < 1e-3);
    free(a.folder);
    free(b.folder);
}

/* Decoupled decay of 10^6 turns matrices of some hundredths into values beyond 65504 in the first step: the state is
 * none to save, and the run's status says so. */
TEST(weights_that_overflow_end_the_run)
{
    const char *top = *state;
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int beside = 0; beside < 2; beside++) {
            AUTO_FREE char *folder = must_format("%s/overflow%d%d", top, ranks, beside);
            char *line = must_format("%s/run.yaml run.folder=%s train.precision=fp16 train.loss_scale=1 "
                                     "optimizer.lr=1000 optimizer.weight_decay=1000 optimizer.schedule=constant "
                                     "optimizer.warmup=0 checkpoint.every=2 checkpoint.asynchronous=%s",
                                     top, folder, beside ? "true" : "false");
            launch_result r = runs_train(60, ranks, line);
            if (r.status != 1 || !strstr(r.err, "checkpoint step-00000002 not saved: ") ||
                !strstr(r.err, "has values that are not finite (NaN or infinity)"))
                fail_msg("status %d: %s", r.status, r.err);
            AUTO_FREE char *incidents = must_format("%s/incidents.jsonl", folder),
                           *latest = must_format("%s/checkpoints/latest", folder);
            json_t *incident = runs_last_line(incidents);
            assert_string_equal(json_string_value(json_object_get(incident, "verdict")), "numbers");
            assert_true(json_is_true(json_object_get(incident, "ends")));
            assert_int_not_equal(access(latest, F_OK), 0);
            json_decref(incident);
            launch_free(&r);
            free(line);
        }
}

TEST_MAIN(write_config, workfolder_teardown)
