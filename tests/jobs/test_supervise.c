/* phalanx supervise: jobs that die, freeze or lose their storage at any moment end as if nothing had happened, and
 * nobody waits for a person but where one is needed. test_campaign.c throws faults at random. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/supervised.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = SUPERVISED_STEPS };

TEST(a_killed_rank_costs_seconds_and_no_bit)
{
    const char *top = *state, *keys = "parallel.tensor=2";
    AUTO_FREE char *run = workfolder_path(top, "killed");
    launch *l = supervised_start(top, run, 2, "", keys);
    assert_true(runs_wait_for_step(run, 9, 60));
    double began = clock_seconds();
    assert_int_equal(kill(runs_process(run, 1), SIGKILL), 0);
    char *rest = supervised_wait_for(l, " is done, ", 1, 30);
    assert_non_null(rest);
    printf("a killed rank: the next step is done %.2f s after the incident (%.2f s after the kill)\n", atof(rest),
           clock_seconds() - began);
    free(rest);
    launch_result r = launch_finish(l);
    if (r.status)
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_non_null(strstr(r.err, "supervise: rank 1 on "));
    supervised_is_undisturbed(run, supervised_whole(top, 2, keys));
    supervised_left_nothing(run);
    launch_free(&r);
}

/* Its own watchdog is frozen with it, and no other rank waits for it. */
TEST(a_rank_alone_that_is_frozen_is_noticed)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "frozen");
    launch *l = supervised_start(top, run, 1, "", "");
    assert_true(runs_wait_for_step(run, 9, 60));
    assert_int_equal(kill(runs_process(run, 0), SIGSTOP), 0);
    launch_result r = launch_finish(l);
    if (r.status || !strstr(r.err, "a process of the job had been stopped for "))
        fail_msg("status %d after %.1f s: %s%s", r.status, r.seconds, r.out, r.err);
    supervised_is_undisturbed(run, supervised_whole(top, 1, ""));
    supervised_left_nothing(run);
    launch_free(&r);
}

TEST(stopping_the_supervisor_saves_and_gives_75)
{
    static const int signals[] = {SIGTERM, SIGUSR1};
    const char *top = *state;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        AUTO_FREE char *run = must_format("%s/stopped%zu", top, i);
        launch *l = supervised_start(top, run, 2, "", "train.steps=20000");
        assert_true(runs_wait_for_step(run, 9, 60));
        kill(launch_pid(l), signals[i]);
        launch_result r = launch_finish(l);
        if (r.status != 75 || r.seconds > 60)
            fail_msg("status %d after %.1f s: %s%s", r.status, r.seconds, r.out, r.err);
        assert_non_null(strstr(r.out, "the run resumes from here"));
        supervised_left_nothing(run);
        launch_free(&r);
    }
}

TEST(what_the_supervisor_does_not_survive_the_job_does)
{
    const char *top = *state, *keys = "parallel.tensor=2";
    AUTO_FREE char *run = workfolder_path(top, "orphan");
    launch *l = supervised_start(top, run, 2, "", keys);
    assert_true(runs_wait_for_step(run, 5, 60));
    assert_int_equal(kill(launch_pid(l), SIGKILL), 0);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, 128 + SIGKILL);
    assert_true(runs_wait_for_step(run, STEPS, 60));
    for (int i = 0; (runs_process(run, 0) || runs_process(run, 1)) && i < 500; i++)
        usleep(20000);
    supervised_is_undisturbed(run, supervised_whole(top, 2, keys));
    supervised_left_nothing(run);
    launch_free(&r);
}

