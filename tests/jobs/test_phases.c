/* Every phase of a run is watched, on one rank and on several: set-up, load, step, evaluation, save. Storage that hangs is made by
 * memory/spy/io_faults.c; a frozen rank is one that was sent SIGSTOP. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "memory/log.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

enum { STEPS = 8 };

static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 9000, STEPS, "micro_batch: 2, global_batch: 12", "checkpoint: {every: 4}\n");
    return 0;
}

/* Trains with a fault of the storage; every limit but the named one is a minute. The job ends, and the incident says who, in
 * which phase, and doing what. */
static void hangs(const char *top, int ranks, const char *fault, const char *limit, const char *keys, int culprit,
                  const char *phase, const char *action)
{
    char *spy = launch_beside("io_faults.so"), *program = launch_beside("../phalanx");
    char *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup("");
    char *path = must_format("%s/run/incidents.jsonl", top);
    unlink(path);
    launch_result r = launch_run(60, "exec %s env PHALANX_IO_FAULTS='%s' LD_PRELOAD=%s %s train %s/run.yaml %s=2 %s",
                                 mpirun, fault, spy, program, top, limit, keys);
    json_t *line = runs_last_line(path);
    const char *verdict = "", *in = "", *doing = "";
    int rank = -1;
    if (line)
        json_unpack(line, "{s:s,s:s,s:s,s:i}", "verdict", &verdict, "phase", &in, "action", &doing, "rank", &rank);
    if (r.timed_out || r.status == 0 || r.seconds < 2 || r.seconds > 30 || strcmp(verdict, "storage") != 0 ||
        strcmp(in, phase) != 0 || strcmp(doing, action) != 0 || rank != culprit)
        fail_msg("%s: status %d after %.1f s, verdict %s, phase %s, action %s, rank %d: %s%s", fault, r.status,
                 r.seconds, verdict, in, doing, rank, r.out, r.err);
    json_decref(line);
    launch_free(&r);
    free(path);
    free(mpirun);
    free(program);
    free(spy);
}

static void storage_that_hangs_in_a_save_is_reported(void **state)
{
    hangs(*state, 1, "checkpoints* HANG -1 fsync 0 0", "run.save_seconds", "checkpoint.resume=never", 0, "save",
          "writing a checkpoint");
    hangs(*state, 3, "checkpoints* HANG -1 fsync 0 1", "run.save_seconds", "checkpoint.resume=never", 1, "save",
          "writing a checkpoint");
}

static void storage_that_hangs_in_a_load_is_reported(void **state)
{
    free(runs_train_well(60, 1, "%s/run.yaml checkpoint.resume=never", (char *)*state));
    hangs(*state, 1, "manifest* HANG -1 open 0 0", "run.load_seconds", "train.steps=20", 0, "load",
          "reading weights and state");
    hangs(*state, 2, "model-* HANG -1 open 0 1", "run.load_seconds", "train.steps=20", 1, "load",
          "reading weights and state");
}

static void storage_that_hangs_in_the_set_up_is_reported(void **state)
{
    hangs(*state, 1, "data.idx HANG -1 open 0 0", "run.setup_seconds", "", 0, "set-up", "opening the data");
    hangs(*state, 2, "data.idx HANG -1 open 0 1", "run.setup_seconds", "", 1, "set-up", "opening the data");
    hangs(*state, 2, ".shared* HANG -1 access 0 1", "run.setup_seconds", "", 1, "set-up",
          "looking at the run's folder");
}

static void storage_that_hangs_under_the_metrics_is_reported(void **state)
{
    hangs(*state, 2, "metrics.jsonl HANG -1 write 3 0", "run.hang_seconds", "checkpoint.resume=never", 0, "step",
          "writing metrics");
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

/* A rank is stopped as soon as its process is seen, or a little later: in MPI's start, in the set-up, in the first steps. */
static void a_rank_frozen_in_its_first_second_ends_the_job(void **state)
{
    const char *top = *state;
    for (int i = 0; i < 6; i++) {
        char *folder = must_format("%s/frozen%d", top, i);
        char *line = must_format("%s/run.yaml run.folder=%s train.steps=1000 run.hang_seconds=2 run.setup_seconds=3 "
                                 "run.load_seconds=3 run.save_seconds=3",
                                 top, folder);
        launch *l = runs_start(60, 3, line);
        int pid = 0;
        while (!pid)
            pid = runs_process(folder, i % 3);
        usleep((unsigned)i * 90000);
        double before = launch_seconds(l);
        assert_int_equal(kill(pid, SIGSTOP), 0);
        launch_result r = launch_finish(l);
        double took = r.seconds - before;
        if (r.timed_out || r.status == 0 || took > 20 || !strstr(r.err, "watchdog: "))
            fail_msg("frozen after %.2f s: status %d after %.1f s more: %s", before, r.status, took, r.err);
        assert_true(disappears(pid, 5));
        launch_free(&r);
        free(line);
        free(folder);
    }
}

/* One rank alone: its watchdog's thread is all there is. */
static void one_rank_alone_is_watched_in_a_step(void **state)
{
    hangs(*state, 1, "metrics.jsonl HANG -1 write 2 0", "run.hang_seconds", "checkpoint.resume=never", 0, "step",
          "writing metrics");
}

/* Slow is no hang: each call takes long, but is progress. */
static void slow_storage_is_no_hang(void **state)
{
    char *spy = launch_beside("io_faults.so"), *program = launch_beside("../phalanx");
    launch_result r = launch_run(60,
                                 "exec env PHALANX_IO_FAULTS='checkpoints* SLOW 4 fsync' LD_PRELOAD=%s %s train "
                                 "%s/run.yaml checkpoint.resume=never run.save_seconds=4",
                                 spy, program, (char *)*state);
    if (r.status != 0 || strstr(r.err, "watchdog"))
        fail_msg("status %d: %s", r.status, r.err);
    launch_free(&r);
    free(program);
    free(spy);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(storage_that_hangs_in_a_save_is_reported),
        cmocka_unit_test(storage_that_hangs_in_a_load_is_reported),
        cmocka_unit_test(storage_that_hangs_in_the_set_up_is_reported),
        cmocka_unit_test(storage_that_hangs_under_the_metrics_is_reported),
        cmocka_unit_test(one_rank_alone_is_watched_in_a_step),
        cmocka_unit_test(a_rank_frozen_in_its_first_second_ends_the_job),
        cmocka_unit_test(slow_storage_is_no_hang),
    };
    return cmocka_run_group_tests(tests, write_config, workfolder_teardown);
}
