/* A run's mirror in an object store: what was mirrored is there whole, a run that has lost its folder goes on from it
 * bit by bit, a store that fails holds nothing up, and a prefix has one run. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/s3_server.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 8 };

static s3_server *server;

static int begin(void **state)
{
    if (workfolder_setup(state))
        return -1;
    server = s3_server_start();
    runs_write_small(*state, 9000, STEPS, "micro_batch: 2, global_batch: 12",
                     "optimizer: {lr: 3e-3, schedule: constant}\n"
                     "checkpoint: {every: 2, keep: 2}\n");
    AUTO_FREE char *whole = workfolder_path(*state, "whole");
    free(runs_train_well(300, 1, "%s/run.yaml run.folder=%s", *(char **)state, whole));
    return 0;
}

static int end(void **state)
{
    s3_server_stop(server);
    return workfolder_teardown(state);
}

static int well_again(void **state)
{
    (void)state;
    s3_server_set_down(server, false);
    s3_server_faults(server, NULL);
    s3_server_be(server, (s3_server_traits){0});
    s3_server_set_secret(server, S3_SERVER_SECRET, false);
    return 0;
}

/* ---- what is seen ------------------------------------------------------------------------------------------------ */

/* An object below a mirror as text, the caller's; NULL: there is none. */
static char *object(const char *mirror, const char *name)
{
    int64_t bytes;
    char *key = must_format("%s/%s", mirror, name), *text = s3_server_get(server, key, &bytes);
    free(key);
    return text;
}

static bool is_there(const char *mirror, const char *name)
{
    char *text = object(mirror, name);
    free(text);
    return text != NULL;
}

static void assert_latest(const char *mirror, const char *name)
{
    AUTO_FREE char *text = object(mirror, "latest"), *line = must_format("%s\n", name);
    assert_non_null(text);
    assert_string_equal(text, line);
}

static char *train(const char *top, const char *name, const char *mirror, const char *keys)
{
    return runs_train_well(300, 1, "%s/run.yaml run.folder=%s/%s checkpoint.mirror=s3://" S3_SERVER_BUCKET "/%s %s",
                           top, top, name, mirror, keys);
}

static launch *begin_train(const char *top, const char *name, const char *mirror, const char *keys)
{
    AUTO_FREE char *arguments = must_format(
        "%s/run.yaml run.folder=%s/%s checkpoint.mirror=s3://" S3_SERVER_BUCKET "/%s %s", top, top, name, mirror, keys);
    launch *l = runs_start(300, 1, arguments);
    return l;
}

static void refused(const char *top, const char *name, const char *mirror, const char *keys, const char *words)
{
    launch_result r = launch_finish(begin_train(top, name, mirror, keys));
    if (r.status == 0 || r.timed_out || !strstr(r.err, words) || strstr(r.err, S3_SERVER_SECRET))
        fail_msg("%s: status %d, out: %s err: %s", words, r.status, r.out, r.err);
    launch_free(&r);
}

/* The run's last checkpoint is that of the run that nobody disturbed. */
static void assert_same_bits(const char *top, const char *name)
{
    char *run = workfolder_path(top, name), *whole = workfolder_path(top, "whole"), difference[512];
    if (runs_compare_checkpoints(difference, sizeof difference, run, whole) == 0 || *difference)
        fail_msg("%s: %s", name, difference);
    free(whole);
    free(run);
}

static void remove_run(const char *top, const char *name)
{
    AUTO_FREE char *run = workfolder_path(top, name);
    assert_int_equal(atomic_remove(run), STATUS_OK);
}

static void assert_said(const char *out, const char *words)
{
    if (!strstr(out, words))
        fail_msg("no \"%s\" in: %s", words, out);
}

/* ---- uploads ----------------------------------------------------------------------------------------------------- */

