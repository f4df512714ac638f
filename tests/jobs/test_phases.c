/* Every phase of a run is watched, on one rank and on several: set-up, load, step, evaluation, save. Storage that hangs
 * is made by memory/spy/io_faults.c; a frozen rank is one that was sent SIGSTOP. */
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

enum { STEPS = 8 };

/* Storage that hangs: on which calls (io_faults.c), in a run with which keys, of which the first is the limit of the
 * phase; and who is to blame, in which phase, doing what. */
typedef struct hang {
    int ranks;
    const char *fault, *keys;
    int culprit;
    const char *phase, *action;
} hang;

static const hang hangs[] = {
    {1, "checkpoints* HANG -1 fsync 0 0", "run.save_seconds=2", 0, "save", NULL},
    {3, "checkpoints* HANG -1 fsync 0 1", "run.save_seconds=2", 1, "save", NULL},
    {3, "checkpoints* HANG -1 fsync 0 1", "run.save_seconds=2 checkpoint.asynchronous=false", 1, "save",
     "writing a checkpoint"},
    {1, "manifest* HANG -1 open 0 0", "run.load_seconds=2 train.steps=20", 0, "load", "reading weights and state"},
    {2, "model-* HANG -1 open 0 1", "run.load_seconds=2 train.steps=20", 1, "load", "reading weights and state"},
    {1, "data.idx HANG -1 open 0 0", "run.setup_seconds=3", 0, "set-up", "opening the data"},
    {2, "data.idx HANG -1 open 0 1", "run.setup_seconds=5", 1, "set-up", "opening the data"},
    {2, ".shared* HANG -1 access 0 1", "run.setup_seconds=5", 1, "set-up", "looking at the run's folder"},
    {1, "metrics.jsonl HANG -1 write 2 0", "run.hang_seconds=2", 0, "step", "writing metrics"},
    {2, "metrics.jsonl HANG -1 write 3 0", "run.hang_seconds=2", 0, "step", "writing metrics"},
    {2, "metrics.jsonl HANG -1 write 2 0", "run.evaluation_seconds=2 data.validation=TOP/data evaluate.every=2", 0,
     "evaluation", "writing metrics"},
};

enum { HANGS = sizeof hangs / sizeof *hangs };

static launch *running[HANGS];

static char *with_top(const char *keys, const char *top)
{
    const char *at = strstr(keys, "TOP/");
    return at ? must_format("%.*s%s/%s", (int)(at - keys), keys, top, at + 4) : must_strdup(keys);
}

static launch *start_hang(const char *top, int which)
{
    const hang *h = &hangs[which];
    AUTO_FREE char *spy = launch_beside("io_faults.so"), *program = launch_beside("../phalanx"),
                   *keys = with_top(h->keys, top);
    char *mpirun = h->ranks > 1 ? launch_mpirun(h->ranks) : must_strdup("");
    launch *l = launch_start(
        300, "exec %s env 'PHALANX_IO_FAULTS=%s' LD_PRELOAD=%s %s train %s/run.yaml run.folder=%s/hang%d %s", mpirun,
        h->fault, spy, program, top, top, which, keys);
    free(mpirun);
    return l;
}

/* They take their time, mostly asleep: all are started at the beginning, and tests wait for their own. */
static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 9000, STEPS, "micro_batch: 2, global_batch: 12", "checkpoint: {every: 4}\n");
    free(runs_train_well(300, 1, "%s/run.yaml run.folder=%s/done", (char *)*state, (char *)*state));
    for (int i = 0; i < HANGS; i++) {
        char *copy = must_format("cp -r %s/done %s/hang%d", (char *)*state, (char *)*state, i);
        if (strcmp(hangs[i].phase, "load") == 0 && system(copy) != 0)
            return -1;
        free(copy);
        running[i] = start_hang(*state, i);
    }
    return 0;
}

static void is_reported(const char *top, int which)
{
    const hang *h = &hangs[which];
    AUTO_FREE char *path = must_format("%s/hang%d/incidents.jsonl", top, which);
    launch_result r = launch_finish(running[which]);
    json_t *line = runs_last_line(path);
    const char *verdict = "", *phase = "", *action = "";
    int rank = -1;
    if (line)
        json_unpack(line, "{s:s,s:s,s:s,s:i}", "verdict", &verdict, "phase", &phase, "action", &action, "rank", &rank);
    if (r.timed_out || r.status == 0 || r.seconds < 2 || strcmp(verdict, "storage") != 0 || rank != h->culprit ||
        (h->action && (strcmp(phase, h->phase) != 0 || strcmp(action, h->action) != 0)))
        fail_msg("%s: status %d after %.1f s, verdict %s, phase %s, action %s, rank %d: %s%s", h->fault, r.status,
                 r.seconds, verdict, phase, action, rank, r.out, r.err);
    json_decref(line);
    launch_free(&r);
}

