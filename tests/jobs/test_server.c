/* A server for islands (outer.topology server): they push when they like and wait for nobody; it is killed and comes
 * back; what is old, strange or no number is refused. What a server holds: test_server_model.c.
 *
 * The keys whose effect is seen here: outer.topology, outer.staleness. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/islands/islands.h"
#include "engine/islands/meet/membership.h"
#include "engine/islands/wire/transport.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/seal.h"
#include "tests/jobs/etcd_gate.h"
#include "tests/jobs/island_jobs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/servers.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

enum { SECONDS = ISLAND_JOBS_LIMIT };

/* ---- islands of the engine
 * ------------------------------------------------------------------------------------------ */

TEST(three_islands_of_different_layouts_learn_and_end)
{
    static const char *const words = SERVERS_TOPOLOGY " outer.slots=3 train.steps=60 outer.every=5 outer.compress=int8";
    launch *all[3];
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *server =
        servers_start(*state, "three", 1, "", "outer.slots=3 train.steps=60 outer.every=5 outer.compress=int8");
    assert_true(launch_expect(server, "holds the model", SECONDS));
    launch_result refused = launch_finish(island_jobs_start(*state, "three", 2, 1, "outer.slots=3 outer.timeout=1"));
    assert_int_equal(refused.status, 1); /* without the topology: of another kind */
    launch_free(&refused);
    all[0] = island_jobs_start(*state, "three", 0, 2, "parallel.tensor=2 %s", words);
    all[1] = island_jobs_start(*state, "three", 1, 2, "parallel.pipeline=2 parallel.zero=1 %s", words);
    all[2] = island_jobs_start(*state, "three", 2, 1, "%s", words);
    for (int i = 0; i < 3; i++) {
        free(island_jobs_end(all[i]));
        AUTO_FREE char *run = island_jobs_folder(*state, "three", i);
        runs_metrics m = runs_read_metrics(run);
        double last = m.count > 0 ? m.step[m.count - 1].loss : 0;
        printf("island %d: loss %.3f after %d steps of its own\n", i, last, m.count);
        assert_true(last > 0 && last < 0.6 * log(131)); /* of an untrained model: the log of the vocabulary */
    }
    servers_stop(*state, "three", server);
    int64_t merges = servers_summary(*state, "three", "merges");
    printf("%lld merges\n", (long long)merges);
    assert_true(merges > 12); /* an island that comes late begins where the others are */
}

/* Islands wait for it at first; when it dies they train on without it, say so, and push when it is back. */
TEST(a_server_dies_and_comes_back)
{
    static const char *const words = "outer.every=200 train.steps=100000000";
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *a = island_jobs_start(*state, "dies", 0, 1, SERVERS_TOPOLOGY " run.log_every=1000000 %s", words);
    assert_true(launch_expect(a, "no server is there yet: this island waits for it", SECONDS));
    launch *server = servers_start(*state, "dies", 1, "", "outer.every=200 train.steps=100000000 checkpoint.every=2");
    launch *b =
        island_jobs_start(*state, "dies", 1, 2, SERVERS_TOPOLOGY " run.log_every=1000000 parallel.tensor=2 %s", words);
    assert_true(launch_expect(server, "saved", SECONDS));
    kill(launch_pid(server), SIGKILL);
    launch_result r = launch_finish(server);
    launch_free(&r);
    assert_true(launch_expect(a, "the server is away; training goes on", SECONDS));
    assert_true(launch_expect(b, "the server is away; training goes on", SECONDS));
    server = servers_start(*state, "dies", 1, "", "outer.every=200 train.steps=100000000 checkpoint.every=2");
    assert_true(launch_expect(server, "resumed from", SECONDS));
    assert_true(launch_expect(a, "the server is back", SECONDS));
    assert_true(launch_expect(server, ": dies-0 after its step", SECONDS));
    assert_true(launch_expect(server, ": dies-1 after its step", SECONDS));
    kill(launch_pid(a), SIGTERM);
    char *said = island_jobs_end(a), *at = strstr(said, "stopped by SIGTERM after step ");
    assert_non_null(at);
    char *last =
        must_format(": dies-0 after its step %ld,", strtol(at + strlen("stopped by SIGTERM after step "), NULL, 10));
    assert_true(launch_expect(server, last, SECONDS)); /* it has handed over what it had learnt */
    free(last);
    free(said);
    AUTO_FREE char *folder = island_jobs_folder(*state, "dies", 1);
    kill(runs_process(folder, 0), SIGTERM);
    free(island_jobs_end(b));
    servers_stop(*state, "dies", server);
}

