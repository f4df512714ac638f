/* Whatever the world does wrong is one clear line, a failing exit status on every rank, and no harm to what was
 * saved. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

enum { STEPS = 4 };

static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 9000, STEPS, "micro_batch: 2, global_batch: 12",
                     "optimizer: {lr: 3e-3, schedule: constant}\n"
                     "checkpoint: {every: 2, keep: 0}\n");
    return 0;
}

/* Trains with these keys; every rank says its exit status, which must be `expected` on all, and standard error is one
 * line with all of `words` (up to three, NULL ends). */
static void refused(const char *top, int ranks, const char *keys, int expected, const char *const words[3])
{
    char *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup(""), *program = launch_beside("../phalanx");
    launch_result r = launch_run(60, "exec %s %s sh -c '%s train %s/run.yaml %s; echo exit status $?'", mpirun,
                                 ranks > 1 ? "--mca orte_abort_on_non_zero_status 0" : "", program, top, keys);
    AUTO_FREE char *wanted = must_format("exit status %d\n", expected);
    int exits = 0;
    for (const char *at = r.out; (at = strstr(at, wanted)); at++)
        exits++;
    bool good = !r.timed_out && exits == ranks && runs_error_lines(r.err) == 1 &&
                strchr(r.err, '\n') == strrchr(r.err, '\n') && !strstr(r.err, "fatal");
    for (int i = 0; i < 3 && words[i]; i++)
        good = good && strstr(r.err, words[i]);
    if (!good)
        fail_msg("%d ranks %s: %d exits with %d%s, out: %s err: %s", ranks, keys, exits, expected,
                 r.timed_out ? " (timed out)" : "", r.out, r.err);
    launch_free(&r);
    free(program);
    free(mpirun);
}

static void train(const char *top, const char *keys)
{
    free(runs_train_well(60, 1, "%s/run.yaml %s", top, keys));
}

/* ---- data
 * --------------------------------------------------------------------------------------------------------- */

static void damage(const char *path, int64_t keep, int64_t flip)
{
    int64_t bytes;
    AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
    if (flip >= 0)
        data[flip] ^= 0x5A;
    workfolder_write(path, data, keep < 0 ? bytes : keep);
}

TEST(damaged_data_is_refused_by_name)
{
    static const struct {
        const char *name, *file;
        int64_t keep, flip;
    } cases[] = {
        {"short-index", "short-index.idx", 20, -1},
        {"cut-index", "cut-index.idx", 200, -1},
        {"no-index", "no-index.idx", 0, -1},
        {"cut-tokens", "cut-tokens.bin", 1000, -1},
        {"magic", "magic.idx", -1, 3},
        {"version", "version.idx", -1, 9},
    };
    const char *top = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO_FREE char *prefix = workfolder_path(top, cases[i].name), *file = workfolder_path(top, cases[i].file);
        runs_write_data(prefix, 131, 4000, 1);
        damage(file, cases[i].keep, cases[i].flip);
        AUTO_FREE char *keys = must_format("data.train=%s", prefix);
        const char *words[3] = {cases[i].name, NULL};
        refused(top, i == 0 ? 3 : 1, keys, 1, words);
    }
}

TEST(a_token_beyond_the_vocabulary_is_refused_with_its_place)
{
    const char *top = *state;
    AUTO_FREE char *prefix = workfolder_path(top, "wide"), *keys = must_format("data.train=%s", prefix);
    runs_write_data(prefix, 300, 4000, 1);
    const char *words[3] = {"wide", "131", NULL};
    refused(top, 1, keys, 1, words);
    refused(top, 2, keys, 1, words);
}

/* ---- configuration
 * ------------------------------------------------------------------------------------------------ */

TEST(wrong_configurations_are_refused_with_what_to_do)
{
    static const struct {
        int ranks;
        const char *keys;
        int status;
        const char *words[3];
    } cases[] = {
        {1, "train.stpes=3", 2, {"stpes", "train.steps"}},
        {3, "trian.steps=3", 2, {"trian", "train"}},
        {1, "train.precision=bf17", 2, {"bf17", "bf16"}},
        {1, "train.steps=many", 2, {"train.steps", "many"}},
        {1, "data.train=nowhere/at-all", 1, {"nowhere/at-all"}},
        {2, "data.train=nowhere/at-all", 1, {"nowhere/at-all"}},
        {2, "parallel.tensor=4", 2, {"2 ranks", "4"}},
        {3, "parallel.tensor=3", 2, {"parallel.tensor", "heads"}},
        {3, "parallel.tensor=2", 2, {"3 ranks"}},
        {2, "train.global_batch=6", 2, {"train.global_batch", "micro_batch"}},
        {1, "parallel.pipeline=8", 2, {"pipeline", "layers"}},
        {2, "parallel.pipeline=2 parallel.layers_per_stage=[1,2]", 2, {"layers"}},
        {2, "parallel.data=3", 2, {"parallel.data"}},
        {1, "checkpoint.resume=/nowhere", 1, {"/nowhere"}},
        {1, "memory.recompute=full memory.budget=1MiB", 2, {"memory.budget"}},
    };
    const char *top = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(top, cases[i].ranks, cases[i].keys, cases[i].status, cases[i].words);
}

