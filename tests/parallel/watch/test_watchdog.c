/* When a rank dies or hangs the job ends, and says who, where and why: what watchdog.h and signals.h promise. The ranks
 * are rank_watchdog.c under mpirun. */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "memory/scope.h"
#include "parallel/watch/watchdog.h"
#include "tests/jobs/launch.h"

enum { RANKS = 3 };

static launch *start(const char *scenario, double hang)
{
    AUTO_FREE char *mpirun = launch_mpirun(RANKS), *program = launch_beside("rank_watchdog");
    launch *l = launch_start(60, "exec %s %s %s %g", mpirun, program, scenario, hang);
    return l;
}

static pid_t process_of(const char *out, int rank)
{
    char label[32];
    int pid = 0;
    snprintf(label, sizeof label, "rank %d is process ", rank);
    const char *at = strstr(out, label);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(label), "%d", &pid), 1);
    return pid;
}

static void all_are_ready(launch *l)
{
    for (int i = 0; i < RANKS; i++) {
        char ready[32];
        snprintf(ready, sizeof ready, "rank %d ready", i);
        assert_true(launch_expect(l, ready, 30));
    }
}

static void says(const launch_result *r, const char *text)
{
    if (!strstr(r->err, text))
        fprintf(stderr, "wanted \"%s\" in:\n%s\n%s\n", text, r->out, r->err);
    assert_non_null(strstr(r->err, text));
}

/* mpirun does not wait for what it has killed. */
static bool disappears(pid_t pid, double seconds)
{
    for (int i = 0; i < seconds * 100; i++) {
        if (kill(pid, 0) == -1 && errno == ESRCH)
            return true;
        usleep(10000);
    }
    return false;
}

/* Send a signal to one rank of a running job: the others end, each with a word about it, and name it. */
static void loss_is_noticed(int victim, int signal_number, double hang, double limit, const char *verdict)
{
    launch *l = start("forever", hang);
    char text[256];
    all_are_ready(l);
    pid_t pids[RANKS];
    char *out = launch_output(l);
    for (int i = 0; i < RANKS; i++)
        pids[i] = process_of(out, i);
    free(out);
    double before = launch_seconds(l);
    assert_int_equal(kill(pids[victim], signal_number), 0);
    launch_result r = launch_finish(l);
    assert_false(r.timed_out);
    assert_int_not_equal(r.status, 0);
    if (r.seconds - before >= limit)
        fprintf(stderr, "it took %.1f s\n", r.seconds - before);
    assert_true(r.seconds - before < limit);
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "rank %d on %s %s", victim, host, verdict);
    says(&r, text);
    says(&r, "op layer 3/mlp/down");
    for (int i = 0; i < RANKS; i++) {
        snprintf(text, sizeof text, "phalanx: rank %d: watchdog: rank %d on %s %s", i, victim, host, verdict);
        if (i != victim)
            says(&r, text);
        assert_true(disappears(pids[i], 5)); /* nobody is left behind */
    }
    launch_free(&r);
}

static void a_killed_rank_is_named_within_10_seconds(void **state)
{
    (void)state;
    for (int victim = 0; victim < RANKS; victim += RANKS - 1)
        loss_is_noticed(victim, SIGKILL, 600, 10, "is gone");
}

static void a_frozen_rank_is_named_within_hang_seconds_and_10(void **state)
{
    (void)state;
    for (int victim = 0; victim < RANKS; victim += RANKS - 1)
        loss_is_noticed(victim, SIGSTOP, 1, 11, "does not answer");
}

/* Scenarios that take their time, mostly asleep: all are started at the beginning, and each test waits for its own. */
typedef struct scenario {
    const char *name;
    double hang;
    launch *running;
} scenario;

static launch_result ended(void **state)
{
    scenario *s = *state;
    launch_result r = launch_finish(s->running);
    assert_false(r.timed_out);
    return r;
}

static void a_rank_that_is_stuck_is_behind(void **state)
{
    launch_result r = ended(state);
    assert_int_not_equal(r.status, 0);
    says(&r, "is stuck: it makes no progress");
    says(&r, "last in step 20, op layer 9/attention/flash");
    says(&r, "watchdog: rank 2 on ");
    says(&r, ": step 21, micro-batch 1, forward of chunk 0, op layer 3/mlp/down, waiting for rank");
    launch_free(&r);
}

