/* What a run says and does before its first step, so that nothing is silently other than it seems. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static launch_result train(const char *top, const char *keys)
{
    AUTO_FREE char *line = must_format("%s/run.yaml run.folder=%s/run %s", top, top, keys);
    launch_result r = runs_train(60, 1, line);
    return r;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" is not in:\n%s", part, text);
}

static bool there(const char *top, const char *name)
{
    AUTO_FREE char *path = workfolder_path(top, name);
    return access(path, F_OK) == 0;
}

static int setup(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 4000, 6, "global_batch: 4, micro_batch: 2", "checkpoint: {every: 2}\n");
    return 0;
}

/* The next plain command goes on from the new run, and the old one is whole where it is now. */
TEST_WITH(never_moves_the_old_run_aside, setup, workfolder_teardown)
{
    const char *top = *state;
    AUTO_FREE char *path = must_format("%s/run", top), *aside = must_format("%s/run/earlier-1", top),
                   *mine = must_format("%s/run/notes.txt", top);
    launch_result r = train(top, "train.steps=6");
    assert_int_equal(r.status, 0);
    launch_free(&r);
    runs_write_text(mine, "not the run's\n");
    runs_metrics before = runs_read_metrics(path);
    r = train(top, "checkpoint.resume=never train.steps=3 train.seed=9");
    assert_int_equal(r.status, 0);
    has(r.out, "run/earlier-1 now (checkpoint.resume=never)");
    launch_free(&r);
    runs_metrics moved = runs_read_metrics(aside);
    assert_true(runs_same_metrics(&moved, &before));
    assert_true(there(top, "run/earlier-1/checkpoints/step-00000006/manifest.json"));
    assert_true(there(top, "run/earlier-1/config.yaml"));
    assert_true(there(top, "run/notes.txt"));
    assert_false(there(top, "run/checkpoints/step-00000006"));
    r = train(top, "train.steps=4 train.seed=9");
    assert_int_equal(r.status, 0);
    has(r.out, "resumed from");
    has(r.out, "after step 3");
    launch_free(&r);
    assert_int_equal(runs_read_metrics(path).count, 4);
    r = train(top, "train.steps=5 train.seed=9 run.trace=[8,9] debug.at_step=2 debug.gradients=nowhere");
    assert_int_equal(r.status, 0);
    has(r.err, "debug.at_step 2 is done, this start goes on after step 4: no gradients are written");
    has(r.err, "run.trace [8, 9]: this start runs steps 5 to 5, so that nothing is traced");
    launch_free(&r);
    r = train(top, "checkpoint.resume=never train.steps=1");
    assert_int_equal(r.status, 0);
    launch_free(&r);
    assert_true(there(top, "run/earlier-2/checkpoints/step-00000004"));
}

TEST_WITH(in_a_fresh_folder_never_moves_nothing, setup, workfolder_teardown)
{
    launch_result r = train(*state, "checkpoint.resume=never train.steps=1");
    assert_int_equal(r.status, 0);
    assert_null(strstr(r.out, "earlier"));
    assert_false(there(*state, "run/earlier-1"));
    launch_free(&r);
}

/* Of 50 steps of 4 samples three in four are of the first set, which holds 251 samples of 16 tokens; the second holds
 * 126. */
TEST_WITH(the_header_says_what_is_trained_on, setup, workfolder_teardown)
{
    const char *top = *state;
    char *held = workfolder_path(top, "held"), *keys, *one, *two;
    runs_write_data(held, 131, 2000, 3);
    keys = must_format("train.sequence=16 data.train='[{path: %s/data, weight: 3}, {path: %s/held, weight: 1}]' "
                       "data.validation=%s/held train.steps=50",
                       top, top, top);
    one = must_format("  data        %s/data: 4.02k tokens, weight 3 (75%%), 0.598 epochs\n"
                      "              %s/held: 2.03k tokens, weight 1 (25%%), 0.397 epochs\n",
                      top, top);
    two = must_format("  validation  %s/held: 2.03k tokens\n", top);
    launch_result r = train(top, keys);
    assert_int_equal(r.status, 0);
    has(r.out, one);
    has(r.out, two);
    assert_null(strstr(r.out, "repeated text"));
    launch_free(&r);
    free(two);
    free(one);
    free(keys);
    free(held);
}

TEST_WITH(many_epochs_are_warned_of, setup, workfolder_teardown)
{
    launch_result r = train(*state, "train.sequence=16 train.steps=260");
    assert_int_equal(r.status, 0);
    has(r.out, "data: 4.02k tokens, 4.14 epochs\n              warning: ");
    has(r.out, "data is seen more than 4 times; after that repeated text teaches little");
    launch_free(&r);
}

TEST_WITH(a_profile_that_no_device_makes_is_said, setup, workfolder_teardown)
{
    launch_result r = train(*state, "profile.start=1 profile.stop=2");
    assert_int_equal(r.status, 0);
    has(r.err, "profile.start: there is no profiler to start on the CPU");
    launch_free(&r);
}

TEST_WITH(a_layout_that_is_stated_is_checked, setup, workfolder_teardown)
{
    launch_result r = train(*state, "parallel.data=2");
    assert_int_equal(r.status, 2);
    has(r.err, "parallel.data 2 x tensor 1 x pipeline 1 is 2 ranks, and 1 was started");
    launch_free(&r);
}