TEST_WITH(checkpoints_are_mirrored_and_pruned, well_again, NULL)
{
    const char *top = *state;
    free(train(top, "first", "first", "checkpoint.keep=1"));
    assert_latest("first", "step-00000008");
    assert_true(is_there("first", "step-00000008/manifest.json"));
    assert_true(is_there("first", "step-00000008/model-00000.safetensors"));
    assert_false(is_there("first", "step-00000002/manifest.json"));
    assert_false(is_there("first", "step-00000002/model-00000.safetensors"));
    assert_true(is_there("first", "config.yaml") && is_there("first", "events.jsonl"));
    assert_int_equal(s3_server_open_uploads(server), 0);
    AUTO_FREE char *run = workfolder_path(top, "first"),
                   *path = workfolder_path(run, "checkpoints/step-00000008/manifest.json");
    int64_t bytes;
    AUTO_FREE char *local = (char *)workfolder_read(path, &bytes),
                   *there = object("first", "step-00000008/manifest.json");
    assert_string_equal(local, there);
    json_t *summary = runs_read_summary(run), *mirror = json_object_get(summary, "mirror");
    assert_int_equal(json_integer_value(json_object_get(mirror, "step")), 8);
    assert_int_equal(json_integer_value(json_object_get(mirror, "behind_bytes")), 0);
    assert_null(json_object_get(mirror, "failing"));
    json_decref(summary);
    assert_same_bits(top, "first");
}

/* Files of several parts, on two ranks. */
TEST_WITH(large_files_go_in_parts, well_again, NULL)
{
    const char *top = *state;
    char *out = runs_train_well(300, 2,
                                "%s/run.yaml run.folder=%s/large checkpoint.mirror=s3://" S3_SERVER_BUCKET
                                "/large model.hidden_size=512 model.ffn_size=1536 train.steps=1",
                                top, top);
    free(out);
    assert_latest("large", "step-00000001");
    int64_t bytes;
    char *there = s3_server_get(server, "large/step-00000001/model-00000.safetensors", &bytes);
    assert_non_null(there);
    assert_true(bytes > 16 << 20);
    free(there);
    remove_run(top, "large");
    out = runs_train_well(300, 2,
                          "%s/run.yaml run.folder=%s/large checkpoint.mirror=s3://" S3_SERVER_BUCKET
                          "/large model.hidden_size=512 model.ffn_size=1536 train.steps=1",
                          top, top);
    assert_said(out, "nothing left to do: 1 steps");
    free(out);
    remove_run(top, "large");
}

/* ---- whose it is ------------------------------------------------------------------------------------------------- */

TEST_WITH(a_prefix_has_one_run, well_again, NULL)
{
    const char *top = *state;
    free(train(top, "owner", "owned", "train.steps=2"));
    refused(top, "stranger", "owned", "", "is the mirror of another run");
    refused(top, "owner", "owned", "checkpoint.resume=never", "is the mirror of another run");
    free(train(top, "apart", "apart", "train.steps=2"));
    refused(top, "apart", "owned", "", "is the mirror of another run");
    assert_latest("owned", "step-00000002");
    char *moved = workfolder_path(top, "owner/earlier-1"), *begun = workfolder_path(top, "stranger/metrics.jsonl");
    assert_int_not_equal(access(moved, F_OK), 0);
    assert_int_not_equal(access(begun, F_OK), 0);
    free(begun);
    free(moved);
    free(train(top, "owner", "owned", ""));
    assert_latest("owned", "step-00000008");
    static const char *const wrong[] = {"s3://AKID:SECRET@bucket/x", "/tmp/x", "s3:///x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        AUTO_FREE char *arguments =
            must_format("%s/run.yaml run.folder=%s/wrong checkpoint.mirror=%s", top, top, wrong[i]);
        launch_result r = launch_finish(runs_start(60, 1, arguments));
        if (r.status == 0 || !strstr(r.err, "is not of the form") || strstr(r.err, "SECRET"))
            fail_msg("%s: status %d, err: %s", wrong[i], r.status, r.err);
        launch_free(&r);
    }
}

/* ---- what a run takes from it ------------------------------------------------------------------------------------ */

TEST_WITH(a_lost_folder_goes_on_from_the_mirror, well_again, NULL)
{
    const char *top = *state;
    free(train(top, "lost", "lost", "train.steps=4"));
    remove_run(top, "lost");
    char *out = train(top, "lost", "lost", "");
    assert_said(out, "after step 4");
    assert_same_bits(top, "lost");
    assert_latest("lost", "step-00000008");
    free(out);
    out = train(top, "elsewhere", "lost", "checkpoint.resume=s3://" S3_SERVER_BUCKET "/lost/");
    assert_said(out, "nothing left to do: 8 steps");
    free(out);
}

