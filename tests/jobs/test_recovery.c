/* What a run goes on from: never from nothing while there is something, never from what is damaged, hostile or of other
 * data. Every refusal is one line, and leaves everything as it was. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 6 };

static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 9000, STEPS, "micro_batch: 2, global_batch: 12",
                     "optimizer: {lr: 3e-3, schedule: constant}\n"
                     "checkpoint: {every: 2, keep: 0}\n");
    return 0;
}

/* A run of STEPS steps in TOP/NAME, with checkpoints of steps 2, 4 and 6. */
static char *whole_run(const char *top, const char *name)
{
    char *run = workfolder_path(top, name);
    free(runs_train_well(300, 1, "%s/run.yaml run.folder=%s", top, run));
    return run;
}

/* Train again, with storage that fails as `fault` says ("": does not). */
static launch_result again(const char *top, const char *run, int ranks, const char *fault, const char *keys)
{
    char *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup(""), *program = launch_beside("../phalanx");
    AUTO_FREE char *spy = launch_beside("io_faults.so");
    launch_result r =
        launch_run(300, "exec %s env %s%s PHALANX_IO_FAULTS='%s' %s train %s/run.yaml run.folder=%s %s", mpirun,
                   *fault ? "LD_PRELOAD=" : "", *fault ? spy : "", fault, program, top, run, keys);
    free(program);
    free(mpirun);
    return r;
}

static void refused(const char *top, const char *run, const char *fault, const char *keys, const char *words)
{
    AUTO_FREE char *metrics = workfolder_path(run, "metrics.jsonl");
    int64_t before, after;
    free(workfolder_read(metrics, &before));
    launch_result r = again(top, run, 1, fault, keys);
    bool waited = strstr(r.err, "; trying again") != NULL; /* a line of its own */
    if (r.status == 0 || r.timed_out || runs_error_lines(r.err) != 1 + waited || !strstr(r.err, words) ||
        strstr(r.err, "fatal"))
        fail_msg("%s %s: status %d%s, out: %s err: %s", fault, keys, r.status, r.timed_out ? " (timed out)" : "", r.out,
                 r.err);
    launch_free(&r);
    free(workfolder_read(metrics, &after));
    assert_int_equal(after, before);
}

static void goes_on(const char *top, const char *run, int ranks, const char *fault, const char *keys, const char *words)
{
    launch_result r = again(top, run, ranks, fault, keys);
    if (r.status != 0 || !(strstr(r.out, words) || strstr(r.err, words)))
        fail_msg("%s %s: status %d, no \"%s\", out: %s err: %s", fault, keys, r.status, words, r.out, r.err);
    launch_free(&r);
}

static void assert_steps(const char *run, int steps)
{
    runs_metrics m = runs_read_metrics(run);
    assert_int_equal(m.count, steps);
    for (int i = 0; i < steps; i++)
        assert_int_equal(m.step[i].step, i + 1);
}

/* ---- is there a checkpoint?
 * --------------------------------------------------------------------------------------- */

/* Storage that cannot say what `latest` holds is asked again, then refused or overridden, and never taken for an empty
 * folder. */
TEST(a_latest_that_cannot_be_read_is_not_a_latest_that_is_not_there)
{
    const char *top = *state;
    AUTO_FREE char *run = whole_run(top, "unreadable");
    static const char *const errors[] = {"ESTALE", "EIO", "EACCES", "ELOOP"};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        AUTO_FREE char *passes = must_format("checkpoints/latest %s 2", errors[i]);
        goes_on(top, run, i == 0 ? 2 : 1, passes, "", "nothing left to do: 6 steps");
    }
    assert_steps(run, STEPS);
    refused(top, run, "checkpoints/latest EIO -1", "checkpoint.fallback=false",
            "checkpoints/latest: Input/output error");
    goes_on(top, run, 1, "checkpoints/latest EACCES -1", "",
            "nothing left to do: 6 steps"); /* the newest of the folder */
    AUTO_FREE char *latest = workfolder_path(run, "checkpoints/latest");
    assert_int_equal(unlink(latest), 0);
    refused(top, run, "/checkpoints EACCES -1", "", "nothing was changed"); /* nobody can tell */
    assert_steps(run, STEPS);
}

