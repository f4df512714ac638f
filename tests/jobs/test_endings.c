/* A run does not end because somebody stopped listening, and where it has to end its state is saved: signals, dead
 * readers, full disks, bad data. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 60 };

static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 30000, STEPS, "micro_batch: 2, global_batch: 12", "checkpoint: {every: 0}\n");
    return 0;
}

static int64_t saved_step(const char *run)
{
    checkpoint *c = NULL;
    if (checkpoint_open(&c, run) != STATUS_OK)
        return -1;
    int64_t step = (int64_t)json_integer_value(json_object_get(checkpoint_meta(c), "step"));
    checkpoint_close(c);
    return step;
}

/* ---- nobody listens ---------------------------------------------------------------------------------------------- */

/* All steps are in the metrics, each line whole, and nothing else. */
static void is_complete(const char *run, int steps)
{
    runs_metrics m = runs_read_metrics(run);
    assert_int_equal(m.count, steps);
    for (int i = 0; i < steps; i++)
        assert_int_equal(m.step[i].step, i + 1);
    assert_int_equal(saved_step(run), steps);
}

/* (mpirun itself ends a job whose output nobody reads: `phalanx supervise` gives it a file.) */
TEST(a_reader_that_goes_away_does_not_end_the_run)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "piped"), *program = launch_beside("../phalanx");
    launch_result r = launch_run(
        300, "exec 3>&1; { %s train %s/run.yaml run.folder=%s; echo status $? >&3; } | head -n 4 > /dev/null", program,
        top, run);
    if (!strstr(r.out, "status 0\n") || !strstr(r.err, "standard output cannot be written to: Broken pipe"))
        fail_msg("%s%s", r.out, r.err);
    is_complete(run, STEPS);
    AUTO_FREE char *path = must_format("%s/incidents.jsonl", run);
    json_t *line = runs_last_line(path);
    assert_non_null(line);
    assert_true(json_is_false(json_object_get(line, "ends")));
    assert_non_null(strstr(json_string_value(json_object_get(line, "words")), "Broken pipe"));
    json_decref(line);
    launch_free(&r);
}

TEST(closed_streams_do_not_reach_files)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "closed"), *program = launch_beside("../phalanx");
    launch_result r = launch_run(300, "exec %s train %s/run.yaml run.folder=%s <&- >&- 2>&-", program, top, run);
    assert_int_equal(r.status, 0);
    is_complete(run, STEPS);
    launch_free(&r);
}

/* ---- signals
 * ------------------------------------------------------------------------------------------------------ */

static void signal_rank(const char *run, int rank, int number)
{
    int pid = runs_process(run, rank);
    assert_true(pid > 0);
    assert_int_equal(kill(pid, number), 0);
}

/* A signal to one rank in the middle of a run. */
static launch_result signalled(const char *top, const char *name, int ranks, int number, const char *keys, int *done)
{
    AUTO_FREE char *run = workfolder_path(top, name);
    AUTO_FREE char *line = must_format("%s/run.yaml run.folder=%s %s", top, run, keys);
    launch *l = runs_start(300, ranks, line);
    assert_true(runs_wait_for_step(run, 5, 200));
    signal_rank(run, ranks - 1, number);
    launch_result r = launch_finish(l);
    *done = runs_read_metrics(run).count;
    return r;
}

