/* What a server holds: the weights that training would begin with, or model.from's; then what the changes make of them,
 * and nothing else: not its ranks, its restarts or its deaths. What it has merged is on its disk before an island
 * knows. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/island_jobs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/servers.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

enum { SECONDS = ISLAND_JOBS_LIMIT };

#define SEQUENCE "outer.every=5 outer.staleness=2"

/* A line for the shell, which must not fail; it is freed. */
static void shell(char *line)
{
    if (system(line) != 0)
        fail_msg("%s", line);
    free(line);
}

/* ---- the changes and their order make the model
 * ---------------------------------------------------------------------------- */

typedef enum interruption { GOES_ON, STOPS, DIES } interruption;

static launch *interrupt(const char *top, const char *run, int ranks, int then, interruption how, launch *server,
                         const char *words)
{
    if (how == GOES_ON)
        return server;
    if (how == STOPS)
        servers_stop(top, run, server);
    else
        servers_kill(top, run, ranks, server);
    return servers_start_and_wait(top, run, then, "", words);
}

/* Eight changes, between the fourth and the fifth of which the server may be interrupted; it goes on on `then`
 * ranks. */
static void push_sequence(const char *top, const char *run, int ranks, interruption how, int then, const char *more)
{
    static const int64_t base[] = {0, 0, 1, 3, 3, 3, 6, 7}, tokens[] = {100, 300, 100, 50, 800, 100, 100, 70};
    AUTO_FREE char *words = must_format(SEQUENCE " %s", more);
    launch *server = servers_start_and_wait(top, run, ranks, "", words);
    servers_fake *f[] = {servers_open_fake(top, run, 0, "keys"), servers_open_fake(top, run, 1, "keys")};
    for (int i = 0; i < 8; i++) {
        if (i == 4)
            server = interrupt(top, run, ranks, then, how, server, words);
        assert_int_equal(servers_push(f[i % 2], 10 + i, base[i], tokens[i], SECONDS), ROSTER_TAKEN);
    }
    servers_close_fake(f[0]);
    servers_close_fake(f[1]);
    servers_stop(top, run, server);
    assert_int_equal(servers_summary(top, run, "merge"), 8);
    assert_int_equal(servers_summary(top, run, "refused"), 0);
}

TEST(ranks_restarts_and_deaths_of_a_server_do_not_change_a_bit)
{
    static const struct {
        const char *run;
        int ranks, then;
        interruption how;
        const char *words;
    } ways[] = {{"two", 2, 2, GOES_ON, ""},       {"resumed", 1, 1, STOPS, ""},
                {"two-resumed", 2, 2, STOPS, ""}, {"killed", 1, 1, DIES, ""},
                {"two-killed", 2, 1, DIES, ""},   {"one-killed", 1, 2, DIES, "checkpoint.every=3"}};
    static const char *const sections[] = {"model", "outer_momentum"};
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    push_sequence(*state, "one", 1, GOES_ON, 1, "");
    for (int i = 0; i < (int)(sizeof ways / sizeof *ways); i++) {
        push_sequence(*state, ways[i].run, ways[i].ranks, ways[i].how, ways[i].then, ways[i].words);
        for (int k = 0; k < 2; k++)
            assert_true(servers_same(*state, "one", ways[i].run, sections[k]) > 20);
    }
}

/* A damaged entry is not merged: what it and those after it held is lost, which is said, and the sequence of merges
 * goes on. */