/* A save ends some steps after the one that it is of. */
static void saved_events_have_the_step_that_was_saved(const char *top)
{
    char *path = must_format("%s/run/events.jsonl", top), text[1024];
    FILE *f = fopen(path, "r");
    int saved = 0;
    assert_non_null(f);
    while (fgets(text, sizeof text, f)) {
        const char *step = strstr(text, "\"step\": "), *name = strstr(text, "\"words\": \"step-");
        if (!strstr(text, "\"event\": \"saved\""))
            continue;
        assert_true(step && name);
        assert_int_equal(strtoll(step + 8, NULL, 10), strtoll(name + 15, NULL, 10));
        saved++;
    }
    fclose(f);
    assert_int_equal(saved, 30);
    free(path);
}

TEST_WITH(a_run_ends_with_what_it_came_to_and_what_next, setup, workfolder_teardown)
{
    const char *top = *state;
    char *held = workfolder_path(top, "held"), *keys, *next;
    runs_write_data(held, 131, 2000, 3);
    keys = must_format("data.validation=%s evaluate.every=30 train.sequence=16 train.steps=60", held);
    launch_result r = train(top, keys);
    assert_int_equal(r.status, 0);
    has(r.out, "  first step  under way: ");
    has(r.out, "done: 60 steps, 3.84k tokens in all, this start took ");
    has(r.out, "; best validation ");
    next = must_format("next: phalanx generate --checkpoint %s/run --prompt TEXT", top);
    has(r.out, next);
    saved_events_have_the_step_that_was_saved(top);
    launch_free(&r);
    free(next);
    free(keys);
    free(held);
}

static launch_result plan(const char *keys)
{
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    launch_result r = launch_run(60, "exec '%s' plan models/configs/demo.yaml %s", phalanx, keys);
    return r;
}

/* Ids and steps are small; what is refused is the length of the step's program. */
TEST_WITH(what_is_too_long_to_plan_is_refused_by_key, setup, workfolder_teardown)
{
    static const char *const cases[][2] = {
        {"train.global_batch=4194304 train.micro_batch=1", "train.global_batch 4194304 (sequences, not tokens) is "},
        {"train.batch_ramp='[[0,4],[9,4194304]]' train.global_batch=4194304 train.micro_batch=1",
         "train.global_batch 4194304 (sequences"},
        {"train.global_batch=1000000000 train.micro_batch=1000000000", "train.micro_batch 1000000000: a micro-batch"},
        {"model.max_sequence=1073741824 train.sequence=1073741824", "train.sequence 1073741824: a micro-batch of"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r = plan(cases[i][0]);
        assert_int_equal(r.status, 2);
        assert_true(r.seconds < 10);
        has(r.err, cases[i][1]);
        launch_free(&r);
    }
    launch_result r = train(*state, "train.global_batch=4194304 train.micro_batch=1");
    assert_int_equal(r.status, 2);
    has(r.err, "train.global_batch 4194304 (sequences, not tokens) is ");
    launch_free(&r);
}

/* What nothing trains, and what no update changes, is named after the third step; what trains is not. */
TEST_WITH(weights_that_the_first_steps_do_not_train_are_named, setup, workfolder_teardown)
{
    static const char *const cases[][2] = {
        {"optimizer.lr=1e-3", NULL},
        {"run.first_steps=false optimizer.lr=1e-20", NULL},
        {"optimizer.lr=1e-20", "warning: step 3: no update changes (is optimizer.lr too small for the precision of "
                               "weights?) model.embed_tokens.weight, model.layers.0.input_layernorm.weight, "},
        {"model.architecture=glm4_moe model.experts=4 model.mtp_layers=1 model.mtp_loss=0",
         "warning: step 3: no gradient reaches model.layers.4.enorm.weight, model.layers.4.hnorm.weight, "
         "model.layers.4.eh_proj.weight, "
         "model.layers.4.input_layernorm.weight, and 10 others: nothing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO_FREE char *keys = must_format("checkpoint.resume=never train.steps=4 %s", cases[i][0]);
        launch_result r = train(*state, keys);
        assert_int_equal(r.status, 0);
        if (cases[i][1])
            has(r.err, cases[i][1]);
        else
            assert_null(strstr(r.err, "step 3: no "));
        launch_free(&r);
    }
}

TEST(a_plan_that_does_not_fit_says_so_first_and_fails)
{
    launch_result r = plan("model.layers=400 model.hidden_size=8192 model.heads=64 --device h100");
    assert_int_equal(r.status, 2);
    assert_int_equal(strncmp(r.out, "this does not fit: rank 0 needs ", 32), 0);
    has(r.err, "phalanx: this does not fit: rank 0 needs ");
    launch_free(&r);
    r = plan("model.layers=400 model.hidden_size=8192 model.heads=64 --device h100 --json");
    assert_int_equal(r.status, 2);
    has(r.out, "\"fits\": false");
    launch_free(&r);
    r = plan("--ranks 2 memory.budget=1MiB parallel.zero=3 train.global_batch=32");
    assert_int_equal(r.status, 2);
    has(r.err, "raise it, set parallel.zero_gather=micro_batch, set parallel.zero_reduce=micro_batch, lower train.");
    launch_free(&r);
    r = plan("--device h100");
    assert_int_equal(r.status, 0);
    assert_int_equal(strncmp(r.out, "parameters ", 11), 0);
    launch_free(&r);
}

TEST_MAIN(NULL, NULL)