TEST(signals_that_ask_to_stop_save_and_give_75)
{
    static const struct {
        int number, ranks;
        const char *name, *keys;
        int status;
    } cases[] = {
        {SIGHUP, 1, "SIGHUP", "train.steps=5000", 75},
        {SIGHUP, 3, "SIGHUP3", "train.steps=5000", 75},
        {SIGUSR1, 1, "SIGUSR1", "train.steps=5000", 75},
        {SIGUSR1, 2, "SIGUSR12", "train.steps=5000", 75},
        {SIGTERM, 1, "SIGTERM", "train.steps=5000", 75},
        {SIGINT, 1, "SIGINT", "train.steps=5000 run.exit_when_stopped=9", 9},
        {SIGTERM, 1, "SIGTERM0", "train.steps=5000 run.exit_when_stopped=0", 0},
    };
    const char *top = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int done;
        AUTO_FREE char *run = workfolder_path(top, cases[i].name);
        launch_result r = signalled(top, cases[i].name, cases[i].ranks, cases[i].number, cases[i].keys, &done);
        if (r.status != cases[i].status || runs_error_lines(r.err) || saved_step(run) != done ||
            !strstr(r.out, "the run resumes from here"))
            fail_msg("%s: status %d, saved %lld of %d: %s", cases[i].name, r.status, (long long)saved_step(run), done,
                     r.err);
        assert_true(done >= 5 && done < 5000);
        launch_free(&r);
    }
}

/* A run that was asked for something else goes on for ten steps, until it is asked to stop; how many it has done. */
static int goes_on_until_stopped(launch *l, launch_result *r, const char *run, int rank)
{
    int64_t done = runs_read_metrics(run).count;
    assert_true(runs_wait_for_step(run, done + 10, 200));
    signal_rank(run, rank, SIGTERM);
    *r = launch_finish(l);
    int count = runs_read_metrics(run).count;
    if (r->status != 75 || r->timed_out)
        fail_msg("status %d%s: %s", r->status, r->timed_out ? " (timed out)" : "", r->err);
    is_complete(run, count);
    return count;
}

TEST(sigusr2_saves_and_goes_on)
{
    const char *top = *state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        int saves = 0;
        AUTO_FREE char *name = must_format("USR2-%d", ranks), *run = workfolder_path(top, name);
        AUTO_FREE char *line = must_format("%s/run.yaml run.folder=%s train.steps=5000", top, run);
        launch *l = runs_start(300, ranks, line);
        launch_result r;
        assert_true(runs_wait_for_step(run, 5, 200));
        signal_rank(run, ranks - 1, SIGUSR2);
        assert_true(launch_expect(l, "saved ", 200));
        goes_on_until_stopped(l, &r, run, 0);
        for (const char *at = r.out; (at = strstr(at, "saved ")); at++)
            saves++;
        assert_int_equal(saves, 2); /* once for each signal */
        launch_free(&r);
    }
}

/* mpirun passes SIGUSR1 on to its ranks, and gives their status. */
TEST(mpirun_passes_on_sigusr1)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "mpirun"),
                   *line = must_format("%s/run.yaml run.folder=%s train.steps=5000", top, run);
    launch *l = runs_start(300, 2, line);
    assert_true(runs_wait_for_step(run, 5, 200));
    kill(launch_pid(l), SIGUSR1);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, 75);
    assert_int_equal(saved_step(run), runs_read_metrics(run).count);
    launch_free(&r);
}

TEST(an_ignored_sighup_stays_ignored)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "nohup"), *program = launch_beside("../phalanx");
    launch *l =
        launch_start(300, "trap '' HUP; exec %s train %s/run.yaml run.folder=%s train.steps=5000", program, top, run);
    launch_result r;
    assert_true(runs_wait_for_step(run, 5, 200));
    assert_int_equal(kill(launch_pid(l), SIGHUP), 0);
    goes_on_until_stopped(l, &r, run, 0);
    launch_free(&r);
}

/* ---- metrics
 * ------------------------------------------------------------------------------------------------------ */

TEST(metrics_deleted_in_mid_run_begin_anew)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "deleted"), *metrics = workfolder_path(run, "metrics.jsonl");
    AUTO_FREE char *line = must_format("%s/run.yaml run.folder=%s train.steps=5000", top, run);
    launch *l = runs_start(300, 1, line);
    assert_true(runs_wait_for_step(run, 5, 200));
    assert_int_equal(unlink(metrics), 0);
    assert_true(launch_expect(l, "metrics.jsonl was deleted or replaced", 200));
    assert_int_equal(kill(launch_pid(l), SIGTERM), 0);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, 75);
    runs_metrics after = runs_read_metrics(run);
    assert_true(after.count > 0 && after.step[0].step > 5);
    assert_int_equal(saved_step(run), after.step[after.count - 1].step);
    launch_free(&r);
}

