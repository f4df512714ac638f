/* Checkpoints in the memory of nodes: a job whose ranks die, or which loses a node, goes on from the newest complete
 * set, to the last bit; what is damaged, incomplete or of another start is not used; nothing is left at the end. Nodes
 * are names here (PHALANX_NODE), all on this machine. */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/s3_server.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { NODES = 3 };

static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 30000, 100000, "micro_batch: 1, global_batch: 12",
                     "optimizer: {lr: 3e-3, schedule: constant}\ncheckpoint: {every: 0, memory_every: 3, keep: 0}\n");
    return 0;
}

/* Node n of this test: a name that no other test has. */
static char *node_name(int n)
{
    return must_format("%c%d", 'a' + n, (int)getpid());
}

/* Ranks find their nodes by themselves: Open MPI 5.0.7 does not survive a command of several programs. */
static void write_launcher(const char *path)
{
    runs_write_text(path,
                    "#!/bin/sh\n"
                    "# NAME RANKS, three times, and the command\n"
                    "before=0\n"
                    "for n in 1 2 3; do\n"
                    "    before=$((before + $2))\n"
                    "    [ -z \"$PHALANX_NODE\" ] && [ $OMPI_COMM_WORLD_RANK -lt $before ] && export PHALANX_NODE=$1\n"
                    "    shift 2\n"
                    "done\n"
                    "exec \"$@\"\n");
}

/* A job with so many ranks on each node. */
static launch *start(const char *top, const char *run, const int ranks[NODES], const char *before, const char *keys)
{
    char *mpirun = launch_mpirun(ranks[0] + ranks[1] + ranks[2]), *program = launch_beside("../phalanx"), *name[NODES];
    AUTO_FREE char *launcher = workfolder_path(top, "node.sh");
    write_launcher(launcher);
    for (int n = 0; n < NODES; n++)
        name[n] = node_name(n);
    launch *l = launch_start(
        300, "exec %s%s sh %s %s %d %s %d %s %d %s train %s/run.yaml run.folder=%s parallel.zero=1 %s", before, mpirun,
        launcher, name[0], ranks[0], name[1], ranks[1], name[2], ranks[2], program, top, run, keys);
    for (int n = 0; n < NODES; n++)
        free(name[n]);
    free(program);
    free(mpirun);
    return l;
}

/* The folder of a node's memory that has something of this test; NULL: there is none. */
static char *memory_of(int n)
{
    char *name = node_name(n), *end = must_format(".%s", name), *found = NULL;
    DIR *all = opendir("/dev/shm");
    assert_non_null(all);
    for (struct dirent *e; (e = readdir(all)) && !found;) {
        size_t length = strlen(e->d_name), more = strlen(end);
        if (!strncmp(e->d_name, "phalanx-", 8) && length > more && !strcmp(e->d_name + length - more, end))
            found = must_format("/dev/shm/%s", e->d_name);
    }
    closedir(all);
    free(end);
    free(name);
    return found;
}

static void nothing_is_in_memory(void)
{
    for (int n = 0; n < NODES; n++) {
        char *left = memory_of(n);
        if (left)
            fail_msg("%s is left", left);
    }
}

/* A line for the shell, which must not fail; it is freed. */
static void shell(char *line)
{
    if (system(line) != 0)
        fail_msg("%s", line);
    free(line);
}

/* A run of which a rank is killed after step 10, when the copies of step 6 are complete at least. Steps it has done. */
static int killed_run(const char *top, const char *run, const int ranks[NODES], int victim, const char *keys)
{
    launch *l = start(top, run, ranks, "", keys);
    assert_true(runs_wait_for_step(run, 10, 200));
    int pid = runs_process(run, victim);
    assert_true(pid > 0 && kill(pid, SIGKILL) == 0);
    launch_result r = launch_finish(l);
    assert_true(r.status != 0 && !r.timed_out);
    launch_free(&r);
    return runs_read_metrics(run).count;
}

/* The step whose copies a start went on from; -1: none. */
static int step_taken(const launch_result *r)
{
    const char *said = strstr(r->out, "the copies of step ");
    return said ? atoi(said + strlen("the copies of step ")) : -1;
}