/* Its steps are done, and etcd does not answer whether islands are left: the server does not wait for ever. */
TEST(an_etcd_that_is_away_for_good_ends_a_server_that_is_done)
{
    static const char *const words = "outer.topology=server outer.min_islands=1 outer.timeout=2 train.steps=40 "
                                     "outer.every=20";
    const char *top = *state;
    gate g;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    gate_begin(&g, atoi(strrchr(rendezvous_address(island_jobs_etcd), ':') + 1));
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch *server = launch_start(SECONDS,
                                  "exec %s server %s/run.yaml run.folder=%s/away-server outer.run=away %s "
                                  "outer.rendezvous=http://127.0.0.1:%d",
                                  program, top, top, words, g.port);
    assert_true(launch_expect(server, "holds the model", SECONDS));
    free(island_jobs_end(island_jobs_start(top, "away", 0, 1, "%s", words)));
    gate_set(&g, GATE_IS_SHUT, NULL);
    assert_true(launch_expect(server, "etcd has not answered for 4 s (2 x outer.timeout): the server ends", 30));
    launch_result r = launch_finish(server);
    assert_int_equal(r.status, 1);
    launch_free(&r);
    gate_end(&g);
}

TEST(without_a_server_an_island_does_not_begin)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch_result r = launch_finish(island_jobs_start(*state, "nobody", 0, 1, "outer.topology=server outer.timeout=2"));
    assert_int_equal(r.status, 1);
    if (!strstr(r.err, "no server holds the model of outer.run nobody"))
        fail_msg("%s", r.err);
    launch_free(&r);
}

/* Under `phalanx supervise`, nobody need be there to start it again. */
TEST(a_supervised_server_that_dies_is_started_again)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    AUTO_FREE char *program = launch_beside("../phalanx"), *supervise = must_format("%s supervise --", program);
    AUTO_FREE char *folder = servers_folder(*state, "watched");
    launch_result refused = launch_run(SECONDS, "%s mpirun -np {ranks} %s server %s/run.yaml run.folder=%s %s",
                                       supervise, program, *(char **)state, folder, SERVERS_TOPOLOGY);
    assert_int_equal(refused.status, 2);
    assert_non_null(strstr(refused.err, "a server's size is fixed"));
    launch_free(&refused);
    launch *job = servers_start_and_wait(*state, "watched", 1, supervise, "outer.every=5");
    servers_fake *f = servers_open_fake(*state, "watched", 0, "keys");
    for (int64_t i = 0; i < 2; i++)
        assert_int_equal(servers_push(f, 50 + i, i, 1, SECONDS), ROSTER_TAKEN);
    kill(runs_process(folder, 0), SIGKILL);
    assert_true(launch_expect(job, "merges 1 to 2 are made again", SECONDS));
    assert_int_equal(servers_push(f, 60, 2, 1, SECONDS), ROSTER_TAKEN);
    assert_true(launch_expect(job, "supervise: merge 3 is done", SECONDS));
    servers_close_fake(f);
    kill(launch_pid(job), SIGTERM);
    free(island_jobs_end(job));
    assert_int_equal(servers_summary(*state, "watched", "merge"), 3);
    json_t *summary = runs_read_summary(folder);
    assert_string_equal(json_string_value(json_object_get(summary, "ended")), "stopped");
    json_decref(summary);
}

