/* phalanx supervise: jobs that die, freeze or lose their storage at any moment end as if nothing had happened, and nobody waits for
 * a person but where one is needed. `make faults FAULTS=N SEED=S` throws more of them, and prints what each kind costs. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

enum { STEPS = 100 };

static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 30000, STEPS, "micro_batch: 1, global_batch: 12",
                     "optimizer: {lr: 3e-3}\ncheckpoint: {every: 4, keep: 2}\n");
    return 0;
}

/* "phalanx supervise -- mpirun ... phalanx train", without the words that follow. */
static char *supervised(int ranks, const char *options, const char *before)
{
    char *program = launch_beside("../phalanx"), *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup("");
    char *line = must_format("exec %s supervise %s -- env %s %s %s train", program, options, before, mpirun, program);
    free(mpirun);
    free(program);
    return line;
}

static launch *start(const char *top, const char *run, int ranks, const char *before, const char *keys)
{
    char *line = supervised(ranks, "", before);
    launch *l = launch_start(400,
                             "%s %s/run.yaml run.folder=%s run.hang_seconds=4 run.setup_seconds=8 run.load_seconds=6 "
                             "run.save_seconds=4 run.evaluation_seconds=4 %s",
                             line, top, run, keys);
    free(line);
    return l;
}

/* The same losses and the same checkpoint as a run that nobody disturbed. */
static void is_as_if_undisturbed(const char *run, const char *whole)
{
    char difference[256];
    runs_metrics part = runs_read_metrics(run), all = runs_read_metrics(whole);
    if (!runs_same_metrics(&part, &all))
        fail_msg("%s: %d of %d steps, losses differ by %.1e", run, part.count, all.count, runs_loss_error(&part, &all));
    assert_true(runs_compare_checkpoints(difference, sizeof difference, run, whole) > 0);
    assert_string_equal(difference, "");
}

/* No process that trains in this folder, and nothing half-written in it. */
static void nothing_is_left(const char *run)
{
    for (int i = 0; i < 4; i++)
        assert_int_equal(runs_process(run, i), 0);
    char *checkpoints = must_format("%s/checkpoints", run);
    const char *const folders[] = {run, checkpoints};
    for (int i = 0; i < 2; i++) {
        DIR *folder = opendir(folders[i]);
        assert_non_null(folder);
        for (struct dirent *e; (e = readdir(folder));)
            if (strstr(e->d_name, ".tmp") || strstr(e->d_name, "lock") || !strncmp(e->d_name, ".shared", 7) ||
                strstr(e->d_name, ".part"))
                fail_msg("%s/%s is left", folders[i], e->d_name);
        closedir(folder);
    }
    free(checkpoints);
    char *end = must_format(".f%d", (int)getpid());
    DIR *memory = opendir("/dev/shm");
    for (struct dirent *e; memory && (e = readdir(memory));)
        if (!strncmp(e->d_name, "phalanx-", 8) && strstr(e->d_name, end))
            fail_msg("/dev/shm/%s is left", e->d_name);
    if (memory)
        closedir(memory);
    free(end);
}

static const char *undisturbed(const char *top, int ranks, const char *keys)
{
    static char run[512];
    snprintf(run, sizeof run, "%s/whole-%d-%s", top, ranks, keys);
    for (char *c = run + strlen(top) + 1; *c; c++)
        *c = strchr("=. ", *c) ? '-' : *c;
    if (access(run, F_OK) != 0)
        free(runs_train_well(120, ranks, "%s/run.yaml run.folder=%s %s", top, run, keys));
    return run;
}

static char *wait_for_line(launch *l, const char *text, int times, double seconds)
{
    for (double until = clock_seconds() + seconds; clock_seconds() < until; usleep(20000)) {
        char *out = launch_output(l), *at = out;
        int seen = 0;
        for (; seen < times && (at = strstr(at, text)); seen++)
            at += strlen(text);
        if (seen == times) {
            char *rest = must_strdup(at);
            free(out);
            return rest;
        }
        free(out);
    }
    return NULL;
}

/* ---- one thing at a time ------------------------------------------------------------------------------------------ */

