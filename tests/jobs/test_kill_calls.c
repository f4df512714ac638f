/* A run that is killed before one call on its files after another, of its start, of a load, of saves, of its end:
 * however often, it ends with the bits of one that nobody killed. CALLS=all kills at every call; else ever more
 * sparsely. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/supervised.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 12 };

static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 9000, STEPS, "micro_batch: 2, global_batch: 4",
                     "optimizer: {lr: 3e-3}\ncheckpoint: {every: 2, keep: 2}\n");
    return 0;
}

/* The whole checkpoint that `latest` names; 0: there is none yet. */
static int64_t saved_step(const char *run)
{
    checkpoint *c = NULL;
    char *latest = must_format("%s/checkpoints/latest", run);
    bool there = atomic_exists(latest);
    free(latest);
    if (!there)
        return 0;
    if (checkpoint_open(&c, run) != STATUS_OK || checkpoint_verify(c) != STATUS_OK)
        fail_msg("%s", status_message());
    int64_t step = json_integer_value(json_object_get(checkpoint_meta(c), "step"));
    checkpoint_close(c);
    return step;
}

/* One start, killed before a call (io_faults.c: where, which, after how many). True if it came to that. */
static bool is_killed(const char *top, const char *run, const char *keys, const char *path, const char *which, int call)
{
    AUTO_FREE char *program = launch_beside("../phalanx"), *spy = launch_beside("io_faults.so");
    launch_result r = launch_run(120,
                                 "exec env LD_PRELOAD=%s PHALANX_NODE=f%d PHALANX_IO_FAULTS='%s KILL 1 %s %d' "
                                 "%s train %s/run.yaml run.folder=%s %s",
                                 spy, (int)getpid(), path, which, call, program, top, run, keys);
    if (r.status != 0 && r.status != 128 + SIGKILL)
        fail_msg("killed at call %d: status %d: %s%s", call, r.status, r.out, r.err);
    bool killed = r.status != 0;
    launch_free(&r);
    return killed;
}

static void ends_as_if_undisturbed(const char *top, const char *name, const char *keys)
{
    const char *every = getenv("CALLS");
    AUTO_FREE char *run = workfolder_path(top, name);
    const char *whole = supervised_whole(top, 1, "");
    int kills = 0, call = 0;
    for (int64_t saved = 0; is_killed(top, run, keys, "phalanx-*", "any", call); kills++) {
        int64_t now = saved_step(run);
        if (now < saved)
            fail_msg("killed at call %d: step %lld is saved, and %lld had been", call, (long long)now,
                     (long long)saved);
        saved = now;
        call += every && !strcmp(every, "all") ? 1 : 1 + call / 5;
    }
    printf("%d kills, the last at call %d of a start\n", kills, call);
    assert_true(kills > 10);
    supervised_is_undisturbed(run, whole);
    supervised_left_nothing(run);
}

TEST(killed_at_one_call_after_another_it_ends_as_if_undisturbed)
{
    ends_as_if_undisturbed(*state, "killed", "");
}

/* The newest state is in memory, and is made a checkpoint at the next start. */
TEST(so_does_a_run_with_copies_in_memory)
{
    ends_as_if_undisturbed(*state, "copied", "checkpoint.every=6 checkpoint.memory_every=1");
}

/* Its last checkpoint is whole, and nothing is left to be trained: what it had yet to do beside is done. */
TEST(killed_before_its_last_checkpoint_has_a_name_it_is_complete)
{
    const char *top = *state, *keys = "checkpoint.every=100";
    AUTO_FREE char *run = workfolder_path(top, "last"), *summary = must_format("%s/summary.json", run);
    assert_true(is_killed(top, run, keys, "checkpoints/latest", "rename", 0));
    assert_int_equal(saved_step(run), 0);
    assert_false(is_killed(top, run, keys, "nowhere", "any", 0));
    assert_int_equal(saved_step(run), STEPS);
    assert_true(atomic_exists(summary));
    supervised_is_undisturbed(run, supervised_whole(top, 1, ""));
    supervised_left_nothing(run);
}

TEST_MAIN(write_config, workfolder_teardown)
