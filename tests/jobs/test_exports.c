/* checkpoint.export.every, checkpoint.export.format: Hugging Face folders beside training, of every layout, each there
 * whole or not at all. That transformers loads them is shown by interop_export.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/s3_server.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

static int prepare(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 6000, 8, "micro_batch: 2, global_batch: 4",
                     "checkpoint: {every: 4, export: {every: 3, format: huggingface}}\n");
    return 0;
}

static void train(const char *top, const char *name, int ranks, const char *words)
{
    free(runs_train_well(120, ranks, "%s/run.yaml run.folder=%s/%s checkpoint.keep=0 %s", top, top, name, words));
}

/* The export of a step holds what convert makes of that checkpoint, to the byte, and a card that says what it is. */
static void check_export(const char *top, const char *name, int step)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(60,
                                 "cd %s/%s && rm -rf plain && %s convert --from checkpoints/step-%08d --to plain && "
                                 "diff -r -x README.md plain exports/step-%08d && cat exports/step-%08d/README.md",
                                 top, name, program, step, step, step);
    if (r.status)
        fail_msg("%s, step %d: %s%s", name, step, r.out, r.err);
    AUTO_FREE char *steps = must_format("| steps | %d of 8 |", step),
                   *tokens = must_format("| tokens | %d |", step * 4 * 32);
    assert_non_null(strstr(r.out, "library_name: transformers"));
    assert_non_null(strstr(r.out, steps));
    if (!strstr(r.out, tokens))
        fail_msg("no %s in %s", tokens, r.out);
    assert_non_null(strstr(r.out, "| training data | data |"));
    assert_non_null(strstr(r.out, "training loss of that step"));
    assert_non_null(strstr(r.out, "activations fp32"));
    launch_free(&r);
}

/* All names in exports/, sorted, and where `latest` leads. */
static void assert_holds(const char *top, const char *name, const char *all)
{
    launch_result r = launch_run(10, "cd %s/%s/exports && echo $(ls) && readlink latest", top, name);
    char *expected = must_format("latest %s\n%s\n", all, strrchr(all, ' ') ? strrchr(all, ' ') + 1 : all);
    assert_string_equal(r.out, expected);
    free(expected);
    launch_free(&r);
}

TEST(exports_hold_what_convert_makes_in_every_layout)
{
    static const struct {
        const char *name, *words;
        int ranks;
    } rows[] = {{"one", "", 1},
                {"tensor", "parallel.tensor=2", 2},
                {"pipeline", "parallel.pipeline=2", 2},
                {"sharded", "parallel.data=2 parallel.zero=3 checkpoint.asynchronous=false", 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        train(*state, rows[i].name, rows[i].ranks, rows[i].words);
        assert_holds(*state, rows[i].name, "step-00000003 step-00000006 step-00000008");
        for (int step = 3; step <= 9; step += 3)
            check_export(*state, rows[i].name, step < 9 ? step : 8);
    }
}

/* What a start that was killed has left: half of an export, the one that it was to replace, and one it has not begun;
 * the next start, which has nothing to train, leaves all of them whole. */
TEST(a_start_puts_right_what_a_killed_one_has_left)
{
    const char *top = *state;
    launch_result r =
        launch_run(10,
                   "cd %s/one/exports && mv step-00000003 step-00000003.old && mkdir step-00000003.tmp && "
                   "echo x >step-00000003.tmp/model.safetensors && cp -r step-00000006 step-00000006.old && "
                   "rm -rf step-00000008 latest && echo step-00000006 >latest", /* as older runs named it */
                   top);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    train(top, "one", 1, "");
    assert_holds(top, "one", "step-00000003 step-00000006 step-00000008");
    check_export(top, "one", 3);
    check_export(top, "one", 8);
}

/* With one checkpoint kept, those that are exported stay until they are. */
TEST(a_checkpoint_that_waits_is_not_pruned)
{
    free(runs_train_well(120, 1,
                         "%s/run.yaml run.folder=%s/pruned checkpoint.keep=1 checkpoint.every=1 "
                         "checkpoint.export.every=1",
                         (char *)*state, (char *)*state));
    launch_result r = launch_run(10, "ls %s/pruned/exports | wc -l", (char *)*state);
    assert_int_equal(atoi(r.out), 9); /* all steps, and latest */
    launch_free(&r);
}

TEST(an_export_that_fails_does_not_end_the_run)
{
    AUTO_FREE char *path = must_format("%s/refused", (char *)*state), *exports = must_format("%s/exports", path);
    assert_int_equal(atomic_make_folders(path), STATUS_OK);
    workfolder_write(exports, "a file", 6);
    AUTO_FREE char *all = must_format("%s/run.yaml run.folder=%s", (char *)*state, path);
    launch_result r = runs_train(120, 1, all);
    assert_int_equal(r.status, STATUS_OK);
    assert_non_null(strstr(r.err, "step-00000008 is not exported: cannot make folder"));
    assert_non_null(strstr(r.err, "; the run's next start tries again"));
    launch_free(&r);
}

/* The disk is full during one export; the next save makes it, and the end the last one. */
TEST(an_export_that_a_full_disk_refuses_is_made_later)
{
#ifdef __SANITIZE_ADDRESS__
    skip_because("a sanitizer: its library must be the first to be loaded");
#endif
    static const struct {
        const char *step, *says;
    } rows[] = {{"3", "; the run goes on, and tries again with the next save"}, {"8", "; tries once more"}};
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *spy = launch_beside("io_faults.so"), *program = launch_beside("../phalanx");
        launch_result r = launch_run(
            120,
            "env LD_PRELOAD=%s 'PHALANX_IO_FAULTS=exports/step-0000000%s.tmp* ENOSPC 1 write' %s train %s/run.yaml "
            "run.folder=%s/full%d checkpoint.keep=0",
            spy, rows[i].step, program, (char *)*state, (char *)*state, i);
        if (r.status != 0 || !strstr(r.err, "is not exported: ") || !strstr(r.err, rows[i].says))
            fail_msg("status %d: %s", r.status, r.err);
        launch_free(&r);
        AUTO_FREE char *name = must_format("full%d", i);
        assert_holds(*state, name, "step-00000003 step-00000006 step-00000008");
    }
}