static void flip(const char *key)
{
    int64_t bytes;
    AUTO_FREE char *data = s3_server_get(server, key, &bytes);
    assert_non_null(data);
    data[bytes - 1] ^= 1;
    s3_server_put(server, key, data, bytes);
}

TEST_WITH(a_damaged_checkpoint_is_passed_over, well_again, NULL)
{
    const char *top = *state;
    free(train(top, "hurt", "hurt", "train.steps=2")); /* both are there: a busy uploader passes over what is old */
    free(train(top, "hurt", "hurt", "train.steps=4"));
    remove_run(top, "hurt");
    flip("hurt/step-00000004/model-00000.safetensors");
    refused(top, "hurt", "hurt", "checkpoint.fallback=false", "has another checksum than the manifest says");
    AUTO_FREE char *out = train(top, "hurt", "hurt", "");
    assert_said(out, "after step 2");
    assert_same_bits(top, "hurt");
    assert_latest("hurt", "step-00000008");
}

/* With nothing whole in the mirror nothing is begun anew. */
TEST_WITH(what_is_wholly_damaged_is_refused, well_again, NULL)
{
    const char *top = *state;
    free(train(top, "ruin", "ruin", "train.steps=2"));
    remove_run(top, "ruin");
    flip("ruin/step-00000002/manifest.json");
    refused(top, "ruin", "ruin", "", "there is no other checkpoint");
}

TEST_WITH(the_newer_of_disk_and_mirror_wins, well_again, NULL)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "both"), *old = workfolder_path(top, "both-of-old");
    free(train(top, "both", "both", "train.steps=2"));
    launch_result r = launch_run(60, "cp -r %s %s", run, old);
    launch_free(&r);
    free(train(top, "both", "both", "train.steps=6"));
    remove_run(top, "both");
    assert_int_equal(rename(old, run), 0);
    AUTO_FREE char *out = train(top, "both", "both", "");
    assert_said(out, "after step 6");
    assert_same_bits(top, "both");
}

TEST_WITH(a_stage_begins_from_a_mirror, well_again, NULL)
{
    const char *top = *state;
    free(train(top, "stage-1", "stage-1", "train.steps=4"));
    char *out = train(top, "stage-2", "stage-2", "checkpoint.resume=s3://" S3_SERVER_BUCKET "/stage-1 train.steps=6");
    assert_said(out, "begins after step 4");
    free(out);
    assert_latest("stage-2", "step-00000006");
    out = train(top, "stage-2", "stage-2", "checkpoint.resume=s3://" S3_SERVER_BUCKET "/stage-1");
    assert_said(out, "after step 6");
    free(out);
    assert_same_bits(top, "stage-2");
}

/* ---- a run that went back ---------------------------------------------------------------------------------------- */

/* What `latest` names is of this step, whichever of that step. */
static void assert_latest_step(const char *mirror, const char *name)
{
    AUTO_FREE char *text = object(mirror, "latest");
    assert_non_null(text);
    if (strncmp(text, name, strlen(name)) != 0)
        fail_msg("%s/latest names %s", mirror, text);
}

/* The mirror's `latest` names this again, as if it had heard of nothing since. */
static void set_latest(const char *mirror, const char *name)
{
    AUTO_FREE char *key = must_format("%s/latest", mirror);
    s3_server_put(server, key, name, (int64_t)strlen(name));
}

/* A run that went back to step 2 after step 6, and has come to step 4 with another rate; a copy of its folder as it was
 * before is NAME-before. */
static void go_back(const char *top, const char *name)
{
    AUTO_FREE char *keys =
        must_format("checkpoint.keep=0 optimizer.lr=1e-3 train.steps=4 checkpoint.resume=%s/%s/checkpoints/"
                    "step-00000002",
                    top, name);
    free(train(top, name, name, "checkpoint.keep=0 train.steps=6"));
    launch_result r = launch_run(60, "cp -r %s/%s %s/%s-before", top, name, top, name);
    launch_free(&r);
    AUTO_FREE char *out = train(top, name, name, keys);
    assert_said(out, "what came after it is undone");
    assert_latest_step(name, "step-00000004");
}

