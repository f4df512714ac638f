/* Ranks that die, freeze, or are asked to end, in the middle of real training on four ranks: the others say who and
 * where, and end; what was saved goes on bit for bit. The watchdog alone is tests/parallel/watch/test_watchdog.c's. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { RANKS = 4, STEPS = 60 };

/* Data, configuration, and the run that nobody disturbs. */
static int train_undisturbed(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    runs_write_small(top, 30000, STEPS, "micro_batch: 1, global_batch: 8",
                     "optimizer: {lr: 3e-3}\n"
                     "parallel: {tensor: 2, pipeline: 2}\n"
                     "checkpoint: {every: 5, keep: 2}\n");
    free(runs_train_well(120, RANKS, "%s/run.yaml run.folder=%s/whole", top, top));
    return 0;
}

static const char *host(void)
{
    static char name[64];
    gethostname(name, sizeof name - 1);
    return name;
}

static void goes_on_bit_for_bit(const char *top, const char *name)
{
    AUTO_FREE char *folder = workfolder_path(top, name), *whole = workfolder_path(top, "whole");
    AUTO_FREE char *out = runs_train_well(120, RANKS, "%s/run.yaml run.folder=%s", top, folder);
    assert_non_null(strstr(out, "resumed from"));
    runs_metrics part = runs_read_metrics(folder), all = runs_read_metrics(whole);
    char difference[256];
    assert_int_equal(part.count, STEPS);
    if (!runs_same_metrics(&part, &all))
        fail_msg("%s: losses differ by %.1e from the undisturbed run's", name, runs_loss_error(&part, &all));
    assert_true(runs_compare_checkpoints(difference, sizeof difference, folder, whole) > 0);
    assert_string_equal(difference, "");
}

/* mpirun does not wait for what it has killed. */
static bool disappears(int pid, double seconds)
{
    for (int i = 0; i < seconds * 100; i++) {
        if (kill(pid, 0) == -1 && errno == ESRCH)
            return true;
        usleep(10000);
    }
    return false;
}

/* A running job past its 7th step, and its processes. */
static launch *start(const char *top, const char *name, const char *keys, int pids[RANKS])
{
    AUTO_FREE char *folder = workfolder_path(top, name),
                   *line = must_format("%s/run.yaml run.folder=%s %s", top, folder, keys);
    launch *l = runs_start(120, RANKS, line);
    assert_true(runs_wait_for_step(folder, 7, 60));
    for (int i = 0; i < RANKS; i++) {
        pids[i] = runs_process(folder, i);
        assert_true(pids[i] > 0);
    }
    return l;
}

/* The last line of incidents.jsonl says what people were told, and the ranks that are left have left their flight
 * records. */
static void check_incident(const char *top, const char *name, int victim, const char *verdict)
{
    char *path = must_format("%s/%s/incidents.jsonl", top, name);
    json_t *line = runs_last_line(path);
    const char *got = NULL, *on = NULL, *phase = NULL;
    int rank = -1, ranks = 0, ends = 0;
    long long step = 0;
    double time = 0, since = 0;
    if (!line ||
        json_unpack(line, "{s:s,s:i,s:i,s:s,s:s,s:I,s:b,s:F,s:F}", "verdict", &got, "rank", &rank, "ranks", &ranks,
                    "host", &on, "phase", &phase, "step", &step, "ends", &ends, "time", &time, "since", &since))
        fail_msg("%s is not what was promised", path);
    assert_string_equal(got, verdict);
    assert_string_equal(on, host());
    assert_int_equal(rank, victim);
    assert_int_equal(ranks, RANKS);
    /* its last frame is up to half a second old */
    if (!ends || step < 0 || step > STEPS || time < since || time - since > 60)
        fail_msg("%s: ends %d, step %lld, %.3f s", path, ends, step, time - since);
    json_decref(line);
    free(path);
    for (int i = 0; i < RANKS; i++) {
        int64_t bytes = 0;
        AUTO_FREE char *flight = must_format("%s/%s/flight-%d.jsonl", top, name, i);
        if (i != victim) {
            AUTO_FREE char *text = (char *)workfolder_read(flight, &bytes);
            assert_true(bytes > 100000 && strstr(text, "\"kind\": \"all_reduce\"") && strstr(text, "\"bytes\": "));
        }
    }
}

static void loss_is_noticed(const char *top, const char *name, int victim, int signal_number, const char *keys,
                            double limit, const char *verdict)
{
    int pids[RANKS];
    launch *l = start(top, name, keys, pids);
    double before = launch_seconds(l);
    assert_int_equal(kill(pids[victim], signal_number), 0);
    launch_result r = launch_finish(l);
    double took = r.seconds - before;
    printf("%s: rank %d, the job ended after %.1f s with status %d\n", name, victim, took, r.status);
    assert_false(r.timed_out);
    assert_int_not_equal(r.status, 0);
    assert_true(took < limit);
    for (int i = 0; i < RANKS; i++) {
        AUTO_FREE char *text = must_format("phalanx: rank %d: watchdog: rank %d on %s %s", i, victim, host(), verdict);
        if (i != victim && !strstr(r.err, text))
            fail_msg("\"%s\" is not said in: %s", text, r.err);
        assert_true(disappears(pids[i], 5)); /* nobody is left behind */
    }
    if (!strstr(r.err, "step ") || !strstr(r.err, ", op "))
        fail_msg("neither step nor op are said in: %s", r.err);
    launch_free(&r);
    check_incident(top, name, victim, signal_number == SIGKILL ? "dead" : "frozen");
    goes_on_bit_for_bit(top, name);
}

TEST(a_killed_rank_ends_the_job_within_10_seconds)
{
    loss_is_noticed(*state, "killed", 2, SIGKILL, "", 10, "is gone");
}

TEST(a_frozen_rank_ends_the_job_within_hang_seconds_and_10)
{
    loss_is_noticed(*state, "frozen", 1, SIGSTOP, "run.hang_seconds=3", 13, "does not answer");
}

TEST(rank_0_may_die_too)
{
    loss_is_noticed(*state, "headless", 0, SIGKILL, "", 10, "is gone");
}

/* A rank is held somewhere in a step, which the others come to wait for; it is asked to stop there, and let go. */
TEST(sigterm_to_one_rank_ends_all_after_the_step_at_hand_saved)
{
    const char *top = *state;
    int pids[RANKS];
    AUTO_FREE char *folder = workfolder_path(top, "asked");
    launch *l = start(top, "asked", "", pids);
    assert_int_equal(kill(pids[3], SIGSTOP), 0);
    usleep(500000);
    int done = runs_read_metrics(folder).count;
    assert_int_equal(kill(pids[3], SIGTERM), 0);
    assert_int_equal(kill(pids[3], SIGCONT), 0);
    launch_result r = launch_finish(l);
    if (r.status != 75 || runs_error_lines(r.err))
        fail_msg("status %d: %s", r.status, r.err);
    assert_non_null(strstr(r.out, "stopped by "));
    launch_free(&r);
    runs_metrics m = runs_read_metrics(folder);
    AUTO_FREE char *latest = must_format("%s/checkpoints/step-%08d/manifest.json", folder, m.count);
    assert_in_range(done, 7, STEPS - 2);
    assert_in_range(m.count, done, done + 1);
    assert_int_equal(access(latest, R_OK), 0); /* the step at hand was done, and saved */
    goes_on_bit_for_bit(top, "asked");
}

TEST_MAIN(train_undisturbed, workfolder_teardown)