TEST(what_the_journal_lacks_is_said)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *server = servers_start_and_wait(*state, "gap", 1, "", SEQUENCE);
    servers_fake *f = servers_open_fake(*state, "gap", 0, "keys");
    for (int64_t i = 0; i < 4; i++)
        assert_int_equal(servers_push(f, 50 + i, i, 1, SECONDS), ROSTER_TAKEN);
    servers_kill(*state, "gap", 1, server);
    AUTO_FREE char *entry = must_format("%s/gap-server/journal/merge-0000000003.rank-0-of-1", *(char **)state);
    FILE *file = fopen(entry, "r+b");
    assert_non_null(file);
    fseek(file, -100, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -100, SEEK_END);
    fputc(byte ^ 1, file);
    fclose(file);
    server = servers_start(*state, "gap", 1, "", SEQUENCE);
    assert_true(launch_expect(server, "merges 1 to 2 are made again", SECONDS));
    assert_true(launch_expect(server, "merge-0000000003.rank-0-of-1 is damaged", SECONDS));
    assert_true(launch_expect(server, "merges 3 to 4 are lost", SECONDS));
    assert_int_equal(servers_push(f, 60, 4, 1, SECONDS), ROSTER_TAKEN);
    servers_kill(*state, "gap", 1, server); /* after a gap, nothing more is lost */
    server = servers_start(*state, "gap", 1, "", SEQUENCE);
    assert_true(launch_expect(server, "merges 5 to 5 are made again", SECONDS));
    shell(must_format("ls %s.lost > /dev/null", entry));
    servers_close_fake(f);
    servers_stop(*state, "gap", server);
    assert_int_equal(servers_summary(*state, "gap", "merge"), 5);
}

/* Killed twice without a save between: what was merged before the first death is not lost by the second. */
TEST(a_server_that_dies_twice_loses_nothing)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *server = servers_start_and_wait(*state, "twice", 1, "", SEQUENCE);
    servers_fake *f = servers_open_fake(*state, "twice", 0, "keys");
    for (int64_t i = 0; i < 3; i++)
        assert_int_equal(servers_push(f, 50 + i, i, 1, SECONDS), ROSTER_TAKEN);
    servers_kill(*state, "twice", 1, server);
    for (int death = 0; death < 2; death++) {
        server = servers_start(*state, "twice", 1, "", SEQUENCE);
        assert_true(launch_expect(server, "merges 1 to 3 are made again", SECONDS));
        assert_true(launch_expect(server, "holds the model", SECONDS));
        if (death == 0)
            servers_kill(*state, "twice", 1, server);
    }
    servers_close_fake(f);
    servers_stop(*state, "twice", server);
    assert_int_equal(servers_summary(*state, "twice", "merge"), 3);
}

/* outer.robust clip scales by what was merged before, which a replay does not know: the journal has the scale. */
TEST(what_was_clipped_is_merged_again_as_it_was)
{
    static const char *const runs[] = {"clipped-once", "clipped-again"};
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    for (int killed = 0; killed < 2; killed++) {
        const char *run = runs[killed];
        launch *server = servers_start_and_wait(*state, run, 1, "", SEQUENCE " outer.robust=clip");
        servers_fake *f = servers_open_fake(*state, run, 0, "keys");
        for (int64_t i = 0; i < 8; i++)
            assert_int_equal(servers_push(f, 10 + i, i, 1, SECONDS), ROSTER_TAKEN);
        if (killed) {
            servers_kill(*state, run, 1, server);
            server = servers_start(*state, run, 1, "", SEQUENCE " outer.robust=clip");
            assert_true(launch_expect(server, "merges 1 to 8 are made again", SECONDS));
            assert_true(launch_expect(server, "holds the model", SECONDS));
        }
        servers_close_fake(f);
        servers_stop(*state, run, server);
    }
    assert_true(servers_same(*state, runs[0], runs[1], "model") > 20);
    assert_true(servers_same(*state, runs[0], runs[1], "outer_momentum") > 20);
}