TEST(a_latest_that_is_lost_is_not_a_run_that_never_began)
{
    const char *top = *state;
    AUTO_FREE char *run = whole_run(top, "lost"), *latest = workfolder_path(run, "checkpoints/latest");
    AUTO_FREE char *saved = workfolder_path(run, "checkpoints/step-00000006");
    assert_int_equal(unlink(latest), 0);
    refused(top, run, "", "checkpoint.fallback=false", "checkpoints/latest is missing");
    goes_on(top, run, 1, "", "", "checkpoints/latest is missing; going on");
    assert_steps(run, STEPS);
    assert_int_equal(symlink("latest", latest), 0);
    refused(top, run, "", "checkpoint.fallback=false", "symbolic links");
    assert_true(atomic_exists(saved));
}

/* A disk that is not mounted, as its mount point looks then, or a link into nothing. */
TEST(checkpoints_that_are_out_of_sight_are_not_a_run_that_never_began)
{
    const char *top = *state;
    AUTO_FREE char *run = whole_run(top, "unmounted"), *checkpoints = workfolder_path(run, "checkpoints");
    AUTO_FREE char *away = workfolder_path(top, "away");
    assert_int_equal(rename(checkpoints, away), 0);
    refused(top, run, "", "train.steps=8", "that the run has saved step-00000006 there: mount the disk");
    assert_int_equal(mkdir(checkpoints, 0777), 0);
    refused(top, run, "", "train.steps=8", "that the run has saved step-00000006 there: mount the disk");
    assert_int_equal(rmdir(checkpoints), 0);
    assert_int_equal(symlink("nowhere", checkpoints), 0);
    refused(top, run, "", "train.steps=8", "that the run has saved step-00000006 there: mount the disk");
    assert_int_equal(unlink(checkpoints), 0);
    assert_int_equal(rename(away, checkpoints), 0);
    goes_on(top, run, 1, "", "train.steps=8", "after step 6");
    assert_steps(run, 8);
}