/* Where it is moved to it has all lines, and where the run expects it those from then on; then it is moved back. */
TEST(metrics_moved_in_mid_run_lack_no_line)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "moved"), *away = workfolder_path(top, "away"),
                   *aside = workfolder_path(top, "aside");
    AUTO_FREE char *line = must_format("%s/run.yaml run.folder=%s train.steps=5000", top, run);
    launch *l = runs_start(300, 1, line);
    assert_true(runs_wait_for_step(run, 5, 200));
    assert_int_equal(rename(run, away), 0);
    assert_true(launch_expect(l, "metrics.jsonl was moved with its folder", 200));
    runs_metrics before = runs_read_metrics(away);
    int64_t last = before.count > 0 ? before.step[before.count - 1].step : 0;
    assert_true(last >= 5 && runs_wait_for_step(run, last + 3, 200));               /* the new one has some */
    assert_int_equal(renameat2(AT_FDCWD, run, AT_FDCWD, away, RENAME_EXCHANGE), 0); /* no line comes in between */
    assert_int_equal(rename(away, aside), 0);
    assert_true(launch_expect(l, "metrics.jsonl is back", 200));
    assert_int_equal(kill(launch_pid(l), SIGTERM), 0);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, 75);
    runs_metrics all = runs_read_metrics(run), part = runs_read_metrics(aside);
    assert_true(part.count > 0 && part.step[0].step > 5);
    assert_int_equal(all.step[all.count - 1].step, all.count);
    assert_int_equal(saved_step(run), all.count);
    launch_free(&r);
}

static char *read_text(const char *folder, const char *name)
{
    AUTO_FREE char *path = workfolder_path(folder, name);
    int64_t bytes;
    return (char *)workfolder_read(path, &bytes);
}

static char *metrics_line(const char *top, const char *run, int steps)
{
    return must_format("%s/run.yaml run.folder=%s train.steps=%d", top, run, steps);
}

/* A run that began while its folder was away, in a new one: the old one, which has done more, takes the name. */
TEST(a_run_ends_where_another_folder_takes_its_name)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "taken"), *old = workfolder_path(top, "old");
    free(runs_train_well(300, 1, "%s/run.yaml run.folder=%s", top, old));
    AUTO_FREE char *before = read_text(old, "metrics.jsonl"), *events = read_text(old, "events.jsonl"),
                   *line = metrics_line(top, run, 5000);
    launch *l = runs_start(300, 1, line);
    assert_true(runs_wait_for_step(run, 5, 200));
    assert_int_equal(renameat2(AT_FDCWD, old, AT_FDCWD, run, RENAME_EXCHANGE), 0);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "is another folder than the one in which this run began"));
    AUTO_FREE char *after = read_text(run, "metrics.jsonl"), *events_after = read_text(run, "events.jsonl");
    assert_string_equal(after, before);
    assert_string_equal(events_after, events);
    assert_int_equal(saved_step(run), STEPS);
    runs_metrics own = runs_read_metrics(old);
    assert_int_equal(own.step[own.count - 1].step, own.count);
    launch_free(&r);
}

/* What was saved elsewhere is not asked for where it has never been. */
TEST(a_first_checkpoint_saved_in_a_folder_that_is_gone_is_not_missed)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "first"), *away = workfolder_path(top, "first.away"),
                   *line = metrics_line(top, run, 5000);
    launch *l = runs_start(300, 1, line);
    assert_true(runs_wait_for_step(run, 5, 200));
    assert_int_equal(rename(run, away), 0);
    assert_true(launch_expect(l, "metrics.jsonl was moved with its folder", 200));
    assert_int_equal(kill(launch_pid(l), SIGUSR2), 0);
    assert_true(launch_expect(l, "saved ", 200));
    assert_true(runs_wait_for_step(run, 8, 200)); /* the event is written */
    assert_true(saved_step(run) > 0);
    assert_int_equal(renameat2(AT_FDCWD, run, AT_FDCWD, away, RENAME_EXCHANGE), 0);
    assert_true(launch_expect(l, "metrics.jsonl is back", 200));
    assert_int_equal(kill(launch_pid(l), SIGKILL), 0);
    launch_result r = launch_finish(l);
    launch_free(&r);
    AUTO_FREE char *there = read_text(away, "events.jsonl"), *here = read_text(run, "events.jsonl");
    assert_non_null(strstr(there, "\"saved\""));
    assert_null(strstr(here, "\"saved\""));
    free(runs_train_well(300, 1, "%s/run.yaml run.folder=%s", top, run));
    is_complete(run, STEPS);
}