/* Its bytes would be read as something else: the server says how they were written, and keeps them. */
TEST(a_journal_of_another_encoding_is_refused_and_kept)
{
    static const char *const others[] = {"outer.compress=int8", "outer.density=0.5"};
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *server = servers_start_and_wait(*state, "encoding", 1, "", SEQUENCE);
    servers_fake *f = servers_open_fake(*state, "encoding", 0, "keys");
    for (int64_t i = 0; i < 2; i++)
        assert_int_equal(servers_push(f, 50 + i, i, 1, SECONDS), ROSTER_TAKEN);
    servers_kill(*state, "encoding", 1, server);
    servers_close_fake(f);
    for (int i = 0; i < 2; i++) { /* as another run in etcd, which does not know what its islands were configured for */
        AUTO_FREE char *run = must_format("encoding-%d", i), *words = must_format(SEQUENCE " %s", others[i]);
        AUTO_FREE char *from = servers_folder(*state, "encoding"), *to = servers_folder(*state, run);
        launch_result copied = launch_run(SECONDS, "cp -r %s %s", from, to);
        assert_int_equal(copied.status, 0);
        launch_free(&copied);
        launch_result r = launch_finish(servers_start(*state, run, 1, "", words));
        assert_int_equal(r.status, 2);
        if (!strstr(r.err, "merge-0000000001.rank-0-of-1 was written with outer.compress=none and outer.density=0.02"))
            fail_msg("%s", r.err);
        launch_free(&r);
        launch_result kept = launch_run(SECONDS, "diff -r %s/journal %s/journal", from, to);
        assert_int_equal(kept.status, 0);
        launch_free(&kept);
    }
    server = servers_start(*state, "encoding", 1, "", SEQUENCE);
    assert_true(launch_expect(server, "merges 1 to 2 are made again", SECONDS));
    servers_stop(*state, "encoding", server);
    assert_int_equal(servers_summary(*state, "encoding", "merge"), 2);
}

/* The others of a server's ranks say who and where, and end. */
TEST(a_rank_of_a_server_that_dies_is_named)
{
    const char *verdict = NULL, *phase = NULL, *action = NULL;
    int rank = -1, ends = 0;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *server = servers_start_and_wait(*state, "dead-rank", 2, "", SEQUENCE);
    AUTO_FREE char *folder = servers_folder(*state, "dead-rank"), *path = must_format("%s/incidents.jsonl", folder);
    sleep(2); /* until its watchdog has said where it is */
    kill(runs_process(folder, 1), SIGKILL);
    launch_result r = launch_finish(server);
    assert_int_not_equal(r.status, 0);
    json_t *line = runs_last_line(path);
    if (!line || json_unpack(line, "{s:s,s:i,s:s,s:s,s:b}", "verdict", &verdict, "rank", &rank, "phase", &phase,
                             "action", &action, "ends", &ends))
        fail_msg("%s is not what was promised: %s", path, r.err);
    assert_string_equal(verdict, "dead");
    assert_string_equal(phase, "step");
    assert_string_equal(action, "serving islands");
    assert_int_equal(rank, 1);
    assert_true(ends);
    json_decref(line);
    launch_free(&r);
}

/* ---- where it begins
 * ------------------------------------------------------------------------------------------------------- */

/* Before anything is merged, a server holds what training would begin with. */
TEST(a_server_begins_with_the_weights_that_training_draws)
{
    static const char *const gpt = "model.architecture=gpt2 model.kv_heads=4"; /* stored the other way round */
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    for (int i = 0; i < 2; i++) {
        const char *run = i ? "begin-gpt2" : "begin", *words = i ? gpt : "";
        AUTO_FREE char *trained = must_format("%s/%s-trained", *(char **)state, run),
                       *server_folder = servers_folder(*state, run);
        launch *server = servers_start_and_wait(*state, run, 1, "", words);
        servers_stop(*state, run, server);
        free(runs_train_well(SECONDS, 1,
                             "%s/run.yaml run.folder=%s outer.every=0 train.steps=1 optimizer.lr=0 "
                             "optimizer.min_lr=0 optimizer.weight_decay=0 %s",
                             *(char **)state, trained, words));
        assert_true(servers_distance(NULL, server_folder, trained) == 0);
    }
}