/* ---- islands made up
 * --------------------------------------------------------------------------------------------------- */

#define SEQUENCE "outer.every=5 outer.staleness=2"

/* What is older than outer.staleness, has a base that has not been, is no number, or comes from a stranger. */
TEST(what_cannot_be_merged_is_refused_and_counted)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    AUTO_FREE char *stranger_keys = must_format("%s/stranger", *(char **)state);
    assert_int_equal(islands_make_keys(stranger_keys), STATUS_OK);
    launch *server = servers_start_and_wait(*state, "refuses", 1, "", SEQUENCE);
    servers_fake *f = servers_open_fake(*state, "refuses", 0, "keys"),
                 *stranger = servers_open_fake(*state, "refuses", 1, "stranger");
    for (int64_t base = 0; base < 3; base++)
        assert_int_equal(servers_push(f, 20 + base, base, 1, SECONDS), ROSTER_TAKEN);
    assert_int_equal(servers_push(f, 30, 0, 1, SECONDS), ROSTER_STALE); /* 3 merges old, of 2 */
    assert_int_equal(servers_push(f, 31, 99, 1, SECONDS), ROSTER_IMPOSSIBLE);
    f->nonsense = true;
    assert_int_equal(servers_push(f, 32, 3, 1, SECONDS), ROSTER_UNSOUND);
    f->nonsense = false;
    assert_int_equal(servers_push(stranger, 33, 3, 1, 3), -1);
    assert_int_equal(servers_push(f, 34, 3, 1, SECONDS), ROSTER_TAKEN);
    servers_close_fake(stranger);
    servers_close_fake(f);
    servers_stop(*state, "refuses", server);
    assert_int_equal(servers_summary(*state, "refuses", "merge"), 4);
    assert_int_equal(servers_summary(*state, "refuses", "refused"), 3);
}

/* A folder of keys, top/NAME, that the islands of top/keys trust, and that trusts them. */
static void make_trusted_keys(const char *top, const char *name)
{
    AUTO_FREE char *folder = must_format("%s/%s", top, name);
    assert_int_equal(islands_make_keys(folder), STATUS_OK);
    launch_result r = launch_run(SECONDS,
                                 "mkdir -p %s/keys/peers %s/peers && cp %s/island.public %s/keys/peers/%s.public && "
                                 "cp %s/keys/island.public %s/peers/first.public",
                                 top, folder, folder, top, name, top, folder);
    assert_int_equal(r.status, 0);
    launch_free(&r);
}

/* One island with a good key sends many tiny changes: what is usual is not its to say, and an honest island goes on
 * being merged. What is too large beside both is still refused, by name. */
TEST(tiny_changes_make_no_honest_one_too_large)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    make_trusted_keys(*state, "tiny");
    launch *server = servers_start_and_wait(*state, "dominated", 1, "", SEQUENCE);
    servers_fake *honest = servers_open_fake(*state, "dominated", 0, "keys"),
                 *hostile = servers_open_fake(*state, "dominated", 1, "tiny");
    int64_t merge = 0;
    honest->width = 1e-1f;
    hostile->width = 1e-9f;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++, merge++)
            assert_int_equal(servers_push(hostile, 100 + merge, merge, 1, SECONDS), ROSTER_TAKEN);
        assert_int_equal(servers_push(honest, 100 + merge, merge, 1, SECONDS), ROSTER_TAKEN);
        merge++;
    }
    hostile->width = 1e3f;
    assert_int_equal(servers_push(hostile, 900, merge, 1, SECONDS), ROSTER_UNSOUND);
    char *said =
        must_format("refused the change of island tiny (slot 1) for merge %lld: its norm is ", (long long)(merge + 1));
    assert_true(launch_expect(server, said, SECONDS));
    servers_close_fake(hostile);
    servers_close_fake(honest);
    servers_stop(*state, "dominated", server);
    AUTO_FREE char *folder = servers_folder(*state, "dominated");
    launch_result incidents = launch_run(SECONDS, "cat %s/incidents.jsonl", folder);
    assert_non_null(strstr(incidents.out, said));
    launch_free(&incidents);
    free(said);
}