TEST(bad_data_and_wrong_usage_need_a_person)
{
    const char *top = *state;
    AUTO_FREE char *prefix = workfolder_path(top, "bad"), *path = must_format("%s.bin", prefix),
                   *run = workfolder_path(top, "badrun");
    const uint16_t id = 999;
    runs_write_data(prefix, 131, 30000, 1);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, &id, sizeof id, 2 * (90 * 32 + 5)), sizeof id);
    close(fd);
    AUTO_FREE char *keys = must_format("data.train=%s data.shuffle=false", prefix);
    launch_result r = launch_finish(supervised_start(top, run, 1, "", keys));
    if (r.status != 1 || !strstr(r.err, "restart 1 in ") || strstr(r.err, "restart 2 in ") ||
        !strstr(r.err, "the same trouble with data or numbers at the same step again"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    launch_free(&r);
    r = launch_finish(supervised_start(top, run, 1, "", "train.stpes=4"));
    assert_int_equal(r.status, 2);
    launch_free(&r);
    r = launch_finish(supervised_start(top, run, 3, "", "parallel.tensor=2"));
    if (r.status != 2 || strstr(r.err, "restart 1"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    launch_free(&r);
}

/* ---- strangers: other starts, other supervisors, files of before, clocks
 * -------------------------------------------------- */

/* Is the process that trains as rank 0 still the same after so long? */
static void goes_on(const char *run, int process, double seconds)
{
    for (double until = clock_seconds() + seconds; clock_seconds() < until; usleep(50000))
        if (runs_process(run, 0) != process)
            fail_msg("%s: process %d has given way to %d", run, process, runs_process(run, 0));
}

static void stop(launch *l, const char *run)
{
    kill(launch_pid(l), SIGTERM);
    launch_result r = launch_finish(l);
    if (r.status != 75)
        fail_msg("status %d after %.1f s: %s%s", r.status, r.seconds, r.out, r.err);
    supervised_left_nothing(run);
    launch_free(&r);
}

/* LINGER_SECONDS, and more: a supervisor that believes a job to be over waits for so long. */
static const double LINGER = 5;

TEST(what_others_write_into_the_folder_ends_no_job)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "strangers"), *program = launch_beside("../phalanx");
    AUTO_FREE char *summary = must_format("%s/summary.json", run), *incidents = must_format("%s/incidents.jsonl", run);
    launch *l = supervised_start(top, run, 1, "", "train.steps=200000");
    assert_true(runs_wait_for_step(run, 5, 60));
    stop(l, run); /* its summary says "stopped" */
    struct timespec ahead[2] = {{time(NULL) + 3600, 0}, {time(NULL) + 3600, 0}};
    assert_int_equal(utimensat(AT_FDCWD, summary, ahead, 0), 0); /* by a storage whose clock is an hour ahead */
    l = supervised_start(top, run, 1, "", "train.steps=200000");
    launch_result r = {0};
    char *begun = supervised_wait_for(l, "resumed from ", 1, 60);
    assert_non_null(begun);
    free(begun);
    int process = runs_process(run, 0);
    goes_on(run, process, LINGER);
    r = launch_run(60, "exec %s train %s/run.yaml run.folder=%s", program, top, run);
    if (r.status != 1 || !strstr(r.err, "another run is at work here"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    launch_free(&r);
    FILE *f = fopen(incidents, "a");
    fputs("{\"verdict\": \"dead\", \"rank\": 0, \"ends\": true, \"words\": \"a line of anybody's\"}\n", f);
    fclose(f);
    r = launch_run(60, "exec %s supervise -- %s train %s/run.yaml run.folder=%s", program, program, top, run);
    if (r.status != 1 || !strstr(r.err, "a supervisor is at work here already"))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    launch_free(&r);
    goes_on(run, process, LINGER);
    stop(l, run);
}

TEST(a_living_job_is_adopted)
{
    const char *top = *state, *keys = "";
    AUTO_FREE char *run = workfolder_path(top, "adopted"), *spy = launch_beside("io_faults.so");
    AUTO_FREE char *slow = must_format("LD_PRELOAD=%s 'PHALANX_IO_FAULTS=metrics.jsonl SLOW -1 write'", spy);
    launch *l = supervised_start(top, run, 1, slow, keys);
    assert_true(runs_wait_for_step(run, 5, 60));
    kill(launch_pid(l), SIGKILL);
    launch_result r = launch_finish(l);
    launch_free(&r);
    int process = runs_process(run, 0);
    assert_true(process > 0);
    l = supervised_start(top, run, 1, "", keys);
    AUTO_FREE char *words = must_format("a job is at work in %s already, process %d on ", run, process);
    AUTO_FREE char *said = supervised_wait_for(l, words, 1, 20);
    assert_non_null(said);
    goes_on(run, process, 1);
    kill(process, SIGKILL);
    r = launch_finish(l);
    if (r.status || !strstr(r.err, "restart 1 in "))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    supervised_is_undisturbed(run, supervised_whole(top, 1, keys));
    supervised_left_nothing(run);
    launch_free(&r);
}

/* The run's folder is elsewhere while another supervisor begins, which finds nobody at work in the folder that it
 * makes: once the run's is back, the job goes on under it. */
TEST(a_folder_that_is_back_has_its_job_adopted)
{
    const char *top = *state, *keys = "";
    AUTO_FREE char *run = workfolder_path(top, "back"), *away = must_format("%s.away", run),
                   *stray = must_format("%s.stray", run), *claim = must_format("%s/supervisor", run),
                   *spy = launch_beside("io_faults.so"),
                   *slow = must_format("LD_PRELOAD=%s 'PHALANX_IO_FAULTS=metrics.jsonl SLOW -1 write'", spy);
    launch *l = supervised_start(top, run, 1, slow, keys);
    assert_true(runs_wait_for_step(run, 5, 60));
    kill(launch_pid(l), SIGKILL);
    launch_result r = launch_finish(l);
    launch_free(&r);
    assert_int_equal(rename(run, away), 0);
    l = supervised_start(top, run, 1, "", keys);
    for (double until = clock_seconds() + 30; access(claim, F_OK) != 0 && clock_seconds() < until;)
        clock_nap(0.01);
    assert_int_equal(rename(run, stray), 0);
    assert_int_equal(rename(away, run), 0);
    int process = runs_process(run, 0);
    assert_true(process > 0);
    AUTO_FREE char *said = supervised_wait_for(l, "a job is at work in", 1, 60);
    assert_non_null(said);
    goes_on(run, process, 1);
    kill(process, SIGKILL); /* the next is not slow */
    r = launch_finish(l);
    if (r.status || !strstr(r.err, "had ended before") || !strstr(r.err, "restart 1 in "))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    supervised_is_undisturbed(run, supervised_whole(top, 1, keys));
    launch_free(&r);
}

TEST(a_state_that_is_good_is_saved_before_the_job_ends)
{
    const char *top = *state;
    AUTO_FREE char *prefix = workfolder_path(top, "late"), *path = must_format("%s.bin", prefix);
    AUTO_FREE char *run = workfolder_path(top, "laterun"), *program = launch_beside("../phalanx"),
                   *spy = launch_beside("io_faults.so");
    const uint16_t id = 999;
    int64_t bytes;
    runs_write_data(prefix, 131, 30000, 1);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, &id, sizeof id, 2 * (90 * 32 + 5)), sizeof id);
    close(fd);
    launch_result r =
        launch_run(120,
                   "exec %s supervise --restarts 1 -- env LD_PRELOAD=%s 'PHALANX_IO_FAULTS=checkpoints* SLOW -1 "
                   "fsync' %s train %s/run.yaml run.folder=%s data.train=%s data.shuffle=false "
                   "checkpoint.every=0 checkpoint.asynchronous=false",
                   program, spy, program, top, run, prefix);
    AUTO_FREE char *latest = must_format("%s/checkpoints/latest", run);
    if (r.status != 1 || !strstr(r.out, "is good, and is saved") || access(latest, F_OK) != 0)
        fail_msg("status %d after %.1f s: %s%s", r.status, r.seconds, r.err, r.out);
    AUTO_FREE char *text = (char *)workfolder_read(latest, &bytes);
    assert_int_equal(strncmp(text, "step-00000007", 13), 0); /* twelve samples a step: the eighth has sample 90 */
    launch_free(&r);
}

/* checkpoint.resume=never is meant for what was there before. */
TEST(a_restart_goes_on_where_the_first_start_was_to_begin_anew)
{
    const char *top = *state, *keys = "checkpoint.resume=never";
    AUTO_FREE char *run = workfolder_path(top, "anew"), *earlier = must_format("%s/earlier-1", run);
    launch *l = supervised_start(top, run, 1, "", keys);
    assert_true(runs_wait_for_step(run, 9, 60));
    assert_int_equal(kill(runs_process(run, 0), SIGKILL), 0);
    launch_result r = launch_finish(l);
    if (r.status || !strstr(r.err, "restart 1 in ") || !strstr(r.out, "resumed from "))
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_int_equal(access(earlier, F_OK), -1);
    supervised_is_undisturbed(run, supervised_whole(top, 1, ""));
    launch_free(&r);
}

/* What cannot be opened at one moment can be at the next. */
TEST(an_output_that_cannot_be_opened_is_tried_again)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "unopened"), *output = must_format("%s/output.log", run);
    assert_int_equal(mkdir(run, 0755), 0);
    assert_int_equal(mkdir(output, 0755), 0); /* stands for a moment of bad storage */
    launch *l = supervised_start(top, run, 1, "", "");
    assert_true(launch_expect(l, "output.log: Is a directory; restart 1 in ", 20));
    assert_int_equal(rmdir(output), 0);
    launch_result r = launch_finish(l);
    if (r.status)
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_int_equal(runs_read_metrics(run).count, STEPS);
    launch_free(&r);
}