/* A server, which makes none, refuses the key. */
TEST(exports_are_mirrored)
{
    const char *top = *state;
    s3_server *store = s3_server_start();
    char *out = runs_train_well(
             120, 1, "%s/run.yaml run.folder=%s/mirrored checkpoint.mirror=s3://" S3_SERVER_BUCKET "/x", top, top),
         *program = launch_beside("../phalanx");
    free(out);
    int64_t bytes;
    AUTO_FREE char *latest = s3_server_get(store, "x/exports/latest", &bytes);
    assert_string_equal(latest, "step-00000008\n");
    assert_int_equal(s3_server_search(store, "x/exports/step-00000003/config.json"), 1);
    launch_result r = launch_run(60,
                                 "%s convert --from s3://" S3_SERVER_BUCKET "/x --to %s/again && diff -r -x README.md "
                                 "%s/again %s/mirrored/exports/step-00000008",
                                 program, top, top, top);
    if (r.status)
        fail_msg("%s%s", r.out, r.err);
    launch_free(&r);
    r = launch_run(60,
                   "cd %s && XDG_CACHE_HOME=%s/kept %s inspect s3://" S3_SERVER_BUCKET
                   "/x/exports/latest && diff -r -x '.*' -x '*.safetensors' "
                   "kept/phalanx/* mirrored/exports/step-00000008 && %s inspect mirrored/exports",
                   top, top, program, program);
    if (r.status)
        fail_msg("%s%s", r.out, r.err);
    launch_free(&r);
    static const char *const keys[] = {"checkpoint.export.every=3",
                                       "checkpoint.export.every=0 checkpoint.mirror=s3://bucket/y"};
    for (int i = 0; i < 2; i++) {
        r = launch_run(60,
                       "%s server %s/run.yaml run.folder=%s/server outer.every=10 outer.topology=server "
                       "outer.rendezvous=[http://127.0.0.1:1] outer.keys=%s %s",
                       program, top, top, top, keys[i]);
        assert_int_equal(r.status, STATUS_USAGE);
        if (!strstr(r.err, i ? "checkpoint.mirror=null" : "checkpoint.export.every=0 here"))
            fail_msg("%s", r.err);
        launch_free(&r);
    }
    free(program);
    s3_server_stop(store);
}

TEST_MAIN(prepare, workfolder_teardown)