/* An island of the engine is told, takes the model anew, and is merged again. */
TEST(an_island_that_is_too_late_takes_the_model_anew)
{
    static const char *const words = "outer.staleness=1 outer.every=500 train.steps=100000000 run.log_every=1000000";
    int64_t number = 100;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *server = servers_start_and_wait(*state, "late", 1, "", words);
    launch *a = island_jobs_start(*state, "late", 0, 1, SERVERS_TOPOLOGY " %s", words);
    servers_fake *f = servers_open_fake(*state, "late", 1, "keys");
    f->width = 0.1f; /* about the norm of the island's changes: ten times the usual one is refused, too */
    assert_true(launch_expect(server, ": late-0 after its step", SECONDS));
    for (double until = clock_seconds() + SECONDS; !launch_expect(a, "the server has refused", 0.01);) {
        AUTO_FREE char *text = membership_roster(f->membership);
        roster r;
        assert_true(clock_seconds() < until);
        assert_int_equal(roster_read(&r, text, NULL), STATUS_OK);
        (void)servers_push(f, number++, r.merge, 1, SECONDS);
        roster_free(&r);
    }
    servers_close_fake(f);
    assert_true(launch_expect(server, "refused the change of island late-0", SECONDS));
    assert_true(launch_expect(a, "taking the model anew", SECONDS));
    AUTO_FREE char *before = launch_output(server);
    size_t seen = strlen(before);
    assert_true(launch_expect_after(server, seen, ": late-0 after its step", SECONDS));
    kill(launch_pid(a), SIGTERM);
    free(island_jobs_end(a));
    servers_stop(*state, "late", server);
}

/* ---- memory
 * -------------------------------------------------------------------------------------------------------------- */

/* Between the server's last word before it works and its first after it; saves among it. */
static int allocations_in_the_seal(const char *log)
{
    char line[256], what[32], rest[64];
    long long when;
    long process;
    bool sealed = false;
    int inside = 0, closings = 0;
    FILE *f = fopen(log, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lld %ld %31s %63s", &when, &process, what, rest) != 4)
            continue;
        if (!strcmp(what, "seal"))
            sealed = !strcmp(rest, "close");
        else if (sealed)
            printf("within the seal: %s", line);
        closings += sealed && !strcmp(what, "seal");
        inside += sealed && strcmp(what, "seal") != 0;
    }
    fclose(f);
    assert_int_equal(closings, 1);
    return inside;
}

TEST(a_server_allocates_nothing_while_it_works)
{
#ifdef __SANITIZE_ADDRESS__
    skip_because("a sanitizer: its allocator and the spy exclude each other");
#endif
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    AUTO_FREE char *spy = launch_beside("allocation_spy.so"), *log = workfolder_path(*state, "server-allocations");
    AUTO_FREE char *environment = must_format("env LD_PRELOAD=%s %s=%s", spy, SEAL_ENVIRONMENT, log);
    launch *server = servers_start_and_wait(*state, "sealed", 1, environment, SEQUENCE " checkpoint.every=2");
    servers_fake *f = servers_open_fake(*state, "sealed", 0, "keys");
    for (int64_t i = 0; i < 4; i++)
        assert_int_equal(servers_push(f, 50 + i, i, 1, SECONDS), ROSTER_TAKEN);
    servers_close_fake(f);
    servers_stop(*state, "sealed", server);
    assert_int_equal(allocations_in_the_seal(log), 0);
}

TEST_MAIN(island_jobs_prepare, island_jobs_finish)