/* Until `steps` are done; what it said. */
static launch_result goes_on(const char *top, const char *run, const int ranks[NODES], int steps, const char *keys)
{
    AUTO_FREE char *all = must_format("train.steps=%d %s", steps, keys);
    launch_result r = launch_finish(start(top, run, ranks, "", all));
    if (r.status != 0)
        fail_msg("status %d%s: %s%s", r.status, r.timed_out ? " (timed out)" : "", r.out, r.err);
    nothing_is_in_memory();
    assert_int_equal(runs_read_metrics(run).count, steps);
    return r;
}

static void is_as_if_undisturbed(const char *top, const char *run, const int ranks[NODES], int steps, const char *keys)
{
    char *whole = must_format("%s-whole", run), difference[256];
    AUTO_FREE char *all = must_format("checkpoint.memory_every=0 %s", keys);
    launch_result r = goes_on(top, whole, ranks, steps, all);
    runs_metrics a = runs_read_metrics(run), b = runs_read_metrics(whole);
    assert_true(runs_same_metrics(&a, &b));
    assert_true(runs_compare_checkpoints(difference, sizeof difference, run, whole) > 0);
    assert_string_equal(difference, "");
    launch_free(&r);
    free(whole);
}

/* ---- what is kept
 * ------------------------------------------------------------------------------------------------- */

/* The state is on no disk: without its copies the run would begin anew. */
TEST(a_killed_job_goes_on_from_memory)
{
    static const struct {
        int ranks[NODES];
        const char *keys;
    } layouts[] = {{{2, 1, 0}, ""}, {{1, 1, 1}, ""}, {{3, 0, 0}, ""}, {{1, 1, 0}, "parallel.context=2"}};
    const char *top = *state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        AUTO_FREE char *run = must_format("%s/killed%zu", top, i);
        const int *ranks = layouts[i].ranks;
        int done = killed_run(top, run, ranks, (int)i % 3, layouts[i].keys);
        launch_result r = goes_on(top, run, ranks, done + 10, layouts[i].keys);
        if (step_taken(&r) < 6)
            fail_msg("layout %zu, killed after step %d: %s%s", i, done, r.out, r.err);
        is_as_if_undisturbed(top, run, ranks, done + 10, layouts[i].keys);
        launch_free(&r);
    }
}

TEST(copies_are_their_users_alone)
{
    static const int ranks[NODES] = {1, 1, 0};
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "private");
    int done = killed_run(top, run, ranks, 1, "");
    for (int n = 0; n < 2; n++) {
        struct stat info;
        AUTO_FREE char *folder = memory_of(n);
        int files = 0;
        assert_non_null(folder);
        assert_int_equal(stat(folder, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0700);
        AUTO_FREE char *list = must_format("find %s -type f -perm 0600 -name '*-0000[01]*' | wc -l", folder);
        FILE *f = popen(list, "r");
        assert_int_equal(fscanf(f, "%d", &files), 1);
        pclose(f);
        assert_true(files >= 8); /* fragment, model and two moments of both ranks */
    }
    launch_result r = goes_on(top, run, ranks, done + 1, "");
    json_t *summary = runs_read_summary(run);
    json_t *first = json_array_get(json_object_get(summary, "ranks"), 0);
    assert_true(json_integer_value(json_object_get(first, "memory_copy_bytes")) > 0);
    json_decref(summary);
    launch_free(&r);
}

/* ---- what is lost
 * -------------------------------------------------------------------------------------------------- */

TEST(a_lost_node_takes_nothing_with_it)
{
    static const int three[NODES] = {1, 1, 1}, two[NODES] = {2, 1, 0};
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "lost");
    int done = killed_run(top, run, three, 2, "");
    AUTO_FREE char *folder = memory_of(2);
    shell(must_format("rm -r %s", folder));
    launch_result r = goes_on(top, run, two, done + 10, "");
    assert_true(step_taken(&r) >= 6);
    launch_free(&r);
}

TEST(an_incomplete_set_is_none)
{
    static const int three[NODES] = {1, 1, 1};
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "incomplete");
    int done = killed_run(top, run, three, 0, "");
    for (int n = 1; n < 3; n++) {
        AUTO_FREE char *folder = memory_of(n);
        shell(must_format("rm -r %s", folder));
    }
    launch_result r = goes_on(top, run, three, done + 3, ""); /* from the beginning: nothing is on the disk */
    assert_int_equal(step_taken(&r), -1);
    assert_null(strstr(r.out, "resumed from"));
    is_as_if_undisturbed(top, run, three, done + 3, "");
    launch_free(&r);
}