static void ranks_that_wait_for_one_another_are_a_circle(void **state)
{
    launch_result r = ended(state);
    assert_int_not_equal(r.status, 0);
    says(&r, "is part of a circle");
    says(&r, "op receive from the next, waiting for rank 2");
    launch_free(&r);
}

static void a_rank_that_leaves_without_a_word_ends_the_job(void **state)
{
    launch_result r = ended(state);
    assert_int_not_equal(r.status, 0);
    says(&r, "watchdog: rank 2 on ");
    says(&r, " is gone");
    launch_free(&r);
}

static void finishes_quietly(void **state)
{
    launch_result r = ended(state);
    if (r.status)
        fprintf(stderr, "%s", r.err);
    assert_int_equal(r.status, 0);
    assert_null(strstr(r.err, "watchdog"));
    assert_non_null(strstr(r.out, "rank 2 finished after 25 steps"));
    launch_free(&r);
}

static void slow_steps_are_no_hang(void **state)
{
    finishes_quietly(state);
}

static void storage_that_does_not_answer_is_named_after_the_limit_of_its_phase(void **state)
{
    launch_result r = ended(state);
    assert_int_not_equal(r.status, 0);
    says(&r, "watchdog: rank 2 on ");
    says(&r, " waits for files: the storage does not answer; last in save after step 20, writing a checkpoint");
    says(&r, "warning: rank 2 on ");
    says(&r, " has been writing a checkpoint for ");
    says(&r, "the storage is slow, or does not answer; the job ends after ");
    assert_true(r.seconds > 5); /* not after that of a step */
    launch_free(&r);
}

static void work_beside_the_training_thread_is_watched(void **state)
{
    launch_result r = ended(state);
    assert_int_not_equal(r.status, 0);
    says(&r, "watchdog: rank 2 on ");
    says(&r, " fails: the storage does not answer (writing fragment 3, for ");
    says(&r, " has been writing fragment 3 for ");
    launch_free(&r);
}

/* A rank that never comes: the others cannot know which one it is. */
static void a_rank_that_does_not_join_ends_the_job(void **state)
{
    launch_result r = ended(state);
    assert_int_not_equal(r.status, 0);
    says(&r, "rank 0: watchdog: rank 0 on ");
    says(&r, " waits to join the job: another rank, or the launcher, does not answer; last in start");
    launch_free(&r);
}

/* Its own words reach every rank before it dies of the signal that leaves a core. */
static void a_broken_invariant_is_known_to_all(void **state)
{
    launch_result r = ended(state);
    assert_int_not_equal(r.status, 0);
    says(&r, "rank 2: fatal: a promise is broken");
    for (int i = 0; i < RANKS; i++) {
        char text[64];
        snprintf(text, sizeof text, "phalanx: rank %d: watchdog: rank 2 on ", i);
        says(&r, text);
    }
    says(&r, " fails: a promise is broken; last in step 20");
    launch_free(&r);
}

/* What a rank has only heard of another is not what the job ends with, where a rank says more. */
static void who_has_failed_is_named_before_who_has_heard_of_it(void **state)
{
    launch_result r = ended(state);
    assert_int_not_equal(r.status, 0);
    says(&r, "watchdog: rank 2 on ");
    says(&r, " fails: an illegal address; last in step 20");
    assert_null(strstr(r.err, "lost touch"));
    launch_free(&r);
}

static void a_lost_link_ends_the_job_and_blames_nobody(void **state)
{
    launch_result r = ended(state);
    assert_int_not_equal(r.status, 0);
    says(&r, "watchdog: rank 1 on ");
    says(&r, " has lost touch with another rank, and none says why: remote process exited; last in step 20");
    launch_free(&r);
}

/* The oldest go first, and what is read is in order. */
static void the_flight_record_keeps_the_last_entries(void **state)
{
    (void)state;
    static watchdog_position read[HISTORY_ENTRIES];
    history *h = history_new();
    assert_int_equal(history_read(h, read), 0);
    for (int i = 0; i < 3 * HISTORY_ENTRIES / 2; i++) {
        history_add(h, &(watchdog_position){.step = i, .op = "op", .bytes = 2 * i, .peer = i % 7, .micro_batch = -1});
        if (i == 9)
            assert_int_equal(history_read(h, read), 10);
    }
    assert_int_equal(history_read(h, read), HISTORY_ENTRIES);
    for (int i = 0; i < HISTORY_ENTRIES; i++) {
        int step = HISTORY_ENTRIES / 2 + i;
        assert_true(read[i].step == step && read[i].bytes == 2 * step && read[i].peer == step % 7);
        assert_true(i == 0 || read[i].time >= read[i - 1].time);
    }
    history_free(h);
}