/* ---- the folder's lock ------------------------------------------------------------------------------------------- */

/* Names, lengths and checksums of all files below a folder. */
static char *list_files(const char *folder)
{
    launch_result r = launch_run(60, "cd %s && find . -type f -exec cksum {} + | sort", folder);
    char *out = must_strdup(r.out);
    launch_free(&r);
    return out;
}

/* A machine was suspended for longer than a lease. Another one's run has taken the folder, and is at work there or has
 * ended; that of a rank's host that is not the holder's looks as well. */
TEST(a_run_that_wakes_in_another_run_s_folder_writes_nothing)
{
    static const char other[] = "{\"run\":\"bbbb\",\"host\":\"elsewhere\",\"pid\":7,\"started\":1,\"boot\":\"other\","
                                "\"space\":\"\",\"beat\":1000000000001}\n";
    const char *top = *state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        AUTO_FREE char *run = must_format("%s/wakes%d", top, ranks), *lock = workfolder_path(run, "lock"),
                       *holders = workfolder_path(run, "lock.holders"),
                       *line = must_format("%s/run.yaml run.folder=%s train.steps=5000 run.resource_seconds=1 "
                                           "run.trace=[1,3]",
                                           top, run);
        launch *l = runs_start(300, ranks, line);
        assert_true(runs_wait_for_step(run, 5, 200));
        for (int i = 0; i < ranks; i++)
            signal_rank(run, i, SIGSTOP);
        assert_int_equal(unlink(lock), 0);
        if (ranks == 1) /* it is at work */
            workfolder_write(lock, other, (int64_t)strlen(other));
        int file = open(holders, O_WRONLY | O_APPEND | O_CREAT, 0666);
        assert_int_equal(write(file, other, strlen(other)), strlen(other));
        close(file);
        AUTO_FREE char *before = list_files(run);
        for (int i = 0; i < ranks; i++)
            signal_rank(run, i, SIGCONT);
        launch_result r = launch_finish(l);
        AUTO_FREE char *after = list_files(run);
        if (r.status != 75 || runs_error_lines(r.err) != 1 || !strstr(r.err, "process 7 on elsewhere"))
            fail_msg("status %d: %s", r.status, r.err);
        assert_string_equal(after, before);
        launch_free(&r);
    }
}

TEST(a_run_whose_lock_is_removed_saves_and_ends)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "unlocked"), *lock = workfolder_path(run, "lock"),
                   *line = must_format("%s/run.yaml run.folder=%s train.steps=5000", top, run);
    launch *l = runs_start(300, 1, line);
    assert_true(runs_wait_for_step(run, 5, 200));
    assert_int_equal(unlink(lock), 0);
    launch_result r = launch_finish(l);
    if (r.status != 75 || !strstr(r.out, "stopped by the loss of its lock, which nobody is known to have held since"))
        fail_msg("status %d: %s", r.status, r.err);
    int done = runs_read_metrics(run).count;
    is_complete(run, done);
    assert_true(done < 5000);
    launch_free(&r);
}

/* ---- data
 * --------------------------------------------------------------------------------------------------------- */

/* Token `at` of the data set becomes an id that no vocabulary here has. */
static char *write_bad_data(const char *top, int64_t at)
{
    char *prefix = workfolder_path(top, "bad"), *path = must_format("%s.bin", prefix);
    const uint16_t id = 999;
    runs_write_data(prefix, 131, 30000, 1);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, &id, sizeof id, 2 * at), sizeof id);
    close(fd);
    free(path);
    return prefix;
}