/* One byte in the middle of one file of one node: the other node's copy serves. In both: the set is given up, and said
 * so. */
TEST(a_damaged_copy_gives_way_to_the_other)
{
    static const int ranks[NODES] = {1, 1, 0};
    const char *top = *state;
    for (int damaged = 1; damaged <= 2; damaged++) {
        AUTO_FREE char *run = must_format("%s/damaged%d", top, damaged);
        int done = killed_run(top, run, ranks, 1, "");
        for (int n = 0; n < damaged; n++) {
            AUTO_FREE char *folder = memory_of(n);
            shell(must_format("for f in %s/.tmp-*/model-00000.safetensors; do printf 'X' | dd of=$f bs=1 seek=9000 "
                              "conv=notrunc 2> /dev/null || exit 1; done",
                              folder));
        }
        launch_result r = goes_on(top, run, ranks, done + 3, "");
        assert_non_null(strstr(r.err, "model-00000.safetensors is damaged"));
        assert_int_equal(step_taken(&r) >= 6, damaged == 1);
        assert_int_equal(strstr(r.err, "the copies in memory cannot be used") != NULL, damaged == 2);
        is_as_if_undisturbed(top, run, ranks, done + 3, "");
        launch_free(&r);
    }
}

/* ---- whose they are
 * ------------------------------------------------------------------------------------------------- */

TEST(copies_of_another_start_do_not_count)
{
    static const int ranks[NODES] = {1, 1, 0};
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "other");
    (void)killed_run(top, run, ranks, 1, "");
    AUTO_FREE char *one = memory_of(0), *two = memory_of(1);
    shell(must_format("mv %s %s %s", one, two, top));
    launch_result r = goes_on(top, run, ranks, 5, "checkpoint.resume=never");
    assert_int_equal(step_taken(&r), -1);
    launch_free(&r);
    /* The nodes come back, with more steps than the disk has. */
    shell(must_format("mv %s/phalanx-* /dev/shm/", top));
    r = launch_finish(start(top, run, ranks, "", "train.steps=8"));
    assert_int_equal(r.status, 0);
    assert_int_equal(step_taken(&r), -1);
    assert_non_null(strstr(r.out, "after step 5"));
    assert_int_equal(runs_read_metrics(run).count, 8);
    nothing_is_in_memory();
    launch_free(&r);
}

/* A folder that was renamed, or is reached by another mount. */
TEST(copies_are_found_wherever_the_run_has_moved)
{
    static const int ranks[NODES] = {1, 1, 0};
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "here"), *moved = workfolder_path(top, "there");
    int done = killed_run(top, run, ranks, 1, "");
    assert_int_equal(rename(run, moved), 0);
    launch_result r = goes_on(top, moved, ranks, done + 3, "");
    assert_true(step_taken(&r) >= 6);
    is_as_if_undisturbed(top, moved, ranks, done + 3, "");
    launch_free(&r);
}

/* ---- with a mirror
 * ------------------------------------------------------------------------------------------------- */

#define MIRROR "checkpoint.mirror=s3://" S3_SERVER_BUCKET "/"

/* The last step that a start went on from, fetched or not; -1: none. */
static int step_fetched(const launch_result *r)
{
    const char *said = strstr(r->out, "fetched step ");
    return said ? atoi(said + strlen("fetched step ")) : -1;
}

/* The disk of the checkpoints is gone, and the copies are later than what is in the mirror. */
TEST(copies_later_than_the_mirror_win)
{
    static const int ranks[NODES] = {1, 1, 0};
    const char *top = *state, *keys = "checkpoint.every=100 " MIRROR "earlier";
    s3_server *server = s3_server_start();
    AUTO_FREE char *run = workfolder_path(top, "earlier");
    launch_result r = goes_on(top, run, ranks, 2, keys);
    launch_free(&r);
    int done = killed_run(top, run, ranks, 1, keys);
    shell(must_format("rm -r %s/checkpoints", run));
    r = goes_on(top, run, ranks, done + 3, keys);
    if (step_fetched(&r) != 2 || step_taken(&r) < 6)
        fail_msg("killed after step %d: %s%s", done, r.out, r.err);
    is_as_if_undisturbed(top, run, ranks, done + 3, "");
    launch_free(&r);
    s3_server_stop(server);
}