/* A pipe with room for a page, and somebody who holds its other end and does not read: a terminal after Ctrl-S, a
 * pager. */
static int open_stuck_reader(const char *path)
{
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0 && fcntl(reader, F_SETPIPE_SZ, 4096) == 4096);
    return reader;
}

TEST(a_reader_that_is_stuck_blinds_no_supervisor)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "unread"), *program = launch_beside("../phalanx"),
                   *fifo = workfolder_path(top, "stuck");
    int reader = open_stuck_reader(fifo);
    launch *l = launch_start(300, "exec %s supervise -- %s train %s/run.yaml run.folder=%s train.steps=200000 >%s",
                             program, program, top, run, fifo);
    assert_true(runs_wait_for_step(run, 1000, 120)); /* several times what the pipe holds */
    int process = runs_process(run, 0);
    kill(process, SIGKILL);
    assert_true(launch_expect(l, "restart 1 in ", 20));
    runs_metrics killed = runs_read_metrics(run);
    assert_true(runs_wait_for_step(run, killed.step[killed.count - 1].step + 10, 60));
    double asked = clock_seconds();
    kill(launch_pid(l), SIGTERM);
    launch_result r = launch_finish(l);
    if (r.status != 75 || clock_seconds() - asked > 30 || !strstr(r.err, "of the job's output have not been read"))
        fail_msg("status %d: %s", r.status, r.err);
    supervised_left_nothing(run);
    launch_free(&r);
    close(reader);
}