static void are_reported(void **state, const char *phase)
{
    int seen = 0;
    for (int i = 0; i < HANGS; i++)
        if (strcmp(hangs[i].phase, phase) == 0) {
            is_reported(*state, i);
            seen++;
        }
    assert_true(seen > 0);
}

TEST(storage_that_hangs_in_a_save_is_reported)
{
    are_reported(state, "save");
}

TEST(storage_that_hangs_in_a_load_is_reported)
{
    are_reported(state, "load");
}

TEST(storage_that_hangs_in_the_set_up_is_reported)
{
    are_reported(state, "set-up");
}

TEST(storage_that_hangs_under_the_metrics_is_reported)
{
    are_reported(state, "step");
    are_reported(state, "evaluation");
}

static bool disappears(int pid, double seconds)
{
    for (int i = 0; i < seconds * 100; i++) {
        if (kill(pid, 0) == -1 && errno == ESRCH)
            return true;
        usleep(10000);
    }
    return false;
}

/* A rank is stopped as soon as its process is seen, or a little later: in MPI's start, in the set-up, in the first
 * steps. */
TEST(a_rank_frozen_in_its_first_second_ends_the_job)
{
    const char *top = *state;
    for (int i = 0; i < 4; i++) {
        AUTO_FREE char *folder = must_format("%s/frozen%d", top, i);
        AUTO_FREE char *line =
            must_format("%s/run.yaml run.folder=%s train.steps=1000 run.hang_seconds=2 run.setup_seconds=3 "
                        "run.load_seconds=3 run.save_seconds=3",
                        top, folder);
        launch *l = runs_start(300, 3, line);
        int pid = 0;
        while (!pid)
            pid = runs_process(folder, i % 3);
        usleep((unsigned)i * 150000);
        double before = launch_seconds(l);
        assert_int_equal(kill(pid, SIGSTOP), 0);
        launch_result r = launch_finish(l);
        double took = r.seconds - before;
        if (r.timed_out || r.status == 0 || took > 20 || !strstr(r.err, "watchdog: "))
            fail_msg("frozen after %.2f s: status %d after %.1f s more: %s", before, r.status, took, r.err);
        assert_true(disappears(pid, 5));
        launch_free(&r);
    }
}

/* Long steps may have a long limit: a machine that is gone is found out sooner. */
TEST(a_rank_that_does_not_answer_has_a_limit_of_its_own)
{
    AUTO_FREE char *folder = workfolder_path(*state, "silent");
    char *line =
        must_format("%s/run.yaml run.folder=%s train.steps=100000 run.silent_seconds=2", (char *)*state, folder);
    launch *l = runs_start(300, 2, line);
    assert_true(runs_wait_for_step(folder, 3, 200));
    assert_int_equal(kill(runs_process(folder, 1), SIGSTOP), 0);
    double before = launch_seconds(l);
    launch_result r = launch_finish(l);
    if (r.timed_out || r.seconds - before > 20 || !strstr(r.err, " does not answer"))
        fail_msg("%.1f s: %s", r.seconds - before, r.err);
    launch_free(&r);
    free(line);
}

/* Slow is no hang: each call takes long, but is progress. */
TEST(slow_storage_is_no_hang)
{
    AUTO_FREE char *spy = launch_beside("io_faults.so"), *program = launch_beside("../phalanx");
    launch_result r = launch_run(300,
                                 "exec env PHALANX_IO_FAULTS='checkpoints* SLOW 4 fsync' LD_PRELOAD=%s %s train "
                                 "%s/run.yaml checkpoint.resume=never run.folder=%s/slow run.save_seconds=4",
                                 spy, program, (char *)*state, (char *)*state);
    if (r.status != 0 || strstr(r.err, "watchdog"))
        fail_msg("status %d: %s", r.status, r.err);
    launch_free(&r);
}

TEST_MAIN(write_config, workfolder_teardown)