/* The run has gone on elsewhere: the folder and the copies come back, and are the older ones. */
TEST(a_mirror_later_than_the_copies_wins)
{
    static const int ranks[NODES] = {1, 1, 0};
    const char *top = *state, *keys = "checkpoint.every=4 " MIRROR "later";
    s3_server *server = s3_server_start();
    AUTO_FREE char *run = workfolder_path(top, "later");
    int done = killed_run(top, run, ranks, 1, keys);
    AUTO_FREE char *one = memory_of(0), *two = memory_of(1);
    shell(must_format("mv %s %s %s && cp -r %s %s-old", one, two, top, run, run));
    launch_result r = goes_on(top, run, ranks, done + 8, keys);
    launch_free(&r);
    shell(must_format("mv %s/phalanx-* /dev/shm/ && rm -r %s && mv %s-old %s", top, run, run, run));
    AUTO_FREE char *more = must_format("train.steps=%d %s", done + 11, keys);
    r = launch_finish(start(top, run, ranks, "", more));
    if (r.status != 0 || step_fetched(&r) != done + 8 || step_taken(&r) != -1)
        fail_msg("killed after step %d: %s%s", done, r.out, r.err);
    nothing_is_in_memory();
    launch_free(&r);
    s3_server_stop(server);
}

/* Storage that fails for a moment is no other user's. */
TEST(a_folder_that_cannot_be_looked_at_once_is_asked_again)
{
    static const int ranks[NODES] = {1, 1, 0};
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "unseen"), *spy = launch_beside("io_faults.so");
    int done = killed_run(top, run, ranks, 1, "");
    AUTO_FREE char *before = must_format("env LD_PRELOAD=%s 'PHALANX_IO_FAULTS=/dev/shm/phalanx-%u-* EIO 1 fstat' ",
                                         spy, (unsigned)getuid());
    AUTO_FREE char *keys = must_format("train.steps=%d", done + 3);
    launch_result r = launch_finish(start(top, run, ranks, before, keys));
    if (r.status != 0 || step_taken(&r) < 6)
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    is_as_if_undisturbed(top, run, ranks, done + 3, "");
    nothing_is_in_memory();
    launch_free(&r);
}

/* What another user may have put there is neither used nor removed: the run has a folder of its own. */
TEST(a_folder_that_others_can_enter_is_not_believed)
{
    static const int ranks[NODES] = {1, 1, 0};
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "open");
    (void)killed_run(top, run, ranks, 1, "");
    AUTO_FREE char *one = memory_of(0), *two = memory_of(1);
    shell(must_format("chmod 0777 %s %s", one, two));
    launch_result r = launch_finish(start(top, run, ranks, "", "train.steps=5"));
    if (r.status != 0 || step_taken(&r) != -1 || !strstr(r.out, "not this user's"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_int_equal(runs_read_metrics(run).count, 5);
    shell(must_format("ls -d %s/.tmp-step-* %s/.tmp-step-* > /dev/null && rm -r %s %s", one, two, one, two));
    nothing_is_in_memory();
    launch_free(&r);
}

/* ---- nobody is needed
 * ----------------------------------------------------------------------------------------------- */

TEST(under_supervise_a_killed_rank_costs_a_few_steps)
{
    static const int ranks[NODES] = {2, 1, 0};
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "supervised"), *program = launch_beside("../phalanx");
    AUTO_FREE char *before = must_format("%s supervise -- ", program);
    launch *l = start(top, run, ranks, before, "");
    assert_true(runs_wait_for_step(run, 10, 200));
    int pid = runs_process(run, 1);
    assert_true(pid > 0 && kill(pid, SIGKILL) == 0);
    assert_true(launch_expect(l, "are a checkpoint now", 200));
    assert_true(runs_wait_for_step(run, runs_read_metrics(run).count + 10, 200));
    assert_int_equal(kill(launch_pid(l), SIGTERM), 0);
    launch_result r = launch_finish(l);
    if (r.status != 75 || !strstr(r.err, "restart 1") || step_taken(&r) < 6)
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    nothing_is_in_memory();
    is_as_if_undisturbed(top, run, ranks, runs_read_metrics(run).count, "");
    launch_free(&r);
}

TEST_MAIN(write_config, workfolder_teardown)