/* It would be a stage of itself: a checkpoint of the run's own. */
TEST(a_path_that_cannot_be_told_is_asked_again)
{
    const char *top = *state;
    char *run = whole_run(top, "real"), *whole = workfolder_path(top, "real-whole"), difference[256];
    launch_result r = again(top, run, 1, "/step-00000006 ESTALE 1 realpath", "train.steps=8");
    if (r.status != 0 || !strstr(r.out, "after step 6") || strstr(r.out, "begins after"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    launch_free(&r);
    free(runs_train_well(300, 1, "%s/run.yaml run.folder=%s train.steps=8", top, whole));
    assert_true(runs_compare_checkpoints(difference, sizeof difference, run, whole) >= 3 * 30);
    assert_string_equal(difference, "");
    refused(top, run, "/step-00000008 ESTALE -1 realpath", "train.steps=9", "cannot resolve");
    free(whole);
    free(run);
}

/* One read of metrics.jsonl that fails, the first or a later one, is not its end. */
TEST(metrics_that_cannot_be_read_once_are_kept)
{
    const char *top = *state;
    AUTO_FREE char *run = whole_run(top, "metrics"), *path = workfolder_path(run, "metrics.jsonl");
    for (int call = 0; call < 2; call++) {
        AUTO_FREE char *fault = must_format("metrics.jsonl EIO 1 read %d", call),
                       *keys = must_format("train.steps=%d", 7 + call);
        goes_on(top, run, 1, fault, keys, "resumed from");
        assert_steps(run, 7 + call);
    }
    refused(top, run, "metrics.jsonl EIO -1 read", "train.steps=9", "cannot read");
    assert_steps(run, 8);
}

TEST(metrics_that_cannot_be_looked_at_once_lack_no_line)
{
    const char *top = *state;
    AUTO_FREE char *run = whole_run(top, "looks");
    for (int call = 0; call < 9; call++) { /* among them: is it the same file, and how long is it? */
        AUTO_FREE char *fault = must_format("metrics.jsonl EIO 1 fstat %d", call),
                       *keys = must_format("train.steps=%d", 8 + call);
        goes_on(top, run, 1, fault, keys, "resumed from");
        assert_steps(run, 8 + call);
    }
}

/* What cp -al makes of a run's folder: files that are appended to stay each run's own. */
TEST(runs_that_share_files_by_hard_links_do_not_write_into_each_other)
{
    static const char *const names[] = {"events.jsonl", "metrics.jsonl"};
    const char *top = *state;
    AUTO_FREE char *run = whole_run(top, "linked"), *copy = workfolder_path(top, "copy");
    launch_result r = launch_run(60, "cp -al %s %s && cp -r %s %s-kept", run, copy, copy, copy);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    goes_on(top, run, 1, "", "train.steps=8", "after step 6");
    for (int i = 0; i < 2; i++) {
        r = launch_run(60, "cmp %s/%s %s-kept/%s && ! cmp -s %s/%s %s/%s", copy, names[i], copy, names[i], copy,
                       names[i], run, names[i]);
        if (r.status != 0)
            fail_msg("%s: %s%s", names[i], r.out, r.err);
        launch_free(&r);
    }
}

/* ---- damage
 * ------------------------------------------------------------------------------------------------------- */

static void flip(const char *run, const char *file, int64_t at)
{
    AUTO_FREE char *path = must_format("%s/checkpoints/%s", run, file);
    int64_t bytes;
    AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
    data[at] ^= 0x5A;
    workfolder_write(path, data, bytes);
}

/* The state after the damaged one is made again from the one before, bit for bit; summary.json says why. */
TEST(a_damaged_checkpoint_gives_way_to_the_one_before)
{
    static const struct {
        const char *name, *file;
        int64_t at;
        int ranks;
        const char *words;
    } cases[] = {
        {"piece", "step-00000006/model-00000.safetensors", 5000, 1, "resumed from"},
        {"piece-two", "step-00000006/moment2-00000.safetensors", 5000, 2, "after step 4"},
        {"manifest", "step-00000006/manifest.json", 300, 1, "after step 4"},
    };
    const char *top = *state;
    AUTO_FREE char *whole = whole_run(top, "whole");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *run = whole_run(top, cases[i].name), difference[256];
        flip(run, cases[i].file, cases[i].at);
        refused(top, run, "", "checkpoint.fallback=false", "step-00000006");
        goes_on(top, run, cases[i].ranks, "", "", cases[i].words);
        assert_steps(run, STEPS);
        json_t *summary = runs_read_summary(run);
        const char *why = json_string_value(json_object_get(summary, "fell_back"));
        assert_true(why && strstr(why, "step-00000006"));
        json_decref(summary);
        if (cases[i].ranks == 1) {
            assert_true(runs_compare_checkpoints(difference, sizeof difference, run, whole) >= 3 * 30);
            assert_string_equal(difference, "");
        }
        free(run);
    }
    char *mixed = whole_run(top, "mixed"); /* a folder that holds the state of another step than its name says */
    launch_result put =
        launch_run(60, "cd %s/checkpoints && rm -r step-00000006 && cp -r step-00000004 step-00000006", mixed);
    assert_int_equal(put.status, 0);
    launch_free(&put);
    refused(top, mixed, "", "checkpoint.fallback=false", "holds the state after step 4");
    goes_on(top, mixed, 1, "", "", "checkpoints/step-00000004 after step 4");
    assert_steps(mixed, STEPS);
    free(mixed);
    AUTO_FREE char *run = whole_run(top, "all");
    flip(run, "step-00000006/model-00000.safetensors", 5000);
    flip(run, "step-00000004/manifest.json", 300);
    goes_on(top, run, 1, "", "", "after step 2");
    flip(run, "step-00000006/model-00000.safetensors", 5000);
    flip(run, "step-00000004/model-00000.safetensors", 5000);
    flip(run, "step-00000002/model-00000.safetensors", 5000);
    launch_result r = again(top, run, 1, "", "");
    if (r.status != 1 || !strstr(r.err, "none of the 2 checkpoints before it can be loaded"))
        fail_msg("status %d: %s", r.status, r.err);
    launch_free(&r);
}

/* ---- what a manifest may say
 * --------------------------------------------------------------------------------------- */

static void write_meta(const char *run, json_t *meta)
{
    AUTO_FREE char *path = workfolder_path(run, "checkpoints/step-00000006/manifest.json");
    manifest *m = NULL;
    assert_int_equal(manifest_read(&m, path), STATUS_OK);
    json_decref(m->meta);
    m->meta = json_incref(meta);
    assert_int_equal(manifest_write(m, path), STATUS_OK);
    manifest_free(m);
}

/* With a checksum that is right, and values that are not. */
TEST(hostile_positions_are_refused_in_one_line)
{
    static const struct {
        const char *key, *value, *words; /* value NULL: the key is not there */
    } cases[] = {
        {"step", "-1", "step"},
        {"step", "9223372036854775807", "step"},
        {"step", "1099511627777", "step"},
        {"step", "\"6\"", "step"},
        {"step", "6.5", "step"},
        {"step", NULL, "step"},
        {"step", "0", "updates"},
        {"samples", "-7", "samples"},
        {"samples", "9223372036854775807", "samples"},
        {"samples", "-9223372036854775808", "samples"},
        {"samples", "0", "samples"},
        {"samples", "73", "samples"},
        {"samples", NULL, "samples"},
        {"samples", "[72]", "samples"},
        {"updates", "-1", "updates"},
        {"updates", "7", "updates"},
        {"updates", "1e300", "updates"},
        {"good_steps", "-3", "good_steps"},
        {"good_steps", "4000000000", "good_steps"},
        {"skipped", "2147483648", "skipped"},
        {"skipped", "-1", "skipped"},
        {"loss_scale", "-1.0", "loss_scale"},
        {"loss_scale", "1e308", "loss_scale"},
        {"loss_scale", "1e-30", "loss_scale"},
        {"loss_scale", "\"big\"", "loss_scale"},
        {"omitted", "7", "omitted"},
        {"omitted", "[[2, 24, 12, 1], 4]", "omitted"},
        {"omitted", "[[2, 24, 12]]", "omitted"},
        {"omitted", "[[2, 24, -12, 1]]", "omitted"},
        {"omitted", "[[7, 84, 12, 1]]", "omitted"},
        {"omitted", "[[2, 23, 12, 1]]", "omitted"},
        {"omitted", "[[2, 24, 9223372036854775807, 1]]", "samples"},
        {"omitted", "[[2, 24, 12, 1]]", "samples"},
        {"began", "7", "began"},
        {"began", "-1", "began"},
        {"losses", "[\"a\"]", "losses"},
        {"losses", "{}", "losses"},
        {"norms", "[1]", "norms"},
        {"config", "{}", "configuration"},
        {"config", "\"train: {steps: -4}\"", "train.steps"},
        {"data", "{\"train\": [1]}", "data.train"},
        {"data", "{\"train\": [{\"path\": 7}]}", "data.train"},
    };
    const char *top = *state;
    AUTO_FREE char *run = whole_run(top, "hostile");
    checkpoint *c = NULL;
    assert_int_equal(checkpoint_open(&c, run), STATUS_OK);
    json_t *good = json_deep_copy(checkpoint_meta(c));
    checkpoint_close(c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *meta = json_deep_copy(good);
        if (cases[i].value)
            json_object_set_new(meta, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(meta, cases[i].key);
        write_meta(run, meta);
        json_decref(meta);
        refused(top, run, "", "train.steps=8", cases[i].words);
    }
    write_meta(run, good);
    json_decref(good);
    goes_on(top, run, 1, "", "train.steps=8", "after step 6");
    assert_steps(run, 8);
}

/* ---- data
 * ---------------------------------------------------------------------------------------------------------- */

TEST(data_that_was_replaced_is_refused_unless_allowed)
{
    const char *top = *state;
    AUTO_FREE char *run = whole_run(top, "replaced"), *prefix = workfolder_path(top, "data"),
                   *bin = workfolder_path(top, "data.bin");
    int64_t bytes;
    AUTO_FREE uint8_t *before = workfolder_read(bin, &bytes);
    runs_write_data(prefix, 131, 9000, 5); /* other documents */
    refused(top, run, "", "train.steps=8", "data.allow_changed");
    runs_write_data(prefix, 131, 9000, 1);
    AUTO_FREE uint8_t *same = workfolder_read(bin, &bytes);
    same[100] ^= 1; /* other tokens in the same documents */
    workfolder_write(bin, same, bytes);
    refused(top, run, "", "train.steps=8", "is not the data set that the checkpoint was made with");
    goes_on(top, run, 1, "", "train.steps=7 data.allow_changed=true", "going on (data.allow_changed)");
    assert_steps(run, 7);
    workfolder_write(bin, before, bytes);
}

/* ---- two runs in one folder
 * ----------------------------------------------------------------------------------------- */

TEST(a_second_run_in_the_folder_is_refused_while_the_first_lives)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "shared");
    char *line =
        must_format("%s/run.yaml run.folder=%s train.steps=100000 checkpoint.every=3 checkpoint.keep=2", top, run);
    launch *first = runs_start(300, 2, line);
    assert_true(runs_wait_for_step(run, 4, 200));
    launch_result r = again(top, run, 2, "", "train.steps=100000");
    if (r.status == 0 || runs_error_lines(r.err) != 1 || !strstr(r.err, "another run is at work here"))
        fail_msg("status %d: %s", r.status, r.err);
    launch_free(&r);
    int64_t step = runs_read_metrics(run).count;
    assert_true(runs_wait_for_step(run, step + 2, 200)); /* it has noticed nothing */
    kill(runs_process(run, 0), SIGKILL);
    r = launch_finish(first);
    launch_free(&r);
    checkpoint *c = NULL;
    assert_int_equal(checkpoint_open(&c, run), STATUS_OK);
    assert_int_equal(checkpoint_verify(c), STATUS_OK);
    char *keys =
        must_format("train.steps=%lld", (long long)json_integer_value(json_object_get(checkpoint_meta(c), "step")) + 3);
    checkpoint_close(c);
    goes_on(top, run, 2, "", keys, "was left by a run that is no more");
    free(keys);
    free(line);
}