static void work_with_a_longer_limit_excuses_those_who_wait(void **state)
{
    finishes_quietly(state);
}

/* The flag of one rank becomes known to all through the word that the program carries; a second signal does not
 * wait. */
static void sigterm_on_any_rank_ends_all_in_order(void **state)
{
    (void)state;
    launch *l = start("forever", 20);
    all_are_ready(l);
    char *out = launch_output(l);
    pid_t pid = process_of(out, 1);
    free(out);
    assert_int_equal(kill(pid, SIGTERM), 0);
    kill(pid, SIGTERM); /* a launcher's echo of the same request */
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, 0);
    for (int i = 0; i < RANKS; i++) {
        char text[64];
        snprintf(text, sizeof text, "rank %d finished after", i);
        assert_non_null(strstr(r.out, text));
    }
    assert_non_null(strstr(r.out, "as asked"));
    launch_free(&r);
}

/* Alone, without mpirun: in the stuck scenario rank 0 is the last rank. */
static void one_process_alone_is_watched(void **state)
{
    (void)state;
    AUTO_FREE char *program = launch_beside("rank_watchdog");
    launch_result r = launch_run(30, "exec %s stuck 1", program);
    assert_int_equal(r.status, 1);
    says(&r, "watchdog: rank 0 on ");
    says(&r, " is stuck");
    launch_free(&r);
    launch *l = launch_start(30, "exec %s stuck 600", program);
    assert_true(launch_expect(l, "ready", 10));
    AUTO_FREE char *out = launch_output(l);
    pid_t pid = process_of(out, 0);
    assert_int_equal(kill(pid, SIGINT), 0);
    usleep(1200000);
    assert_int_equal(kill(pid, SIGINT), 0); /* a second request: at once, though the process sleeps */
    r = launch_finish(l);
    assert_int_equal(r.status, 128 + SIGINT);
    launch_free(&r);
}

int main(void)
{
    scenario stuck = {"stuck", 2, NULL}, circle = {"circle", 2, NULL}, leave = {"exit", 600, NULL},
             slow = {"slow", 2, NULL}, save = {"save", 1, NULL}, storage = {"storage", 1, NULL},
             beside = {"beside", 1, NULL}, begin = {"start", 3, NULL}, invariant = {"invariant", 600, NULL},
             heard = {"heard", 600, NULL}, lost = {"lost", 600, NULL};
    scenario *const all[] = {&stuck,  &circle, &leave,     &slow,  &save, &storage,
                             &beside, &begin,  &invariant, &heard, &lost};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        all[i]->running = start(all[i]->name, all[i]->hang);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_rank_that_is_stuck_is_behind, &stuck),
        cmocka_unit_test_prestate(ranks_that_wait_for_one_another_are_a_circle, &circle),
        cmocka_unit_test_prestate(a_rank_that_leaves_without_a_word_ends_the_job, &leave),
        cmocka_unit_test_prestate(slow_steps_are_no_hang, &slow),
        cmocka_unit_test_prestate(work_with_a_longer_limit_excuses_those_who_wait, &save),
        cmocka_unit_test_prestate(storage_that_does_not_answer_is_named_after_the_limit_of_its_phase, &storage),
        cmocka_unit_test_prestate(work_beside_the_training_thread_is_watched, &beside),
        cmocka_unit_test_prestate(a_rank_that_does_not_join_ends_the_job, &begin),
        cmocka_unit_test_prestate(a_broken_invariant_is_known_to_all, &invariant),
        cmocka_unit_test_prestate(who_has_failed_is_named_before_who_has_heard_of_it, &heard),
        cmocka_unit_test_prestate(a_lost_link_ends_the_job_and_blames_nobody, &lost),
        cmocka_unit_test(the_flight_record_keeps_the_last_entries),
        cmocka_unit_test(a_killed_rank_is_named_within_10_seconds),
        cmocka_unit_test(a_frozen_rank_is_named_within_hang_seconds_and_10),
        cmocka_unit_test(sigterm_on_any_rank_ends_all_in_order),
        cmocka_unit_test(one_process_alone_is_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