/* It comes to step 8 from step 4 of what it has become, which is not what it was. */
static void goes_on_after_4(const char *top, const char *name)
{
    AUTO_FREE char *out = train(top, name, name, "checkpoint.keep=0 optimizer.lr=1e-3");
    assert_said(out, "after step 4");
    char *run = workfolder_path(top, name), *same = workfolder_path(top, "back"), difference[512];
    if (runs_compare_checkpoints(difference, sizeof difference, run, same) == 0 || *difference)
        fail_msg("%s: %s", name, difference);
    free(same);
    free(run);
}

/* The mirror has not heard of it. */
TEST_WITH(what_was_undone_is_not_fetched, well_again, NULL)
{
    const char *top = *state;
    go_back(top, "back");
    set_latest("back", "step-00000006");
    AUTO_FREE char *out = train(top, "back", "back", "checkpoint.keep=0 optimizer.lr=1e-3");
    assert_said(out, "after step 4");
    assert_latest("back", "step-00000008");
}

/* The folder has not heard of it, and is at a later step. */
TEST_WITH(a_later_branch_wins_over_a_later_step, well_again, NULL)
{
    const char *top = *state;
    go_back(top, "older");
    AUTO_FREE char *run = workfolder_path(top, "older"), *before = workfolder_path(top, "older-before");
    remove_run(top, "older");
    assert_int_equal(rename(before, run), 0);
    goes_on_after_4(top, "older");
}

/* Where the last checkpoint is damaged, the one before it is of its own history. */
TEST_WITH(nothing_undone_is_fallen_back_to, well_again, NULL)
{
    const char *top = *state;
    go_back(top, "fall");
    free(train(top, "fall", "fall", "checkpoint.keep=0 optimizer.lr=1e-3 checkpoint.every=4"));
    flip("fall/step-00000008/model-00000.safetensors");
    remove_run(top, "fall");
    goes_on_after_4(top, "fall");
}

/* Nor on the disk, without any mirror. */
TEST_WITH(nothing_undone_is_fallen_back_to_on_the_disk, well_again, NULL)
{
    const char *top = *state;
    go_back(top, "disk");
    free(train(top, "disk", "disk", "checkpoint.keep=0 optimizer.lr=1e-3 checkpoint.every=4"));
    launch_result r = launch_run(20,
                                 "cd %s/disk/checkpoints && ls -d step-00000006 && printf X | dd of=step-00000008/"
                                 "model-00000.safetensors bs=1 seek=9000 conv=notrunc",
                                 top);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    AUTO_FREE char *out =
        runs_train_well(300, 1, "%s/run.yaml run.folder=%s/disk checkpoint.keep=0 optimizer.lr=1e-3", top, top);
    assert_said(out, "after step 4");
}

/* A person has written an earlier name into `latest`. */
TEST_WITH(a_folder_may_go_back, well_again, NULL)
{
    const char *top = *state;
    free(train(top, "edited", "edited", "checkpoint.keep=0 train.steps=6"));
    AUTO_FREE char *latest = workfolder_path(top, "edited/checkpoints/latest");
    runs_write_text(latest, "step-00000002\n");
    AUTO_FREE char *out = train(top, "edited", "edited", "checkpoint.keep=0 optimizer.lr=1e-3 train.steps=4");
    assert_said(out, "after step 2");
    assert_latest_step("edited", "step-00000004");
    goes_on_after_4(top, "edited");
}

/* ---- a mirror that was rolled back ------------------------------------------------------------------------------- */

/* Writes a file of a run's checkpoint to the mirror. */
static void put_file(const char *top, const char *from, const char *file, const char *key)
{
    AUTO_FREE char *below = must_format("%s/checkpoints/%s", from, file), *path = workfolder_path(top, below);
    int64_t bytes;
    AUTO_FREE unsigned char *data = workfolder_read(path, &bytes);
    s3_server_put(server, key, data, bytes);
}