TEST(without_run_lock_no_lock_is_taken)
{
    for (int locked = 0; locked < 2; locked++) {
        char *run = workfolder_path(*state, locked ? "locked" : "unlocked"), *lock = workfolder_path(run, "lock");
        char *line = must_format("%s/run.yaml run.folder=%s train.steps=100000 checkpoint.every=0 run.lock=%s",
                                 (char *)*state, run, locked ? "true" : "false");
        launch *l = runs_start(300, 1, line);
        assert_true(runs_wait_for_step(run, 2, 200));
        assert_int_equal(atomic_exists(lock), locked);
        kill(runs_process(run, 0), SIGTERM);
        launch_result r = launch_finish(l);
        launch_free(&r);
        assert_false(atomic_exists(lock));
        free(line);
        free(lock);
        free(run);
    }
}

/* ---- killed while it writes
 * ----------------------------------------------------------------------------------------- */

/* Where the work is in saving: each step is saved, beside the next ones. However often it is killed, it ends where an
 * undisturbed run ends, and loses no step whose checkpoint had been published. */
TEST(killed_at_any_moment_of_a_save_beside_training_nothing_published_is_lost)
{
    enum { LONG = 400, KILLS = 8 }; /* so long that a fast machine does not end before it is killed */
    const char *top = *state;
    char *whole = workfolder_path(top, "unkilled"), *run = workfolder_path(top, "killed"), difference[256];
    AUTO_FREE char *latest = workfolder_path(run, "checkpoints/latest");
    const char *keys = "model.vocab_size=4096 model.hidden_size=64 checkpoint.every=1 checkpoint.keep=2";
    free(runs_train_well(400, 2, "%s/run.yaml run.folder=%s train.steps=%d %s", top, whole, LONG, keys));
    AUTO_FREE char *line = must_format("%s/run.yaml run.folder=%s train.steps=%d %s", top, run, LONG, keys);
    uint64_t random = 88172645463325252u;
    int64_t published = 0, kills = 0;
    for (int k = 0; k < KILLS && published < LONG; k++) {
        launch *l = runs_start(300, 2, line);
        while (runs_process(run, 0) == 0 && launch_seconds(l) < 200)
            ;
        random ^= random << 13, random ^= random >> 7, random ^= random << 17; /* xorshift64 */
        nanosleep(&(struct timespec){.tv_nsec = 200000000 + (long)(random % 700000000)}, NULL);
        int victim = runs_process(run, (int)(random >> 40) % 2);
        kills += victim > 0 && kill(victim, SIGKILL) == 0;
        launch_result r = launch_finish(l);
        launch_free(&r);
        checkpoint *c = NULL;
        if (published == 0 && !atomic_exists(latest))
            continue; /* before the first was published */
        if (checkpoint_open(&c, run) != STATUS_OK || checkpoint_verify(c) != STATUS_OK)
            fail_msg("after kill %d: %s", k, status_message());
        int64_t step = json_integer_value(json_object_get(checkpoint_meta(c), "step"));
        checkpoint_close(c);
        assert_true(step >= published);
        published = step;
    }
    assert_true(kills >= 4);
    free(runs_train_well(400, 2, "%s", line));
    runs_metrics a = runs_read_metrics(run), b = runs_read_metrics(whole);
    assert_int_equal(a.count, LONG);
    assert_true(runs_same_metrics(&a, &b));
    assert_true(runs_compare_checkpoints(difference, sizeof difference, run, whole) >= 3 * 30);
    assert_string_equal(difference, "");
    printf("%d kills of %d, %d steps\n", (int)kills, KILLS, LONG);
    free(run);
    free(whole);
}