/* Step 8 of the order that is not shuffled: samples 84 to 95, of 32 tokens. */
TEST(a_bad_id_is_named_and_what_was_good_is_saved)
{
    const char *top = *state;
    AUTO_FREE char *prefix = write_bad_data(top, 90 * 32 + 5);
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        AUTO_FREE char *run = must_format("%s/bad%d", top, ranks), *path = must_format("%s/incidents.jsonl", run);
        AUTO_FREE char *line =
            must_format("%s/run.yaml run.folder=%s data.train=%s data.shuffle=false", top, run, prefix);
        for (int again = 0; again < 2; again++) {
            launch_result r = runs_train(300, ranks, line);
            if (r.status != 1 || !strstr(r.err, "bad.bin: token 2885 (byte 5770, document ") ||
                !strstr(r.err, "id 999"))
                fail_msg("status %d: %s", r.status, r.err);
            assert_true(again || strstr(r.err, "the state after step 7 is good, and is saved"));
            assert_int_equal(saved_step(run), 7);
            json_t *incident = runs_last_line(path);
            assert_string_equal(json_string_value(json_object_get(incident, "verdict")), "data");
            assert_int_equal(json_integer_value(json_object_get(incident, "step")), 8);
            assert_true(json_is_true(json_object_get(incident, "ends")));
            json_decref(incident);
            launch_free(&r);
        }
    }
}

TEST(a_bad_sample_is_left_out_where_that_is_allowed)
{
    const char *top = *state;
    AUTO_FREE char *prefix = write_bad_data(top, 90 * 32 + 5), *one = workfolder_path(top, "skip1"),
                   *two = workfolder_path(top, "skip2");
    AUTO_FREE char *good = workfolder_path(top, "skip0");
    free(runs_train_well(300, 1, "%s/run.yaml run.folder=%s data.train=%s data.shuffle=false data.skip_bad=true", top,
                         one, prefix));
    free(runs_train_well(300, 3, "%s/run.yaml run.folder=%s data.train=%s data.shuffle=false data.skip_bad=true", top,
                         two, prefix));
    free(runs_train_well(300, 1, "%s/run.yaml run.folder=%s data.shuffle=false", top, good));
    runs_metrics a = runs_read_metrics(one), b = runs_read_metrics(two), c = runs_read_metrics(good);
    assert_int_equal(a.count, STEPS);
    assert_true(runs_loss_error(&b, &a) < 1e-5);
    for (int i = 0; i < 7; i++)
        assert_true(a.step[i].loss == c.step[i].loss);
    /* Only the sample is missing: a mean over 11 samples, not 11/12 of one. */
    assert_true(a.step[7].loss != c.step[7].loss && a.step[7].loss > 0.97 * c.step[7].loss &&
                a.step[7].loss < 1.03 * c.step[7].loss);
    AUTO_FREE char *path = must_format("%s/incidents.jsonl", two);
    json_t *incident = runs_last_line(path);
    assert_string_equal(json_string_value(json_object_get(incident, "verdict")), "data");
    assert_true(json_is_false(json_object_get(incident, "ends")));
    json_decref(incident);
}

/* Lines of a run's incidents.jsonl. */
static int incidents_of(const char *run)
{
    AUTO_FREE char *path = must_format("%s/incidents.jsonl", run);
    int64_t bytes;
    char *text = (char *)workfolder_read(path, &bytes);
    int lines = 0;
    for (char *c = text; *c; c++)
        lines += *c == '\n';
    free(text);
    return lines;
}