TEST(a_reader_that_is_stuck_stops_no_training)
{
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "muted"), *program = launch_beside("../phalanx"),
                   *fifo = workfolder_path(top, "mute");
    AUTO_FREE char *path = must_format("%s/summary.json", run);
    int64_t bytes;
    int reader = open_stuck_reader(fifo);
    launch_result r = launch_run(200,
                                 "exec %s train %s/run.yaml run.folder=%s run.hang_seconds=5 run.silent_seconds=5 "
                                 "train.steps=1000 train.global_batch=2 train.micro_batch=2 checkpoint.every=0 >%s",
                                 program, top, run, fifo);
    if (r.status)
        fail_msg("status %d: %s", r.status, r.err);
    assert_int_equal(runs_read_metrics(run).count, 1000);
    char *summary = (char *)workfolder_read(path, &bytes), *at = strstr(summary, "\"output_dropped\": ");
    assert_non_null(at); /* 1,000 lines of 100 bytes, of which a pipe of a page and a buffer of 64 KiB hold most */
    assert_in_range(atoll(at + 18), 1, 60000);
    char line[4096];
    assert_true(read(reader, line, sizeof line) > 0); /* what came before is there */
    free(summary);
    launch_free(&r);
    close(reader);
}

TEST(words_that_would_mislead_it_are_refused)
{
    static const struct {
        const char *words, *said;
    } cases[] = {
        {"run.exit_when_stopped=137", "run.exit_when_stopped"}, /* what mpirun says of a killed rank */
        {"run.exit_when_stopped=1", "the exit status of a failure"},
        {"run.folder=x{ranks}", "{ranks} and {hosts} are the launcher's"},
    };
    const char *top = *state;
    AUTO_FREE char *run = workfolder_path(top, "misled");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r = launch_finish(supervised_start(top, run, 1, "", cases[i].words));
        if (r.status != 2 || !strstr(r.err, cases[i].said))
            fail_msg("%s: status %d: %s%s", cases[i].words, r.status, r.out, r.err);
        launch_free(&r);
    }
}

TEST_MAIN(supervised_setup, workfolder_teardown)