/* Every step saved beside training, and every step saved while training waits: the same files, but for their run. */
TEST(a_checkpoint_written_beside_training_is_the_one_that_training_waits_for)
{
    static const struct {
        const char *name;
        int ranks;
        const char *keys;
    } cases[] = {
        {"one", 1, "train.precision=bf16"},
        {"three", 3, "train.precision=bf16 parallel.zero=1"},
        {"four", 4,
         "train.precision=bf16 parallel.tensor=2 parallel.zero=3 parallel.zero_reduce=micro_batch "
         "train.global_batch=8"},
        {"stages", 4, "parallel.pipeline=2 parallel.zero=2 parallel.schedule=zb-h1"},
    };
    const char *top = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int beside = 0; beside < 2; beside++)
            free(runs_train_well(400, cases[i].ranks,
                                 "%s/run.yaml run.folder=%s/%s-%d checkpoint.asynchronous=%s checkpoint.every=1 "
                                 "model.hidden_size=128 model.ffn_size=512 %s",
                                 top, top, cases[i].name, beside, beside ? "true" : "false", cases[i].keys));
        for (int step = 1; step <= STEPS; step++) {
            AUTO_FREE char *a = must_format("%s/%s-0/checkpoints/step-%08d", top, cases[i].name, step);
            char *b = must_format("%s/%s-1/checkpoints/step-%08d", top, cases[i].name, step), difference[256];
            assert_true(runs_compare_checkpoints(difference, sizeof difference, b, a) >= 3 * 30);
            if (*difference)
                fail_msg("%s, step %d: %s", cases[i].name, step, difference);
            free(b);
        }
    }
}

TEST_MAIN(write_config, workfolder_teardown)