TEST(a_wrong_file_is_refused_with_its_line)
{
    const char *top = *state;
    AUTO_FREE char *path = workfolder_path(top, "wrong.yaml"), *program = launch_beside("../phalanx");
    static const struct {
        const char *text, *words[2];
    } cases[] = {
        {"model: {preset: llama-15m}\ntrain:\n  stpes: 3\n", {"wrong.yaml:3", "steps"}},
        {"model: {preset: llama-15m\ntrain: 3\n", {"wrong.yaml", "wrong.yaml"}},
        {"model: {preset: llama-15m}\nmodel: {preset: llama-15m}\n", {"wrong.yaml:2", "model"}},
        {"model: [1, 2]\n", {"wrong.yaml:1", "model"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        runs_write_text(path, cases[i].text);
        launch_result r = launch_run(60, "exec %s train %s", program, path);
        if (r.status != 2 || runs_error_lines(r.err) != 1 || !strstr(r.err, cases[i].words[0]) ||
            !strstr(r.err, cases[i].words[1]))
            fail_msg("%s: status %d, %s", cases[i].text, r.status, r.err);
        launch_free(&r);
    }
}

TEST(an_unwritable_run_folder_is_refused_by_name)
{
    const char *top = *state;
    AUTO_FREE char *keys = must_format("run.folder=%s/run.yaml/below", top);
    const char *words[3] = {"cannot make folder", "run.yaml", NULL};
    refused(top, 1, keys, 1, words);
    refused(top, 2, keys, 1, words);
}

/* ---- ranks that were started differently
 * -------------------------------------------------------------------------- */

/* A copy of the program with another sum of the linker, as another compiler or commit makes it. */
static char *make_other_build(const char *top)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    char *other = workfolder_path(top, "phalanx");
    static const char note[] = {4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, 'G', 'N', 'U', 0}; /* sizes, type, name */
    int64_t bytes;
    AUTO_FREE uint8_t *text = workfolder_read(program, &bytes);
    uint8_t *at = memmem(text, (size_t)bytes, note, sizeof note);
    assert_non_null(at);
    at[sizeof note] ^= 0xff;
    workfolder_write(other, text, bytes);
    chmod(other, 0755);
    return other;
}

/* Folders a/ and b/, in which rank 0 and rank 1 start, hold what the ranks see at the same path: checkpoints of steps 4
 * and 2, data that differ in a byte, and copies that do not. */
static void make_places(const char *top)
{
    train(top, "");
    launch_result r = launch_run(
        20,
        "cd %s && for i in a b; do mkdir $i && cp data.bin $i/same.bin && cp data.idx $i/same.idx && cp data.bin "
        "$i/differs.bin && cp data.idx $i/differs.idx && cp -r run $i/before; done && echo step-00000002 >b/before/"
        "checkpoints/latest && rm -r b/before/checkpoints/step-00000004 && printf xy | dd of=b/differs.bin bs=1 seek=8 "
        "conv=notrunc",
        top);
    if (r.status)
        fail_msg("%s", r.err);
    launch_free(&r);
}

typedef struct start {
    const char *rank[2]; /* what each rank's command has beside "phalanx" */
    int status;
    const char *words[4]; /* of the one line on standard error */
} start;

/* Starts two ranks, each in its place and with its words; both end, in time, with the status, after one line. */
static void start_apart(const char *top, const start *row, const char *program, const char *other)
{
    AUTO_FREE char *mpirun = launch_mpirun(1), *run = must_format("%s/run.yaml run.folder=%s/apart", top, top);
    char *command[2];
    for (int i = 0; i < 2; i++) {
        const char *word = row->rank[i];
        bool builds = !strncmp(word, "BUILD ", 6), trains = !strstr(word, "--");
        const char *equals = strchr(word, '='), *variable = *word >= 'A' && *word <= 'Z' && !builds ? word : "";
        const char *rest = builds ? word + 6 : *variable ? equals + strcspn(equals, " ") : word;
        command[i] = must_format("sh -c 'cd %s/%c && env %.*s %s %s %s %s; echo exit status $?'", top, i ? 'b' : 'a',
                                 *variable ? (int)strcspn(word, " ") : 0, variable, builds ? other : program,
                                 trains ? "train" : "", trains ? run : "", rest);
    }
    launch_result r = launch_run(60, "rm -rf %s/apart; exec %s --mca orte_abort_on_non_zero_status 0 %s : -np 1 %s",
                                 top, mpirun, command[0], command[1]);
    AUTO_FREE char *wanted = must_format("exit status %d\n", row->status);
    const char *first = strstr(r.out, wanted);
    bool good = !r.timed_out && r.seconds < 5 && first && strstr(first + 1, wanted);
    good = good && runs_error_lines(r.err) == (row->words[0] != NULL) && !strstr(r.err, "fatal");
    for (int i = 0; i < 4 && row->words[i]; i++)
        good = good && strstr(r.err, row->words[i]);
    if (!good)
        fail_msg("%s: %.1f s%s, out: %s err: %s", command[1], r.seconds, r.timed_out ? " (timed out)" : "", r.out,
                 r.err);
    launch_free(&r);
    free(command[0]);
    free(command[1]);
}

TEST(ranks_that_were_started_differently_are_told)
{
    static const start rows[] = {
        {{"train.steps=2", "train.steps=3"}, 2, {"train.steps is 2 on rank 0 and 3 on rank 1"}},
        {{"parallel.tensor=2", "parallel.pipeline=2"},
         2,
         {"parallel.tensor is 2 on rank 0 and 1 on rank 1", "parallel.pipeline is 1 on rank 0 and 2 on rank 1"}},
        {{"NCCL_PROTO=LL", "NCCL_PROTO=Simple"}, 2, {"NCCL_PROTO is LL on rank 0 and Simple on rank 1"}},
        {{"data.train=differs", "data.train=differs"}, 2, {"data.train[0] is 9024 tokens", "on rank 1"}},
        {{"", "eval --checkpoint before --data same"}, 2, {"the command is train on rank 0 and eval on rank 1"}},
        {{"eval --checkpoint before --data same --batch 2", "eval --checkpoint before --data same"},
         2,
         {"--batch is 2 on rank 0 and 4 on rank 1"}},
        {{"checkpoint.resume=before", "checkpoint.resume=before"},
         2,
         {"the checkpoint is the state after step 4", "on rank 0 and the state after step 2", "on rank 1"}},
        {{"model.from=before", "model.from=before"},
         2,
         {"model.from is the state after step 4", "on rank 0 and the state after step 2", "on rank 1"}},
        {{"eval --checkpoint before --data same", "eval --checkpoint before --data same"},
         2,
         {"--checkpoint is the state after step 4", "on rank 0 and the state after step 2", "on rank 1"}},
        {{"generate --checkpoint before --prompt a --tokenizer bytes --tokens 5",
          "generate --checkpoint before --prompt b --tokenizer bytes --tokens 5"},
         2,
         {"--prompt is a on rank 0 and b on rank 1"}},
        /* a warning, and no more */
        {{"train.steps=1", "BUILD train.steps=1"},
         0,
         {"warning: the build is ", " on rank 0 and ", " on rank 1", "compiler"}},
        {{"train.steps=1", "train.steps=1 train.threads=2"},
         0,
         {"warning: train.threads is 1 on rank 0 and 2 on rank 1"}},
        /* what may differ */
        {{"train.steps=1 data.train=same data.cache=/tmp/one", "PHALANX_NODE=b train.steps=1 data.train=../b/same"},
         0,
         {NULL}},
    };
    const char *top = *state;
    AUTO_FREE char *program = launch_beside("../phalanx"), *other = make_other_build(top);
    make_places(top);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        start_apart(top, &rows[i], program, other);
}

TEST(hosts_whose_ranks_are_not_neighbours_are_told)
{
    AUTO_FREE char *mpirun = launch_mpirun(3), *program = launch_beside("../phalanx");
    const char *top = *state;
    if (geteuid() != 0)
        skip_because("not root: no host can be named");
    launch_result r =
        launch_run(60,
                   "exec %s unshare --uts sh -c 'hostname host$((OMPI_COMM_WORLD_RANK %% 2)); exec %s train "
                   "%s/run.yaml run.folder=%s/hosts train.steps=1'",
                   mpirun, program, top, top);
    if (r.status || runs_error_lines(r.err) != 1 ||
        !strstr(r.err, "ranks 0 and 2 are on host host0, rank 1 between them is on host1"))
        fail_msg("status %d: %s", r.status, r.err);
    launch_free(&r);
}

/* ---- checkpoints
 * -------------------------------------------------------------------------------------------------- */

TEST(a_damaged_checkpoint_is_refused_by_name)
{
    const char *top = *state;
    train(top, "");
    static const struct {
        const char *file;
        int64_t keep, flip;
    } cases[] = {
        {"step-00000004/model-00000.safetensors", -1, 5000},
        {"step-00000004/moment2-00000.safetensors", 3000, -1},
        {"step-00000004/manifest.json", 900, -1},
        {"step-00000004/manifest.json", -1, 300},
        {"latest", 0, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO_FREE char *path = must_format("%s/run/checkpoints/%s", top, cases[i].file);
        int64_t bytes;
        AUTO_FREE uint8_t *before = workfolder_read(path, &bytes);
        damage(path, cases[i].keep, cases[i].flip);
        const char *words[3] = {"checkpoints/", NULL};
        refused(top, i == 0 ? 2 : 1, "checkpoint.fallback=false", 1, words);
        workfolder_write(path, before, bytes);
    }
    train(top, ""); /* undamaged it still loads */
}

/* A full disk, made of a small file system of its own. */
static bool mount_small(const char *at, const char *size)
{
    mkdir(at, 0755);
    AUTO_FREE char *options = must_format("size=%s", size);
    return mount("phalanx-test", at, "tmpfs", 0, options) == 0;
}

static void check_saved(const char *run, int64_t step)
{
    checkpoint *c = NULL;
    if (checkpoint_open(&c, run) != STATUS_OK || checkpoint_verify(c) != STATUS_OK)
        fail_msg("%s", status_message());
    assert_int_equal(json_integer_value(json_object_get(checkpoint_meta(c), "step")), step);
    checkpoint_close(c);
}

TEST(a_full_disk_while_saving_keeps_the_checkpoint_before)
{
    const char *top = *state;
    char *small = workfolder_path(top, "small"), *run = must_format("%s/run", small);
    if (!mount_small(small, "2500k")) { /* holds one checkpoint of 1.5 MB and not two */
        free(small);
        free(run);
        skip_because("not root: no file system can be mounted");
    }
    const char *words[3] = {"small/run/checkpoints", "No space left", NULL};
    AUTO_FREE char *keys = must_format("run.folder=%s", run);
    refused(top, 1, keys, 1, words);
    check_saved(run, 2);
    refused(top, 2, keys, 1, words); /* resumes from step 2, and fails where it failed before */
    check_saved(run, 2);
    assert_int_equal(mount("phalanx-test", small, "tmpfs", MS_REMOUNT, "size=16m"), 0);
    train(top, keys);
    check_saved(run, STEPS);
    assert_int_equal(umount(small), 0);
    free(small);
    free(run);
}

/* Metrics are worth less than the run: it goes on, says so, and writes all of them when there is room. */
TEST(a_disk_that_fills_up_between_checkpoints_does_not_stop_the_run)
{
    const char *top = *state;
    char *small = workfolder_path(top, "filling"), *run = must_format("%s/run", small),
         *filler = must_format("%s/filler", small);
    if (!mount_small(small, "4m")) {
        free(filler);
        free(small);
        free(run);
        skip_because("not root: no file system can be mounted");
    }
    AUTO_FREE char *line = must_format("%s/run.yaml run.folder=%s train.steps=100000 checkpoint.every=0", top, run);
    launch *l = runs_start(60, 2, line);
    assert_true(runs_wait_for_step(run, 3, 30));
    char block[4096] = {1};
    int fd = open(filler, O_WRONLY | O_CREAT, 0644);
    while (write(fd, block, sizeof block) > 0)
        ;
    close(fd);
    assert_true(launch_expect(l, "No space left on device; the run goes on without its metrics", 20));
    usleep(300000);
    unlink(filler);
    assert_true(launch_expect(l, "metrics are written again, with the lines since; 0 lines are missing", 20));
    usleep(300000);
    kill(runs_process(run, 1), SIGTERM);
    launch_result r = launch_finish(l);
    /* room comes page by page: the pair of lines may come again before the filler has gone altogether */
    int said = runs_error_lines(r.err);
    if (r.timed_out || r.status != 75 || said < 2 || said % 2)
        fail_msg("status %d%s: %s", r.status, r.timed_out ? " (timed out)" : "", r.err);
    json_t *summary = runs_read_summary(run);
    AUTO_FREE char *metrics = must_format("%s/metrics.jsonl", run);
    int64_t lost = json_integer_value(json_object_get(summary, "metrics_lost")), lines = 0, bytes;
    char *text = (char *)workfolder_read(metrics, &bytes);
    for (char *at = text, *end; *at; at = end + 1) { /* no line is torn */
        end = strchr(at, '\n');
        assert_non_null(end);
        *end = 0;
        json_t *whole = json_loads(at, 0, NULL);
        assert_non_null(whole);
        json_decref(whole);
        lines++;
    }
    assert_int_equal(lost, 0);
    assert_int_equal(lines, json_integer_value(json_object_get(summary, "steps")));
    json_decref(summary);
    free(text);
    launch_free(&r);
    assert_int_equal(umount(small), 0);
    free(filler);
    free(small);
    free(run);
}

/* ---- gradients that are not finite
 * -------------------------------------------------------------------------------- */

/* A copy of a run's latest checkpoint in `to`, with finite weights of which no logit is: no state may hold others. */
static void poison(const char *run, const char *to)
{
    checkpoint *c = NULL;
    assert_int_equal(checkpoint_open(&c, run), STATUS_OK);
    int n = checkpoint_tensors(c);
    checkpoint_piece *pieces = must_calloc((unsigned long)n, sizeof *pieces);
    void **data = must_calloc((unsigned long)n, sizeof *data);
    for (int i = 0; i < n; i++) {
        const manifest_tensor *t = checkpoint_at(c, i);
        checkpoint_piece *p = &pieces[i];
        *p = (checkpoint_piece){
            .section = t->section, .of = box_whole(t->name, t->dims, t->global), .at = {.type = t->type}};
        box_row_major(p->at.stride, t->dims, t->global);
        p->at.data = data[i] = must_alloc((unsigned long)(box_volume(t->dims, t->global) * dtype_bytes(t->type)));
        assert_int_equal(checkpoint_read(c, t->section, &p->of, &p->at), STATUS_OK);
        bool last = !strcmp(t->name, "model.norm.weight") || !strcmp(t->name, "lm_head.weight");
        for (int64_t k = 0; last && !strcmp(t->section, "model") && k < box_volume(t->dims, t->global); k++)
            ((float *)data[i])[k] = 3e38f;
    }
    const checkpoint_share all = {pieces, n, 0, 1, "", false};
    assert_int_equal(checkpoint_write(to, "step-00000002", &all, checkpoint_meta(c), NULL, NULL), STATUS_OK);
    for (int i = 0; i < n; i++)
        free(data[i]);
    free(data);
    free(pieces);
    checkpoint_close(c);
}

TEST(gradients_that_are_not_finite_change_nothing_and_stop_the_run)
{
    const char *top = *state;
    AUTO_FREE char *good = workfolder_path(top, "good"), *bad = workfolder_path(top, "bad"),
                   *poisoned = workfolder_path(top, "poisoned");
    char *keys = must_format("run.folder=%s train.steps=2", good);
    train(top, keys);
    free(keys);
    poison(good, poisoned);
    /* Two steps are skipped: logged, and saved as they were found, but for the data position. */
    keys = must_format("run.folder=%s checkpoint.resume=%s train.steps=4", bad, poisoned);
    train(top, keys);
    runs_metrics m = runs_read_metrics(bad);
    assert_int_equal(m.count, 2);
    assert_true(m.step[0].skipped && m.step[1].skipped && !isfinite(m.step[0].norm));
    char difference[256];
    assert_true(runs_compare_checkpoints(difference, sizeof difference, bad, poisoned) >= 3 * 30);
    assert_string_equal(difference, "");
    checkpoint *c = NULL;
    assert_int_equal(checkpoint_open(&c, bad), STATUS_OK);
    assert_int_equal(json_integer_value(json_object_get(checkpoint_meta(c), "step")), 4);
    assert_int_equal(json_integer_value(json_object_get(checkpoint_meta(c), "samples")), 4 * 12);
    assert_int_equal(json_integer_value(json_object_get(checkpoint_meta(c), "updates")), 2);
    checkpoint_close(c);
    free(keys);
    /* Three in a row stop it, on one rank and on several. */
    const char *words[3] = {"train.max_skipped", "step 5", NULL};
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        keys = must_format("run.folder=%s-%d checkpoint.resume=%s train.steps=9 train.max_skipped=3 checkpoint.every=0",
                           bad, ranks, poisoned);
        refused(top, ranks, keys, 1, words);
        free(keys);
    }
    check_saved(poisoned, 2);
}

TEST_MAIN(write_config, workfolder_teardown)