/* A checkpoint under another step's name is refused by its manifest: nothing large is fetched. A `latest` that names
 * less than the run has mirrored is said once, and is written again. */
TEST_WITH(a_rolled_back_mirror_is_refused_by_its_manifest, well_again, NULL)
{
    const char *top = *state;
    AUTO_FREE char *folder = workfolder_path(top, "rolled/checkpoints/step-00000002");
    RELEASED_BY(reading_names_free) reading_names files = {0};
    free(train(top, "rolled", "rolled", "checkpoint.keep=0 train.steps=4"));
    assert_int_equal(reading_folder(&files, folder), STATUS_OK);
    for (int i = 0; i < files.count; i++) {
        AUTO_FREE char *file = must_format("step-00000002/%s", files.name[i]),
                       *key = must_format("rolled/step-00000009/%s", files.name[i]);
        put_file(top, "rolled", file, key);
    }
    set_latest("rolled", "step-00000009");
    launch_result r = launch_finish(begin_train(top, "rolled", "rolled", "checkpoint.keep=0"));
    assert_said(r.err, "step-00000009/manifest.json is not of the step that its name says");
    assert_said(r.out, "after step 4");
    if (r.status != 0 || strstr(r.out, "fetched step") || strstr(r.err, "was rolled back"))
        fail_msg("status %d, out: %s err: %s", r.status, r.out, r.err);
    launch_free(&r);
    assert_same_bits(top, "rolled");
    assert_latest("rolled", "step-00000008");
    set_latest("rolled", "step-00000002");
    r = launch_finish(begin_train(top, "rolled", "rolled", "checkpoint.keep=0"));
    assert_said(r.err, "latest names step 2, but this run has mirrored step 8: the mirror was rolled back");
    assert_said(r.out, "nothing left to do");
    launch_free(&r);
    assert_latest("rolled", "step-00000008");
}

/* The manifest is of a later branch, and a file of an earlier one, of the same length. The store takes nothing but the
 * holder's name, so that each start finds it again. */
TEST_WITH(what_was_refused_is_not_fetched_again, well_again, NULL)
{
    const char *top = *state;
    char script[1024] = "PUT:ok ";
    go_back(top, "mixed");
    AUTO_FREE char *run = workfolder_path(top, "mixed"), *before = workfolder_path(top, "mixed-before"),
                   *latest = object("mixed", "latest");
    latest[strcspn(latest, "\n")] = 0;
    AUTO_FREE char *model = must_format("mixed/%s/model-00000.safetensors", latest);
    int64_t bytes;
    AUTO_FREE char *good = s3_server_get(server, model, &bytes);
    put_file(top, "mixed-before", "step-00000004/model-00000.safetensors", model);
    remove_run(top, "mixed");
    assert_int_equal(rename(before, run), 0);
    for (int i = 0; i < 90; i++)
        strcat(script, "PUT:403 ");
    for (int start = 0; start < 3; start++) {
        s3_server_faults(server, script);
        if (start == 2) /* the right file is there again */
            s3_server_put(server, model, good, bytes);
        launch_result r = launch_finish(begin_train(top, "mixed", "mixed", "checkpoint.keep=0 train.steps=6"));
        const char *said[] = {"another checksum", "is not fetched again until", "fetched step 4"};
        bool again = strstr(r.err, said[1]);
        if (r.status != 0 || !(strstr(r.err, said[start]) || strstr(r.out, said[start])) || again != (start == 1))
            fail_msg("start %d: status %d, out: %s err: %s", start, r.status, r.out, r.err);
        launch_free(&r);
    }
}

/* ---- a store that fails ------------------------------------------------------------------------------------------ */

TEST_WITH(a_dead_store_holds_nothing_up, well_again, NULL)
{
    const char *top = *state;
    free(train(top, "alone", "alone", "train.steps=2"));
    launch *l = begin_train(top, "alone", "alone", "run.save_seconds=2");
    assert_true(launch_expect(l, "resumed from", 60));
    s3_server_set_down(server, true);
    launch_result r = launch_finish(l);
    if (r.status != 0 || !strstr(r.err, "the same command begins with what is missing"))
        fail_msg("status %d, out: %s err: %s", r.status, r.out, r.err);
    assert_null(strstr(r.err, S3_SERVER_SECRET));
    launch_free(&r);
    assert_same_bits(top, "alone");
    s3_server_set_down(server, false);
    AUTO_FREE char *out = train(top, "alone", "alone", "");
    assert_said(out, "nothing left to do: 8 steps");
    assert_latest("alone", "step-00000008");
}

