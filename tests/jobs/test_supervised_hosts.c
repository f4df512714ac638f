/* phalanx supervise on several hosts, which are names of this machine: one that is to blame is left out, and an elastic
 * run goes on with fewer ranks, out of its mirror where its folder is lost. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/s3_server.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/supervised.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

enum { STEPS = SUPERVISED_STEPS };

/* A launcher of its own: hosts are user time-sharing names of this machine. Without the right to give such names, a
 * skip. `at_first`: lines of the shell before each start, of $ranks ranks. */
static bool write_launcher(const char *path, const char *at_first)
{
    launch_result r = launch_run(10, "unshare --uts hostname nodeA");
    bool can = r.status == 0;
    launch_free(&r);
    char *mpirun = launch_mpirun(0), *end = strstr(mpirun, "-np"); /* how many is known to the script */
    *end = 0;
    char *text = must_format("#!/bin/sh\n"
                             "if [ \"$1\" = host ]; then # a rank: it finds its host\n"
                             "  hosts=$2 before=0; shift 2\n"
                             "  while read name slots; do\n"
                             "    before=$((before + ${slots#slots=}))\n"
                             "    [ $OMPI_COMM_WORLD_RANK -lt $before ] && break\n"
                             "  done < \"$hosts\"\n"
                             "  hostname $name && exec \"$@\"\n"
                             "  exit 1\n"
                             "fi\n"
                             "ranks=$1 hosts=$2; shift 2\n"
                             "%s"
                             "exec %s -np $ranks unshare --uts sh \"$0\" host \"$hosts\" \"$@\"\n",
                             at_first, mpirun);
    runs_write_text(path, text);
    free(text);
    free(mpirun);
    return can;
}

TEST(a_host_that_is_to_blame_is_left_out)
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
    AUTO_FREE char *launcher = workfolder_path(top, "launcher"), *program = launch_beside("../phalanx");
    AUTO_FREE char *list = workfolder_path(top, "hosts");
    if (!write_launcher(launcher, ""))
        skip_because("unshare --uts is not allowed here");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t bytes;
        AUTO_FREE char *run = must_format("%s/hosts%zu", top, i), *left = must_format("%s/hostfile", run);
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
        AUTO_FREE char *text = (char *)workfolder_read(left, &bytes);
        assert_string_equal(text, cases[i].expected);
        assert_int_equal(runs_read_metrics(run).count, STEPS);
        supervised_left_nothing(run);
        launch_free(&r);
    }
}

/* The last rank, on nodeB, is killed twice; `less`: what is said of the layout without it. */
static void is_elastic(const char *top, int victim, const char *hosts, const char *keys, const char *less)
{
    AUTO_FREE char *launcher = workfolder_path(top, "launcher"), *program = launch_beside("../phalanx");
    AUTO_FREE char *list = workfolder_path(top, "hosts"), *run = must_format("%s/elastic-%d", top, victim);
    if (!write_launcher(launcher, ""))
        skip_because("unshare --uts is not allowed here");
    runs_write_text(list, hosts);
    launch *l = launch_start(400,
                             "exec %s supervise --elastic --hosts %s -- sh %s {ranks} {hosts} %s train %s/run.yaml "
                             "run.folder=%s run.hang_seconds=5 %s",
                             program, list, launcher, program, top, run, keys);
    assert_true(runs_wait_for_step(run, 5, 60));
    kill(runs_process(run, victim), SIGKILL);
    free(supervised_wait_for(l, " is done, ", 1, 30));
    assert_int_equal(kill(runs_process(run, victim), SIGKILL), 0); /* it had been started again */
    launch_result r = launch_finish(l);
    if (r.status || !strstr(r.err, "nodeB is left out from now on"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_non_null(strstr(r.out, less));
    AUTO_FREE char *whole = must_format("%s/whole-1", top);
    runs_metrics part = runs_read_metrics(run), all = runs_read_metrics(supervised_whole(top, 1, ""));
    assert_int_equal(part.count, STEPS);
    assert_true(runs_loss_error(&part, &all) < 1e-4);
    supervised_left_nothing(run);
    launch_free(&r);
}

/* With nobody to take its place a host goes at its second fault, and the run with fewer data-parallel ranks on. */
TEST(an_elastic_run_goes_on_with_fewer_ranks)
{
    is_elastic(*state, 2, "nodeA slots=2\nnodeB slots=1\n", "", "data 2 x pipeline");
    is_elastic(*state, 3, "nodeA slots=3\nnodeB slots=1\n", "parallel.context=2", "context 2 x data 1");
}

static void wait_for_object(s3_server *server, const char *key)
{
    AUTO_FREE char *text = NULL;
    int64_t bytes;
    for (double until = clock_seconds() + 60; !(text = s3_server_get(server, key, &bytes));) {
        assert_true(clock_seconds() < until);
        usleep(20000);
    }
}

/* The host goes for good, and what the run had in its folder with it. */
TEST(an_elastic_run_goes_on_from_its_mirror)
{
    const char *top = *state;
    s3_server *server = s3_server_start();
    AUTO_FREE char *launcher = workfolder_path(top, "launcher"), *program = launch_beside("../phalanx");
    AUTO_FREE char *list = workfolder_path(top, "hosts"), *run = workfolder_path(top, "elastic-lost");
    AUTO_FREE char *lose =
        must_format("if [ $ranks -lt 3 ] && mkdir %s/gone 2>/dev/null; then\n"
                    "  find %s -mindepth 1 -maxdepth 1 ! -name hostfile ! -name output.log -exec rm -rf {} +\n"
                    "fi\n",
                    top, run);
    if (!write_launcher(launcher, lose)) {
        s3_server_stop(server);
        skip_because("unshare --uts is not allowed here");
    }
    runs_write_text(list, "nodeA slots=2\nnodeB slots=1\n");
    launch *l = launch_start(400,
                             "exec %s supervise --elastic --hosts %s -- sh %s {ranks} {hosts} %s train %s/run.yaml "
                             "run.folder=%s run.hang_seconds=5 checkpoint.mirror=s3://" S3_SERVER_BUCKET "/elastic",
                             program, list, launcher, program, top, run);
    assert_true(runs_wait_for_step(run, 5, 60));
    wait_for_object(server, "elastic/latest");
    kill(runs_process(run, 2), SIGKILL);
    free(supervised_wait_for(l, " is done, ", 1, 30));
    assert_int_equal(kill(runs_process(run, 2), SIGKILL), 0); /* it had been started again */
    launch_result r = launch_finish(l);
    if (r.status || !strstr(r.err, "nodeB is left out from now on") || !strstr(r.out, "data 2 x pipeline") ||
        !strstr(r.out, "fetched step ") || strstr(r.err, "without this host's resources"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    runs_metrics part = runs_read_metrics(run), all = runs_read_metrics(supervised_whole(top, 1, ""));
    assert_true(part.count > 0 && part.count < STEPS && part.step[part.count - 1].step == STEPS);
    double loss = part.step[part.count - 1].loss, undisturbed = all.step[STEPS - 1].loss;
    assert_true(fabs(loss - undisturbed) < 1e-4 * undisturbed);
    supervised_left_nothing(run);
    launch_free(&r);
    s3_server_stop(server);
}

TEST_MAIN(supervised_setup, workfolder_teardown)