/* A model that is already trained: the server begins with it, and gives it to its islands. */
TEST(a_server_begins_with_model_from)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    AUTO_FREE char *trained = workfolder_path(*state, "from-trained"), *folder = servers_folder(*state, "from");
    AUTO_FREE char *island = island_jobs_folder(*state, "from", 0), *begin = servers_folder(*state, "from-begin");
    AUTO_FREE char *words = must_format("model.from=%s outer.slots=1 outer.every=2 train.steps=2", trained);
    free(
        runs_train_well(SECONDS, 1, "%s/run.yaml run.folder=%s outer.every=0 train.steps=3", *(char **)state, trained));
    servers_stop(*state, "from-begin", servers_start_and_wait(*state, "from-begin", 1, "", ""));
    assert_true(servers_distance(NULL, begin, trained) > 0);
    for (int ranks = 1; ranks <= 2; ranks++) { /* the second time, from the first one's checkpoint */
        launch *server = servers_start_and_wait(*state, "from", ranks, "", words);
        if (ranks == 2)
            free(island_jobs_end(island_jobs_start(*state, "from", 0, 1,
                                                   SERVERS_TOPOLOGY " optimizer.lr=0 optimizer.weight_decay=0 "
                                                                    "outer.slots=1 outer.every=2 train.steps=2")));
        servers_stop(*state, "from", server);
        assert_true(servers_distance(NULL, folder, trained) == 0);
    }
    assert_int_equal(servers_summary(*state, "from", "merge"), 1);
    assert_true(servers_distance(NULL, island, trained) == 0);
}

/* ---- privacy
 * --------------------------------------------------------------------------------------------------------------- */

/* One island pushes once; how far the server's model then is from where it began. */
static double pushed_distance(const char *top, const char *run, int64_t *elements, const char *privacy)
{
    char *words =
        must_format("outer.slots=1 outer.every=2 train.steps=2 outer.optimizer=average outer.lr=1 %s", privacy);
    AUTO_FREE char *begin = must_format("%s-begin", run), *from = servers_folder(top, begin),
                   *folder = servers_folder(top, run);
    servers_stop(top, begin, servers_start_and_wait(top, begin, 1, "", words));
    launch *server = servers_start_and_wait(top, run, 2, "", words);
    free(island_jobs_end(island_jobs_start(top, run, 0, 1, SERVERS_TOPOLOGY " %s", words)));
    servers_stop(top, run, server);
    assert_int_equal(servers_summary(top, run, "merge"), 1);
    double distance = servers_distance(elements, from, folder);
    free(words);
    return distance;
}

/* A server gets what outer.clip and outer.noise leave of a change, and the island accounts for it. */
TEST(a_server_gets_clipped_and_hidden_changes)
{
    int64_t elements = 0;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    double whole = pushed_distance(*state, "whole", NULL, "");
    double clipped = pushed_distance(*state, "clipped", NULL, "outer.clip=1e-3");
    double hidden = pushed_distance(*state, "hidden", &elements, "outer.clip=1e-3 outer.noise=2");
    double noise = 2 * 1e-3 * sqrt((double)elements); /* of that deviation in each element */
    printf("a change of %.3g, clipped to %.6g, hidden in %.6g of %.6g\n", whole, clipped, hidden, noise);
    assert_true(whole > 1e-2);
    assert_true(fabs(clipped - 1e-3) < 1e-6);
    assert_true(fabs(hidden - noise) < 0.05 * noise);
    AUTO_FREE char *island = island_jobs_folder(*state, "hidden", 0);
    json_t *summary = runs_read_summary(island), *counts = json_object_get(summary, "islands");
    assert_int_equal(json_integer_value(json_object_get(counts, "clipped")), 1);
    assert_int_equal(json_integer_value(json_object_get(counts, "releases")), 1);
    assert_true(json_number_value(json_object_get(counts, "epsilon")) > 0);
    json_decref(summary);
}

TEST_MAIN(island_jobs_prepare, island_jobs_finish)