static void a_killed_rank_costs_seconds_and_no_bit(void **state)
{
    const char *top = *state, *keys = "parallel.tensor=2";
    char *run = workfolder_path(top, "killed");
    launch *l = start(top, run, 2, "", keys);
    assert_true(runs_wait_for_step(run, 9, 60));
    double began = clock_seconds();
    assert_int_equal(kill(runs_process(run, 1), SIGKILL), 0);
    char *rest = wait_for_line(l, " is done, ", 1, 30);
    assert_non_null(rest);
    printf("a killed rank: the next step is done %.2f s after the incident (%.2f s after the kill)\n", atof(rest),
           clock_seconds() - began);
    free(rest);
    launch_result r = launch_finish(l);
    if (r.status)
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_non_null(strstr(r.err, "supervise: rank 1 on "));
    is_as_if_undisturbed(run, undisturbed(top, 2, keys));
    nothing_is_left(run);
    launch_free(&r);
    free(run);
}

static void stopping_the_supervisor_saves_and_gives_75(void **state)
{
    static const int signals[] = {SIGTERM, SIGUSR1};
    const char *top = *state;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        char *run = must_format("%s/stopped%zu", top, i);
        launch *l = start(top, run, 2, "", "train.steps=20000");
        assert_true(runs_wait_for_step(run, 9, 60));
        kill(launch_pid(l), signals[i]);
        launch_result r = launch_finish(l);
        if (r.status != 75 || r.seconds > 60)
            fail_msg("status %d after %.1f s: %s%s", r.status, r.seconds, r.out, r.err);
        assert_non_null(strstr(r.out, "the run resumes from here"));
        nothing_is_left(run);
        launch_free(&r);
        free(run);
    }
}

static void what_the_supervisor_does_not_survive_the_job_does(void **state)
{
    const char *top = *state, *keys = "parallel.tensor=2";
    char *run = workfolder_path(top, "orphan");
    launch *l = start(top, run, 2, "", keys);
    assert_true(runs_wait_for_step(run, 5, 60));
    assert_int_equal(kill(launch_pid(l), SIGKILL), 0);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, 128 + SIGKILL);
    assert_true(runs_wait_for_step(run, STEPS, 60));
    for (int i = 0; runs_process(run, 0) && i < 500; i++)
        usleep(20000);
    is_as_if_undisturbed(run, undisturbed(top, 2, keys));
    nothing_is_left(run);
    launch_free(&r);
    free(run);
}