/* Every answer comes, a byte now and then: the start goes on within run.setup_seconds. */
TEST_WITH(a_store_that_drips_holds_no_start_up, well_again, NULL)
{
    const char *top = *state;
    free(train(top, "drips", "drips", "train.steps=2"));
    s3_server_be(server, (s3_server_traits){.rate = 1});
    launch_result r = launch_finish(begin_train(top, "drips", "drips", "run.setup_seconds=6 run.save_seconds=2"));
    if (r.status != 0 || r.seconds > 20 || !strstr(r.err, "the run goes on from its folder"))
        fail_msg("status %d after %.0f s, out: %s err: %s", r.status, r.seconds, r.out, r.err);
    launch_free(&r);
    assert_same_bits(top, "drips");
}

/* The prefix was emptied, and the keys may only read: the start goes on from its folder, and its end does not wait for
 * what stays refused. Once they may write, the mirror is filled again. */
TEST_WITH(a_wiped_mirror_is_filled_again_once_it_may, well_again, NULL)
{
    const char *top = *state;
    char script[1024] = "";
    free(train(top, "wiped", "wiped", "train.steps=2"));
    s3_server_wipe(server);
    for (int i = 0; i < 100; i++)
        strcat(script, "PUT:403 ");
    s3_server_faults(server, script);
    launch_result r = launch_finish(begin_train(top, "wiped", "wiped", "train.steps=4"));
    if (r.status != 0 || r.seconds > 20 || !strstr(r.err, "the run goes on from its folder") ||
        !strstr(r.err, "403 AccessDenied"))
        fail_msg("status %d after %.0f s, out: %s err: %s", r.status, r.seconds, r.out, r.err);
    launch_free(&r);
    s3_server_faults(server, NULL);
    free(train(top, "wiped", "wiped", ""));
    assert_latest("wiped", "step-00000008");
    assert_true(is_there("wiped", "run") && is_there("wiped", "step-00000008/model-00000.safetensors"));
    assert_same_bits(top, "wiped");
}

/* It is emptied while the run trains: no other start has taken it over. */
TEST_WITH(a_mirror_that_is_wiped_beside_training_is_filled_again, well_again, NULL)
{
    const char *top = *state;
    launch *l = begin_train(top, "beside", "beside", "train.steps=1000000 checkpoint.every=20");
    for (double until = clock_seconds() + 60; !is_there("beside", "latest"); clock_nap(0.05))
        assert_true(clock_seconds() < until);
    s3_server_wipe(server);
    for (double until = clock_seconds() + 60; !is_there("beside", "latest"); clock_nap(0.05))
        assert_true(clock_seconds() < until && !launch_ended(l));
    kill(launch_pid(l), SIGTERM);
    launch_result r = launch_finish(l);
    if (strstr(r.err, "nothing is mirrored any more") || !is_there("beside", "run"))
        fail_msg("out: %s err: %s", r.out, r.err);
    launch_free(&r);
}

/* A whole bucket is a prefix, too. */
TEST_WITH(a_bucket_may_be_a_mirror, well_again, NULL)
{
    const char *top = *state;
    AUTO_FREE char *keys = must_format(
        "%s/run.yaml run.folder=%s/bucket checkpoint.mirror=s3://" S3_SERVER_BUCKET " train.steps=2", top, top);
    s3_server_wipe(server);
    free(runs_train_well(300, 1, "%s", keys));
    char *text = s3_server_get(server, "latest", &(int64_t){0});
    assert_string_equal(text, "step-00000002\n");
    free(text);
    remove_run(top, "bucket");
    AUTO_FREE char *out = runs_train_well(300, 1, "%s", keys);
    assert_said(out, "nothing left to do: 2 steps");
    s3_server_wipe(server);
}

TEST_MAIN(begin, end)