/* All ids are beyond the vocabulary, as of another tokenizer: no step has anything to learn from. */
TEST(a_run_whose_every_sample_is_left_out_fails)
{
    const char *top = *state;
    AUTO_FREE char *prefix = workfolder_path(top, "other"), *run = workfolder_path(top, "nothing");
    runs_write_data(prefix, 131, 30000, 1);
    AUTO_FREE char *bin = must_format("%s.bin", prefix);
    int64_t bytes;
    AUTO_FREE uint16_t *ids = (uint16_t *)workfolder_read(bin, &bytes);
    for (int64_t i = 0; i < bytes / 2; i++)
        ids[i] = 60000;
    workfolder_write(bin, ids, bytes);
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        AUTO_FREE char *line =
            must_format("%s/run.yaml run.folder=%s%d data.train=%s data.skip_bad=true train.steps=200 "
                        "checkpoint.every=0 train.max_skipped=6 optimizer.weight_decay=1",
                        top, run, ranks, prefix);
        AUTO_FREE char *folder = must_format("%s%d", run, ranks);
        launch_result r = runs_train(300, ranks, line);
        if (r.status != 1 || !strstr(r.err, "every sample of 6 steps in a row is left out (data.skip_bad") ||
            !strstr(r.out, "skipped: every sample of its batch is left out"))
            fail_msg("%d ranks: status %d: %s\n%s", ranks, r.status, r.err, r.out);
        runs_metrics m = runs_read_metrics(folder);
        assert_int_equal(m.count, 5);
        for (int i = 0; i < m.count; i++)
            assert_true(m.step[i].skipped);
        assert_true(incidents_of(folder) < 12 * ranks); /* not one for each of the 72 samples */
        launch_free(&r);
    }
    AUTO_FREE char *line = must_format(
        "%s/run.yaml run.folder=%s/held data.validation=%s data.skip_bad=true evaluate.every=2", top, top, prefix);
    launch_result r = runs_train(300, 1, line);
    if (r.status != 1 || !strstr(r.err, "other: each of its ") || !strstr(r.err, "samples is left out (data.skip_bad)"))
        fail_msg("validation: status %d: %s", r.status, r.err);
    launch_free(&r);
}

/* The kernel's signal for it would end the run without a word. */
TEST(a_limit_of_file_sizes_is_named)
{
    char *program = launch_beside("../phalanx"), *top = *state;
    launch_result r = launch_run(120, "ulimit -f 8; exec '%s' train %s/run.yaml run.folder=%s/limit checkpoint.every=0",
                                 program, top, top);
    if (r.status != 1 || !strstr(r.err, "not saved: cannot write ") || !strstr(r.err, ": File too large"))
        fail_msg("status %d: %s", r.status, r.err);
    launch_free(&r);
    free(program);
}

/* The file is mapped: reading beyond its end is a signal, not an error. */
TEST(a_data_file_cut_short_while_it_is_read_is_named)
{
    const char *top = *state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        AUTO_FREE char *prefix = workfolder_path(top, "cut"), *data = must_format("%s.bin", prefix);
        AUTO_FREE char *run = must_format("%s/cut%d", top, ranks), *path = must_format("%s/incidents.jsonl", run);
        runs_write_data(prefix, 131, 30000, 1);
        AUTO_FREE char *line =
            must_format("%s/run.yaml run.folder=%s data.train=%s train.steps=5000", top, run, prefix);
        launch *l = runs_start(300, ranks, line);
        assert_true(runs_wait_for_step(run, 5, 200));
        assert_int_equal(truncate(data, 0), 0);
        launch_result r = launch_finish(l);
        if (r.timed_out || r.status == 0 || !strstr(r.err, "fatal: ") || !strstr(r.err, "cut.bin: byte ") ||
            !strstr(r.err, "the file has been cut short") || !strstr(r.err, "reading the batch"))
            fail_msg("%d ranks: status %d: %s", ranks, r.status, r.err);
        json_t *incident = runs_last_line(path);
        assert_non_null(incident);
        assert_string_equal(json_string_value(json_object_get(incident, "verdict")), "data");
        assert_non_null(strstr(json_string_value(json_object_get(incident, "words")), "cut.bin: byte "));
        json_decref(incident);
        launch_free(&r);
    }
}

TEST_MAIN(write_config, workfolder_teardown)