static void bad_data_and_wrong_usage_need_a_person(void **state)
{
    const char *top = *state;
    char *prefix = workfolder_path(top, "bad"), *path = must_format("%s.bin", prefix),
         *run = workfolder_path(top, "badrun");
    const uint16_t id = 999;
    runs_write_data(prefix, 131, 30000, 1);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, &id, sizeof id, 2 * (90 * 32 + 5)), sizeof id);
    close(fd);
    char *keys = must_format("data.train=%s data.shuffle=false", prefix);
    launch_result r = launch_finish(start(top, run, 1, "", keys));
    if (r.status != 1 || !strstr(r.err, "restart 1 in ") || strstr(r.err, "restart 2 in ") ||
        !strstr(r.err, "the same trouble with data or numbers at the same step again"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    launch_free(&r);
    r = launch_finish(start(top, run, 1, "", "train.stpes=4"));
    assert_int_equal(r.status, 2);
    launch_free(&r);
    r = launch_finish(start(top, run, 3, "", "parallel.tensor=2"));
    if (r.status != 2 || strstr(r.err, "restart 1"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    launch_free(&r);
    free(keys);
    free(run);
    free(path);
    free(prefix);
}

/* A launcher of its own: hosts are user time-sharing names of this machine. Without the right to give such names, a skip. */
static bool write_launcher(const char *path)
{
    launch_result r = launch_run(10, "unshare --uts hostname nodeA");
    bool can = r.status == 0;
    launch_free(&r);
    char *mpirun = launch_mpirun(0), *end = strstr(mpirun, "-np"); /* "-np 0" is given for each host */
    *end = 0;
    char *text = must_format("#!/bin/sh\n"
                             "ranks=$1 hosts=$2; shift 2\n"
                             "all=\"$*\"\nset --\n"
                             "while read name slots; do\n"
                             "  [ $# -gt 0 ] && set -- \"$@\" :\n"
                             "  set -- \"$@\" -np ${slots#slots=} unshare --uts sh -c \"hostname $name && exec $all\"\n"
                             "done < \"$hosts\"\n"
                             "exec %s \"$@\"\n",
                             mpirun);
    runs_write_text(path, text);
    free(text);
    free(mpirun);
    return can;
}

static void a_host_that_is_to_blame_is_left_out(void **state)
{
    static const struct {
        const char *hosts, *options, *keys, *expected;
        int victim, ranks;
    } cases[] = {
        /* a spare takes its place */
        {"nodeA slots=1\nnodeB slots=1\nnodeC slots=1\n", "", "parallel.data=2", "nodeA slots=1\nnodeC slots=1\n", 1,
         2},
        /* rank 0's host, and its lock, too */
        {"nodeA slots=2\nnodeB slots=2\n", "", "parallel.data=2", "nodeB slots=2\n", 0, 2},
    };
    const char *top = *state;
    char *launcher = workfolder_path(top, "launcher"), *program = launch_beside("../phalanx");
    char *list = workfolder_path(top, "hosts");
    if (!write_launcher(launcher))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t bytes;
        char *run = must_format("%s/hosts%zu", top, i), *left = must_format("%s/hosts", run);
        runs_write_text(list, cases[i].hosts);
        launch *l = launch_start(400,
                                 "exec %s supervise %s --hosts %s -- sh %s {ranks} {hosts} %s train %s/run.yaml "
                                 "run.folder=%s run.hang_seconds=5 %s",
                                 program, cases[i].options, list, launcher, program, top, run, cases[i].keys);
        assert_true(runs_wait_for_step(run, 5, 60));
        kill(runs_process(run, cases[i].victim), SIGKILL);
        launch_result r = launch_finish(l);
        if (r.status || !strstr(r.err, " is left out from now on (dead)"))
            fail_msg("status %d: %s%s", r.status, r.out, r.err);
        char *text = (char *)workfolder_read(left, &bytes);
        assert_string_equal(text, cases[i].expected);
        assert_int_equal(runs_read_metrics(run).count, STEPS);
        nothing_is_left(run);
        free(text);
        launch_free(&r);
        free(left);
        free(run);
    }
    free(list);
    free(program);
    free(launcher);
}

/* With nobody to take its place a host goes at its second fault, and the run with fewer data-parallel ranks on. */
static void an_elastic_run_goes_on_with_fewer_ranks(void **state)
{
    const char *top = *state;
    char *launcher = workfolder_path(top, "launcher"), *program = launch_beside("../phalanx");
    char *list = workfolder_path(top, "hosts"), *run = workfolder_path(top, "elastic");
    if (!write_launcher(launcher))
        skip();
    runs_write_text(list, "nodeA slots=2\nnodeB slots=1\n");
    launch *l = launch_start(400,
                             "exec %s supervise --elastic --hosts %s -- sh %s {ranks} {hosts} %s train %s/run.yaml "
                             "run.folder=%s run.hang_seconds=5",
                             program, list, launcher, program, top, run);
    assert_true(runs_wait_for_step(run, 5, 60));
    kill(runs_process(run, 2), SIGKILL);
    free(wait_for_line(l, " is done, ", 1, 30));
    assert_int_equal(kill(runs_process(run, 2), SIGKILL), 0); /* it had been started again */
    launch_result r = launch_finish(l);
    if (r.status || !strstr(r.err, "nodeB is left out from now on"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_non_null(strstr(r.out, "data 2 x pipeline")); /* of three slots, then of two */
    char *whole = must_format("%s/whole-1", top);
    runs_metrics part = runs_read_metrics(run), all = runs_read_metrics(undisturbed(top, 1, ""));
    assert_int_equal(part.count, STEPS);
    assert_true(runs_loss_error(&part, &all) < 1e-4);
    nothing_is_left(run);
    launch_free(&r);
    free(whole);
    free(run);
    free(list);
    free(program);
    free(launcher);
}

/* ---- faults at random --------------------------------------------------------------------------------------------- */

typedef enum kind {
    KILLED,
    FROZEN,
    CRASHED,
    LAUNCHER_KILLED,
    LAUNCHER_FROZEN,
    TWO_KILLED,
    STORAGE_HANGS,
    STORAGE_SLOW,
    STORAGE_FAILS,
    STORAGE_FULL,
    RENAME_FAILS,
    LOAD_FAILS,
    KINDS
} kind;

/* A signal to a rank, or to its launcher; or a call on a file that fails once (io_faults.c), in whichever process comes first. */
static const struct {
    const char *name;
    int number; /* the signal; 0: none */
    bool launcher;
    const char *fault;
} kinds[KINDS] = {
    [KILLED] = {"a rank is killed", SIGKILL, false, NULL},
    [FROZEN] = {"a rank is frozen", SIGSTOP, false, NULL},
    [CRASHED] = {"a rank crashes", SIGSEGV, false, NULL},
    [LAUNCHER_KILLED] = {"mpirun is killed", SIGKILL, true, NULL},
    [LAUNCHER_FROZEN] = {"mpirun is frozen", SIGSTOP, true, NULL},
    [TWO_KILLED] = {"two ranks are killed", SIGKILL, false, NULL},
    [STORAGE_HANGS] = {"storage hangs in a save", 0, false, "checkpoints* HANG -1 fsync"},
    [STORAGE_SLOW] = {"storage is slow once", 0, false, "checkpoints* SLOW 1 write"},
    [STORAGE_FAILS] = {"a write fails once", 0, false, "checkpoints* EIO 1 write"},
    [STORAGE_FULL] = {"a disk is full once", 0, false, "checkpoints* ENOSPC 1 write"},
    [RENAME_FAILS] = {"a rename fails once", 0, false, "checkpoints* EIO 1 rename"},
    [LOAD_FAILS] = {"a killed rank, a bad load", SIGKILL, false, "checkpoints* EIO 1 read"},
};

static const struct {
    int ranks;
    const char *keys;
} layouts[] = {
    {3, "parallel.zero=1"},
    {4, "parallel.tensor=2 parallel.pipeline=2"},
    {2, "parallel.zero=3"},
    {1, ""},
    {3, "parallel.zero=2 checkpoint.memory_every=2"},
    {2, "parallel.pipeline=2 parallel.schedule=zb-h1 checkpoint.asynchronous=false"},
};

enum { LAYOUTS = sizeof layouts / sizeof *layouts };

typedef struct tally {
    int thrown, noticed;
    double lost, worst; /* seconds */
} tally;

static uint64_t draw(uint64_t *random)
{
    *random ^= *random << 13; /* xorshift64 */
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static int parent_of(int pid)
{
    char *path = must_format("/proc/%d/stat", pid), text[512] = "";
    FILE *f = fopen(path, "r");
    int parent = 0;
    if (f && fgets(text, sizeof text, f) && strrchr(text, ')'))
        sscanf(strrchr(text, ')') + 1, " %*c %d", &parent);
    if (f)
        fclose(f);
    free(path);
    return parent;
}

/* A run has one kind of storage faults: what its environment says. */
static kind storage_of(uint64_t *random)
{
    return (kind)(STORAGE_HANGS + (int)(draw(random) % (KINDS - STORAGE_HANGS)));
}

/* One fault; false if there was nobody to throw it at. */
static bool throw_fault(kind k, const char *run, const char *once, int ranks, uint64_t *random)
{
    int first = (int)(draw(random) % (uint64_t)ranks), pid = runs_process(run, first);
    if (kinds[k].fault)
        workfolder_write(once, "", 0);
    if (kinds[k].fault && !kinds[k].number)
        return true;
    if (!pid)
        return false;
    if (kinds[k].launcher)
        pid = parent_of(pid);
    if (pid <= 1 || kill(pid, kinds[k].number) != 0)
        return false;
    if (k == TWO_KILLED && ranks > 1)
        kill(runs_process(run, (first + 1) % ranks), SIGKILL);
    return true;
}

static bool is_done(const char *run)
{
    char *summary = must_format("%s/summary.json", run);
    bool done = access(summary, F_OK) == 0;
    free(summary);
    return done;
}

/* Until the supervisor says for the times-th time that a new step is done; NULL: the run is over, or has not stopped. */
static char *wait_for_restart(launch *l, const char *run, int times)
{
    char *rest = NULL;
    for (double until = clock_seconds() + 25; !rest && clock_seconds() < until && !is_done(run);)
        rest = wait_for_line(l, "supervise: step ", times, 0.5);
    return rest;
}

/* One run of a layout, with faults one after another until it is done. */
static int disturb(tally *tallies, const char *top, int number, int faults, uint64_t *random)
{
    int which = number % LAYOUTS, ranks = layouts[which].ranks, thrown = 0, seen = 0;
    char *run = must_format("%s/run%d", top, number), *once = must_format("%s/once%d", top, number);
    char *spy = launch_beside("io_faults.so");
    kind storage = storage_of(random);
    char *before = must_format("LD_PRELOAD=%s PHALANX_IO_ONCE=%s 'PHALANX_IO_FAULTS=%s' PHALANX_NODE=f%d", spy, once,
                               kinds[storage].fault, (int)getpid());
    const char *whole = undisturbed(top, ranks, layouts[which].keys);
    launch *l = start(top, run, ranks, before, layouts[which].keys);
    while (thrown < faults && access(run, F_OK) != 0 && !launch_expect(l, "saved", 0))
        usleep(1000);
    while (thrown < faults) {
        usleep((unsigned)(draw(random) % 1500) * 1000);
        kind k = (kind)(draw(random) % KINDS);
        if (ranks == 1 && (kinds[k].launcher || k == FROZEN))
            k = KILLED; /* its parent is the supervisor, whose patience alone would notice that it is frozen: a minute */
        if (kinds[k].fault)
            k = storage;
        double began = clock_seconds();
        if (!throw_fault(k, run, once, ranks, random)) {
            if (is_done(run))
                break; /* it was faster */
            continue;
        }
        thrown++;
        tallies[k].thrown++;
        if (!kinds[k].number && k != STORAGE_HANGS)
            continue; /* nothing ends */
        char *rest = wait_for_restart(l, run, seen + 1);
        if (!rest)
            continue; /* what froze had nothing to do, or the run was done */
        seen++;
        free(rest);
        double lost = clock_seconds() - began;
        tallies[k].noticed++;
        tallies[k].lost += lost;
        tallies[k].worst = lost > tallies[k].worst ? lost : tallies[k].worst;
    }
    launch_result r = launch_finish(l);
    if (r.status || r.timed_out)
        fail_msg("run %d, %d ranks %s: status %d%s: %s%s", number, ranks, layouts[which].keys, r.status,
                 r.timed_out ? " (timed out)" : "", r.out, r.err);
    is_as_if_undisturbed(run, whole);
    nothing_is_left(run);
    launch_free(&r);
    char *remove = must_format("rm -rf %s", run);
    assert_int_equal(system(remove), 0);
    free(remove);
    free(before);
    free(spy);
    free(once);
    free(run);
    return thrown;
}

static void faults_at_random_moments_change_nothing(void **state)
{
    const char *wanted = getenv("FAULTS"), *seed = getenv("SEED");
    int faults = wanted && atoi(wanted) > 0 ? atoi(wanted) : 4, runs = 0;
    uint64_t random = (uint64_t)(seed ? atoll(seed) : 1) * 0x9E3779B97F4A7C15u + 1;
    tally tallies[KINDS] = {0};
    for (int thrown = 0; thrown < faults; runs++) {
        int left = faults - thrown, now = 1 + (int)(draw(&random) % 4);
        thrown += disturb(tallies, *state, runs, now < left ? now : left, &random);
    }
    printf("%d runs; from the fault to the next new step:\n", runs);
    printf("%-26s %7s %9s %9s %9s\n", "fault", "thrown", "noticed", "mean s", "worst s");
    for (int k = 0; k < KINDS; k++)
        printf("%-26s %7d %9d %9.2f %9.2f\n", kinds[k].name, tallies[k].thrown, tallies[k].noticed,
               tallies[k].noticed ? tallies[k].lost / tallies[k].noticed : 0, tallies[k].worst);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (getenv("FAULTS"))
        cmocka_set_test_filter("faults_*");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_costs_seconds_and_no_bit),
        cmocka_unit_test(stopping_the_supervisor_saves_and_gives_75),
        cmocka_unit_test(what_the_supervisor_does_not_survive_the_job_does),
        cmocka_unit_test(bad_data_and_wrong_usage_need_a_person),
        cmocka_unit_test(a_host_that_is_to_blame_is_left_out),
        cmocka_unit_test(an_elastic_run_goes_on_with_fewer_ranks),
        cmocka_unit_test(faults_at_random_moments_change_nothing),
    };
    return cmocka_run_group_tests(tests, write_config, workfolder_teardown);
}
