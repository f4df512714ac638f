/* Islands: jobs of different layouts that merge over a real etcd and real sockets. They agree to the last bit, go on
 * bit for bit when all are stopped, and come, go, die and come back.
 *
 * The keys whose effect is seen here: outer.rendezvous, outer.keys, outer.address, outer.island, outer.run,
 * outer.timeout, outer.slots, outer.min_islands, outer.slot, outer.topology. */
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/islands/islands.h"
#include "engine/islands/meet/etcd.h"
#include "engine/islands/wire/keys.h"
#include "engine/islands/meet/membership.h"
#include "engine/islands/wire/transport.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/etcd_gate.h"
#include "tests/jobs/island_jobs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

/* The second one has the layout `other`. */
static void two_islands(const char *top, const char *run, const char *other, const char *words)
{
    launch *a = island_jobs_start(top, run, 0, 2, "parallel.tensor=2 %s", words);
    launch *b = island_jobs_start(top, run, 1, 2, "%s %s", other, words);
    free(island_jobs_end(a));
    free(island_jobs_end(b));
}

TEST(islands_of_different_layouts_merge_to_the_same_bits)
{
    static const struct {
        const char *run, *words, *section;
    } ways[] = {
        {"plain", "outer.optimizer=average", "model"},
        {"context", "outer.optimizer=average", "model"},
        {"int8", "outer.compress=int8", "model"},
        {"topk", "outer.compress=topk outer.density=0.1 outer.optimizer=average parallel.zero=1", "model"},
        {"dct", "outer.compress=dct outer.density=0.1 outer.optimizer=average", "model"},
        {"streams", "outer.every=4 outer.fragments=2 outer.delay=1 outer.mix=0.5 outer.compress=int4",
         "outer_reference"},
    };
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        two_islands(*state, ways[i].run, strcmp(ways[i].run, "context") ? "parallel.pipeline=2" : "parallel.context=2",
                    ways[i].words);
        int count = island_jobs_same(*state, ways[i].run, 0, ways[i].run, 1, ways[i].section);
        assert_true(count > 20);
        assert_false(island_jobs_same_losses(*state, ways[i].run, ways[i].run, 0, 1)); /* each on samples of its own */
    }
}

/* One island, outer lr 1, no momentum: reference - (reference - weights) is the weights but for a rounding. */
TEST(one_island_alone_is_plain_training)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    const char *top = *state;
    free(island_jobs_end(island_jobs_start(top, "alone", 0, 1,
                                           "outer.slots=1 outer.min_islands=1 outer.optimizer=average outer.every=1")));
    free(island_jobs_end(island_jobs_start(top, "without", 0, 1, "outer.every=0")));
    AUTO_FREE char *a = island_jobs_folder(top, "alone", 0), *b = island_jobs_folder(top, "without", 0);
    runs_metrics x = runs_read_metrics(a), y = runs_read_metrics(b);
    assert_int_equal(y.count, 8);
    assert_true(runs_loss_error(&x, &y) < 1e-5);
}

/* A key that changes what an island alone learns from its merges. */
TEST(every_key_of_the_outer_step_has_an_effect)
{
    static const char *const changes[] = {
        "outer.every=4", "outer.optimizer=average", "outer.lr=0.5",      "outer.momentum=0.5",    "outer.compress=bf16",
        "outer.mix=0.5", "outer.density=0.2",       "outer.fragments=2", "outer.error_decay=0.5", "outer.delay=1",
    };
    enum { CHANGES = sizeof changes / sizeof *changes };
    launch *all[CHANGES + 1];
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    for (int i = 0; i <= CHANGES; i++) {
        AUTO_FREE char *run = must_format("key%d", i);
        bool compresses = i < CHANGES && strstr(changes[i], "compress");
        all[i] = island_jobs_start(*state, run, 0, 1, "outer.slots=1 outer.min_islands=1 %s %s",
                                   compresses ? "" : "outer.compress=topk", i < CHANGES ? changes[i] : "");
        free(island_jobs_end(all[i]));
    }
    for (int i = 0; i < CHANGES; i++) {
        AUTO_FREE char *run = must_format("key%d", i), *base = must_format("key%d", CHANGES);
        if (island_jobs_same_losses(*state, run, base, 0, 0))
            fprintf(stderr, "%s changes nothing\n", changes[i]);
        assert_false(island_jobs_same_losses(*state, run, base, 0, 0));
    }
}

/* An island with twice the tokens counts twice, unless outer.weights is equal; with outer.private_data both read from
 * the beginning of what they have. */
TEST(weights_and_private_data_are_as_they_are_called)
{
    static const char *const runs[] = {"tokens", "equal"};
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    for (int i = 0; i < 2; i++) {
        launch *a =
            island_jobs_start(*state, runs[i], 0, 1, "outer.weights=%s outer.private_data=true train.steps=2", runs[i]);
        launch *b =
            island_jobs_start(*state, runs[i], 1, 1,
                              "outer.weights=%s outer.private_data=true train.steps=2 train.global_batch=8", runs[i]);
        free(island_jobs_end(a));
        free(island_jobs_end(b));
        assert_true(island_jobs_same(*state, runs[i], 0, runs[i], 1, "model") > 20);
    }
    assert_int_equal(island_jobs_same(*state, "tokens", 0, "equal", 0, "model"), 0);
    launch *a = island_jobs_start(*state, "private", 0, 1, "outer.private_data=true train.steps=2");
    launch *b = island_jobs_start(*state, "private", 1, 1, "outer.private_data=true train.steps=2");
    free(island_jobs_end(a));
    free(island_jobs_end(b));
    assert_true(island_jobs_same_losses(*state, "private", "private", 0, 1));
}

/* outer.clip bounds what an island adds, outer.noise hides it: what they cost in privacy is in the summary, and goes on
 * from the checkpoint. */
TEST(changes_are_clipped_and_hidden)
{
    static const char *const federated = "outer.private_data=true outer.weights=equal outer.clip=1e-3 outer.noise=2";
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    free(island_jobs_end(
        island_jobs_start(*state, "clipped", 0, 1, "outer.slots=1 outer.min_islands=1 outer.clip=1e-3")));
    free(island_jobs_end(island_jobs_start(*state, "whole", 0, 1, "outer.slots=1 outer.min_islands=1")));
    assert_false(island_jobs_same_losses(*state, "clipped", "whole", 0, 0));
    char *half = must_format("%s train.steps=4", federated);
    two_islands(*state, "hidden", "parallel.pipeline=2", half);
    two_islands(*state, "hidden", "parallel.pipeline=2", federated);
    assert_true(island_jobs_same(*state, "hidden", 0, "hidden", 1, "model") > 20);
    free(half);
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *run = island_jobs_folder(*state, "hidden", i);
        json_t *summary = runs_read_summary(run), *counts = json_object_get(summary, "islands");
        double epsilon = json_number_value(json_object_get(counts, "epsilon"));
        assert_int_equal(json_integer_value(json_object_get(counts, "clipped")), 2); /* by the second process */
        assert_int_equal(json_integer_value(json_object_get(counts, "releases")), 4);
        assert_true(fabs(epsilon - (4 / 8. + sqrt(8 * log(1e5)) / 2)) < 1e-6);
        json_decref(summary);
    }
}

/* Four islands in pairs, of three layouts, and at the end all together: then they have the same model. One of five
 * never comes to its exchanges: it is left out. */
TEST(islands_that_gossip_end_with_their_mean)
{
    static const char *const words = "outer.topology=gossip outer.slots=5 outer.min_islands=4";
    launch *all[4];
    double apart = 0;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    all[0] = island_jobs_start(*state, "gossip", 0, 2, "parallel.tensor=2 %s", words);
    all[1] = island_jobs_start(*state, "gossip", 1, 2, "parallel.pipeline=2 parallel.zero=1 %s", words);
    all[2] = island_jobs_start(*state, "gossip", 2, 1, "%s outer.fragments=1", words);
    all[3] = island_jobs_start(*state, "gossip", 3, 1, "%s", words);
    for (int i = 0; i < 4; i++) {
        AUTO_FREE char *said = island_jobs_end(all[i]), *run = island_jobs_folder(*state, "gossip", i);
        if (!strstr(said, "exchange after step 2 with gossip-"))
            fail_msg("%s", said);
        assert_true(i == 0 || island_jobs_same(*state, "gossip", 0, "gossip", i, "model") > 20);
        json_t *summary = runs_read_summary(run), *counts = json_object_get(summary, "islands");
        assert_int_equal(json_integer_value(json_object_get(counts, "merges")), 4);
        apart += json_number_value(json_object_get(counts, "disagreement"));
        json_decref(summary);
    }
    assert_true(apart > 1e-5); /* they have learnt from different samples */
}

/* A partner that is frozen, or killed, costs an exchange outer.timeout at most; a newcomer takes over from any of
 * them. */
TEST(gossip_survives_a_missing_partner)
{
    static const char *const words = "outer.topology=gossip outer.min_islands=1 train.steps=100000000 outer.timeout=20 "
                                     "run.log_every=1000000 outer.every=20";
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *a = island_jobs_start(*state, "missing", 0, 1, "%s", words);
    assert_true(launch_expect(a, "with nobody", ISLAND_JOBS_LIMIT));
    launch *b = island_jobs_start(*state, "missing", 1, 1, "%s", words);
    assert_true(launch_expect(b, "took the model after merge", ISLAND_JOBS_LIMIT));
    assert_true(launch_expect(a, "with missing-1", ISLAND_JOBS_LIMIT));
    assert_true(launch_expect(b, "with missing-0", ISLAND_JOBS_LIMIT));
    kill(launch_pid(b), SIGKILL);
    launch_result r = launch_finish(b);
    launch_free(&r);
    assert_true(launch_expect(a, "goes without missing-1", ISLAND_JOBS_LIMIT));
    assert_true(launch_expect(a, "with nobody", ISLAND_JOBS_LIMIT));
    kill(launch_pid(a), SIGTERM);
    free(island_jobs_end(a));
}

/* Stopped with a merge under way: a fragment's reference is new, its weights are not. */
TEST(islands_that_are_all_stopped_go_on_bit_for_bit)
{
    static const char *const words = "outer.every=4 outer.fragments=2 outer.delay=1 outer.mix=0.25 outer.compress=int8";
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    AUTO_FREE char *half = must_format("%s train.steps=4", words);
    two_islands(*state, "through", "parallel.pipeline=2", words);
    two_islands(*state, "stopped", "parallel.pipeline=2", half);
    two_islands(*state, "stopped", "parallel.pipeline=2", words);
    for (int slot = 0; slot < 2; slot++) {
        assert_true(island_jobs_same(*state, "through", slot, "stopped", slot, NULL) > 100);
        assert_true(island_jobs_same_losses(*state, "through", "stopped", slot, slot));
    }
}

/* An island that merges alone until it is told to stop. */
#define BY_ITSELF "outer.min_islands=1 train.steps=100000000 run.log_every=1000000 outer.every=200 outer.timeout=1"

TEST(an_island_of_another_kind_or_a_taken_slot_is_refused)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *first = island_jobs_start(*state, "kinds", 0, 1, "%s", BY_ITSELF);
    assert_true(launch_expect(first, "merge number 1, of the changes of 1 island:", ISLAND_JOBS_LIMIT));
    AUTO_FREE char *again = must_format("%s/run.yaml run.folder=%s/kinds-again outer.run=kinds outer.slot=0 %s",
                                        (char *)*state, (char *)*state, BY_ITSELF);
    launch_result r = runs_train(ISLAND_JOBS_LIMIT, 1, again);
    assert_int_equal(r.status, 1);
    if (!strstr(r.err, "slot 0 belongs to island kinds-0"))
        fail_msg("%s", r.err);
    launch_free(&r);
    r = launch_finish(island_jobs_start(*state, "kinds", 1, 1, "outer.compress=bf16 outer.timeout=1"));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "another model"));
    launch_free(&r);
    kill(launch_pid(first), SIGTERM);
    free(island_jobs_end(first));
}

static size_t said_by(const launch *l)
{
    AUTO_FREE char *out = launch_output(l);
    size_t said = strlen(out);
    return said;
}

/* A second island comes, is killed, comes back; etcd dies and comes back; the last one hands over its change. */
TEST(islands_come_die_and_come_back)
{
    static const char *const words = "outer.min_islands=1 train.steps=100000000 run.log_every=1000000 outer.every=200 "
                                     "outer.timeout=10 checkpoint.every=400 checkpoint.keep=1 outer.compress=int8";
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *a = island_jobs_start(*state, "events", 0, 1, "%s", words);
    assert_true(launch_expect(a, "merge number 2, of the changes of 1 island: events-0", ISLAND_JOBS_LIMIT));
    launch *b = island_jobs_start(*state, "events", 1, 2, "parallel.tensor=2 %s", words);
    assert_true(launch_expect(b, "took the model after merge", ISLAND_JOBS_LIMIT));
    assert_true(launch_expect(a, "of 2 islands: events-0, events-1", ISLAND_JOBS_LIMIT));
    assert_true(launch_expect(b, "saved", ISLAND_JOBS_LIMIT));
    kill(launch_pid(b), SIGKILL); /* mpirun's; its ranks follow */
    launch_result r = launch_finish(b);
    launch_free(&r);
    /* so that it comes back to a model that has gone on */
    assert_true(launch_expect_after(a, said_by(a), "of 1 island: events-0", ISLAND_JOBS_LIMIT));
    b = island_jobs_start(*state, "events", 1, 1, "%s", words); /* of another size */
    assert_true(launch_expect(b, "took the model after merge", ISLAND_JOBS_LIMIT));
    assert_true(launch_expect(b, "of 2 islands: events-0, events-1", ISLAND_JOBS_LIMIT));
    rendezvous_kill(island_jobs_etcd);
    assert_true(launch_expect(a, "unmerged until it is back", ISLAND_JOBS_LIMIT));
    rendezvous_start(island_jobs_etcd);
    assert_true(launch_expect(a, "etcd is back", ISLAND_JOBS_LIMIT));
    /* They have found each other again. An island that is stopped within a merge has no change left to hand over: then
     * once more. */
    bool handed_over = false;
    for (int i = 0; i < 8 && !handed_over; i++) {
        if (i > 0)
            b = island_jobs_start(*state, "events", 1, 1, "%s", words);
        assert_true(launch_expect(b, "of 2 islands: events-0, events-1", ISLAND_JOBS_LIMIT));
        usleep(70000u * (unsigned)i);
        kill(launch_pid(b), SIGTERM);
        AUTO_FREE char *said = island_jobs_end(b);
        handed_over = strstr(said, "handing over the change") != NULL;
    }
    assert_true(handed_over);
    kill(launch_pid(a), SIGTERM);
    free(island_jobs_end(a));
}

/* Its slot is kept by the lease of its former process, which etcd begins anew when it is back. */
TEST(an_island_that_comes_back_while_etcd_is_away_gets_its_slot)
{
    static const char *const words = "outer.min_islands=1 train.steps=100000000 run.log_every=1000000 outer.every=200 "
                                     "outer.timeout=12 checkpoint.every=200";
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *a = island_jobs_start(*state, "homeless", 0, 1, "%s", words);
    assert_true(launch_expect(a, "saved", ISLAND_JOBS_LIMIT));
    kill(launch_pid(a), SIGKILL);
    launch_result r = launch_finish(a);
    launch_free(&r);
    rendezvous_kill(island_jobs_etcd);
    a = island_jobs_start(*state, "homeless", 0, 1, "%s", words);
    sleep(9);
    rendezvous_start(island_jobs_etcd);
    assert_true(launch_expect(a, "homeless-0 has slot 0", ISLAND_JOBS_LIMIT));
    kill(launch_pid(a), SIGTERM);
    free(island_jobs_end(a));
}

/* Merges that would go by faster than the model travels wait for it. */
TEST(a_newcomer_gets_in_where_the_model_travels_longer_than_a_merge_takes)
{
    static const char *const words = "outer.min_islands=1 train.steps=100000000 run.log_every=1000000 outer.every=2 "
                                     "outer.timeout=20 outer.bandwidth=1e6";
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *a = island_jobs_start(*state, "slow-link", 0, 1, "%s", words);
    assert_true(launch_expect(a, "merge number 5, of the changes of 1 island:", ISLAND_JOBS_LIMIT));
    launch *b = island_jobs_start(*state, "slow-link", 1, 1, "%s", words);
    assert_true(launch_expect(b, "took the model after merge", 60));
    assert_true(launch_expect(a, "slow-link-1 (slot 1): it is taking the model", ISLAND_JOBS_LIMIT));
    assert_true(launch_expect(a, "of 2 islands: slow-link-0, slow-link-1", ISLAND_JOBS_LIMIT));
    kill(launch_pid(a), SIGTERM);
    kill(launch_pid(b), SIGTERM);
    free(island_jobs_end(a));
    free(island_jobs_end(b));
}

/* The other island is frozen, and the merge waits for it, for 60 s: whoever is asked to stop meanwhile withdraws its
 * change, saves, and goes. `phalanx islands` shows both. */
/* It looks for a model that nobody has, for minutes. */
TEST(an_island_that_joins_can_be_stopped)
{
    etcd *e = NULL;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    assert_int_equal(etcd_open(&e, rendezvous_address(island_jobs_etcd)), STATUS_OK);
    assert_int_equal(etcd_write(e, "phalanx/joining/live/head", "{\"merge\": 9, \"step\": 18, \"parts\": []}", 0),
                     STATUS_OK);
    etcd_close(e);
    launch *l = island_jobs_start(*state, "joining", 0, 1, "outer.timeout=120");
    assert_true(launch_expect(l, "has slot 0", ISLAND_JOBS_LIMIT));
    kill(launch_pid(l), SIGTERM);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "asked to stop before it has joined"));
    launch_free(&r);
}

TEST(a_merge_that_is_waited_for_lets_an_island_stop)
{
    static const char *const words = "outer.min_islands=1 train.steps=100000000 run.log_every=1000000 outer.every=4 "
                                     "outer.timeout=60";
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *a = island_jobs_start(*state, "waits", 0, 1, "%s", words);
    launch *b = island_jobs_start(*state, "waits", 1, 1, "%s", words);
    assert_true(launch_expect(a, "of the changes of 2 islands: waits-0, waits-1", ISLAND_JOBS_LIMIT));
    kill(launch_pid(b), SIGSTOP); /* before it has offered a change, or before the change has arrived */
    AUTO_FREE char *until = launch_output(a);
    assert_true(launch_expect_after(a, strlen(until), "waits for waits-1 (slot 1): it", ISLAND_JOBS_LIMIT));
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(30, "'%s' islands %s", program, rendezvous_address(island_jobs_etcd));
    assert_int_equal(r.status, 0);
    if (!strstr(r.out, "outer.run waits: merge ") || !strstr(r.out, "slot island") || !strstr(r.out, "waits-0") ||
        !strstr(r.out, "waits-1") || strstr(r.out, "phalanx/"))
        fail_msg("%s", r.out);
    launch_free(&r);
    double before = launch_seconds(a);
    kill(launch_pid(a), SIGTERM);
    assert_true(launch_expect(a, "the run resumes from here", 15));
    assert_true(launch_seconds(a) - before < 10); /* a second or two, on a busy machine */
    AUTO_FREE char *said = island_jobs_end(a);
    assert_non_null(strstr(said, "is given up: this island is asked to stop; the change stays for the next one"));
    kill(launch_pid(b), SIGCONT);
    kill(launch_pid(b), SIGTERM);
    free(island_jobs_end(b));
}

/* Every island has a pair of keys; one that the others do not trust merges with nobody. */
TEST(a_stranger_merges_with_nobody)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    AUTO_FREE char *stranger = must_format("%s/stranger", (char *)*state);
    assert_int_equal(islands_make_keys(stranger), STATUS_OK);
    launch *a = island_jobs_start(*state, "strange", 0, 1, "%s", BY_ITSELF);
    assert_true(launch_expect(a, "merge number 1, of the changes of 1 island:", ISLAND_JOBS_LIMIT));
    launch_result r =
        launch_finish(island_jobs_start(*state, "strange", 1, 1, "%s outer.keys=%s", BY_ITSELF, stranger));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "no island that has it is at work"));
    launch_free(&r);
    kill(launch_pid(a), SIGTERM);
    AUTO_FREE char *said = island_jobs_end(a);
    assert_null(strstr(said, "of 2 islands: "));
}

/* ---- two histories
 * ---------------------------------------------------------------------------------------------------------------- */

/* One island by itself, until its state is that of step `steps`, with a merge every second one. */
static void one_island(const char *top, const char *run, int slot, int steps, const char *says)
{
    launch *l = island_jobs_start(top, run, slot, 1,
                                  "outer.min_islands=1 outer.timeout=4 outer.optimizer=average train.steps=%d", steps);
    AUTO_FREE char *said = island_jobs_end(l);
    if (!strstr(said, says))
        fail_msg("it does not say \"%s\": %s", says, said);
}

/* Both islands have the model after merge 2. One makes merges 3 and 4, and is away; the other goes back to merge 2 and
 * makes others of these numbers. When the first is back, its merge 4 is not taken for the other's. */
TEST(a_merge_number_used_by_two_histories_is_two_merges)
{
    const char *top = *state;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    one_island(top, "histories", 0, 4, "merge number 2,");
    AUTO_FREE char *line = must_format("cp -r %s/histories-0 %s/histories-1", top, top);
    assert_int_equal(system(line), 0);
    etcd *e = NULL;
    assert_int_equal(etcd_open(&e, rendezvous_address(island_jobs_etcd)), STATUS_OK);
    /* as a former version wrote it */
    assert_int_equal(
        etcd_write(e, "phalanx/histories/live/head", "{\"merge\": 2, \"step\": 4, \"updates\": 4, \"parts\": []}", 0),
        STATUS_OK);
    etcd_close(e);
    one_island(top, "histories", 1, 8, "merge number 4,");
    one_island(top, "histories", 0, 8, "going on from merge 2");
    launch *a = island_jobs_start(top, "histories", 0, 1, "outer.optimizer=average train.steps=12");
    assert_true(launch_expect(a, "has slot 0", ISLAND_JOBS_LIMIT));
    launch *b = island_jobs_start(top, "histories", 1, 1, "outer.optimizer=average train.steps=12");
    AUTO_FREE char *first = island_jobs_end(a), *second = island_jobs_end(b);
    assert_non_null(strstr(second, "took the model after merge 4"));
    assert_non_null(strstr(first, "of the changes of 2 islands"));
    assert_true(island_jobs_same(top, "histories", 0, "histories", 1, "model") > 20);
}

/* An etcd that was set back, or of which a man in the middle had shown another state, takes merges 3 and 4 twice. */
TEST(a_merge_number_that_is_taken_twice_is_two_merges)
{
    const char *top = *state;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    static const char head[] = "phalanx/twice/live/head";
    etcd *e = NULL;
    json_t *pairs = NULL;
    one_island(top, "twice", 0, 4, "merge number 2,");
    AUTO_FREE char *line = must_format("cp -r %s/twice-0 %s/twice-1", top, top);
    assert_int_equal(system(line), 0);
    assert_int_equal(etcd_open(&e, rendezvous_address(island_jobs_etcd)), STATUS_OK);
    assert_int_equal(etcd_read(&pairs, e, head), STATUS_OK);
    one_island(top, "twice", 0, 8, "merge number 4,");
    const char *before = json_string_value(json_object_get(json_array_get(pairs, 0), "value"));
    assert_int_equal(etcd_write(e, head, before, 0), STATUS_OK);
    json_decref(pairs);
    etcd_close(e);
    one_island(top, "twice", 1, 8, "merge number 4,");
    launch *b = island_jobs_start(top, "twice", 1, 1, "outer.optimizer=average train.steps=12");
    assert_true(launch_expect(b, "has slot 1", ISLAND_JOBS_LIMIT));
    launch *a = island_jobs_start(top, "twice", 0, 1, "outer.optimizer=average train.steps=12");
    AUTO_FREE char *first = island_jobs_end(a), *second = island_jobs_end(b);
    if (!strstr(first, "took the model after merge 4") || !strstr(second, "of the changes of 2 islands"))
        fail_msg("%s%s", first, second);
    assert_true(island_jobs_same(top, "twice", 0, "twice", 1, "model") > 20);
}

/* ---- a head that somebody else has written
 * -------------------------------------------------------------------------------------------- */

#define HEAD "phalanx/forged/live/head"

/* The run's last merge in etcd, and the revision of what says so. */
static int64_t last_merge(int64_t *revision, etcd *e)
{
    json_t *pairs = NULL;
    assert_int_equal(etcd_read(&pairs, e, HEAD), STATUS_OK);
    const json_t *pair = json_array_get(pairs, 0);
    json_t *head = json_loads(json_string_value(json_object_get(pair, "value")), 0, NULL);
    int64_t merge = json_integer_value(json_object_get(head, "merge"));
    assert_true(json_is_object(head) && merge > 0);
    *revision = json_integer_value(json_object_get(pair, "revision"));
    json_decref(head);
    json_decref(pairs);
    return merge;
}

/* Islands merge again, after what has happened. */
static void expect_merges(launch *a)
{
    AUTO_FREE char *before = launch_output(a);
    assert_true(launch_expect_after(a, strlen(before), "of the changes of 2 islands:", ISLAND_JOBS_LIMIT));
}

/* Somebody writes a head so far ahead of the last one. */
static void forge_ahead(launch *a, etcd *e, int64_t ahead)
{
    int64_t merge = 0;
    for (bool done = false; !done;) { /* no merge may come between */
        int64_t revision = 0;
        merge = last_merge(&revision, e) + ahead;
        AUTO_FREE char *value = must_format("{\"merge\": %lld, \"step\": 7, \"parts\": []}", (long long)merge);
        const etcd_condition as_read = {HEAD, revision};
        const etcd_change put = {HEAD, value, 0};
        assert_int_equal(etcd_transact(&done, e, &as_read, 1, &put, 1), STATUS_OK);
    }
    AUTO_FREE char *said =
        must_format("etcd holds merge %lld of run forged, which no island at work has", (long long)merge);
    assert_true(launch_expect(a, said, ISLAND_JOBS_LIMIT));
    expect_merges(a);
}

/* Far ahead, just ahead, at the end of the numbers, behind, nonsense, nothing: islands go on, say so where they wait,
 * and merge again. */
TEST(a_head_that_nobody_has_ends_no_island)
{
    static const char *const words = "train.steps=100000000 run.log_every=1000000 outer.every=50 outer.timeout=10";
    static const char *const texts[] = {
        "{\"merge\": 0, \"parts\": []}", "[[", "",
        "{\"merge\": 9223372036854775807, \"step\": 9223372036854775807, \"parts\": 3}"};
    etcd *e = NULL;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *a = island_jobs_start(*state, "forged", 0, 1, "%s", words);
    launch *b = island_jobs_start(*state, "forged", 1, 2, "parallel.tensor=2 %s", words);
    assert_int_equal(etcd_open(&e, rendezvous_address(island_jobs_etcd)), STATUS_OK);
    assert_true(launch_expect(a, "of the changes of 2 islands:", ISLAND_JOBS_LIMIT));
    forge_ahead(a, e, 60000);
    forge_ahead(a, e, 1);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(etcd_write(e, HEAD, texts[i], 0), STATUS_OK);
        expect_merges(a);
    }
    etcd_close(e);
    AUTO_FREE char *folder = island_jobs_folder(*state, "forged", 1);
    kill(runs_process(folder, 0), SIGTERM);
    kill(launch_pid(a), SIGTERM);
    free(island_jobs_end(a));
    free(island_jobs_end(b));
}

/* Its own port, and the next one, by which nodes of etcd talk. */
TEST(a_port_of_etcd_that_is_taken_is_said_in_our_words)
{
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    int port = atoi(strrchr(rendezvous_address(island_jobs_etcd), ':') + 1);
    AUTO_FREE char *program = launch_beside("../phalanx");
    for (int first = port; first <= port + 1; first++) {
        AUTO_FREE char *words = must_format("phalanx: port %d of 127.0.0.1, for etcd", first);
        launch_result r =
            launch_run(30, "%s islands --embedded --port %d --folder %s/taken", program, first, (const char *)*state);
        if (r.status != 1 || strncmp(r.err, words, strlen(words)) != 0 || *r.out)
            fail_msg("port %d: status %d, out: %s err: %s", first, r.status, r.out, r.err);
        launch_free(&r);
    }
}

/* ---- an etcd that lies ------------------------------------------------------------------------------------------- */

/* Grows with every step. */
static int64_t metrics_of(const char *top, int slot)
{
    struct stat facts = {0};
    AUTO_FREE char *folder = island_jobs_folder(top, "lied-to", slot), *path = must_format("%s/metrics.jsonl", folder);
    assert_int_equal(stat(path, &facts), 0);
    return facts.st_size;
}

/* Writes are answered and lost, what is read stays as it was, keys are gone: training goes on after 2 x outer.timeout
 * at most, and merges once etcd is well again. */
TEST(an_etcd_that_lies_stops_no_island)
{
    static const gate_act acts[] = {GATE_LOSES_WRITES, GATE_REPEATS, GATE_FORGETS};
    const char *top = *state;
    gate g;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    gate_begin(&g, atoi(strrchr(rendezvous_address(island_jobs_etcd), ':') + 1));
    AUTO_FREE char *words = must_format("train.steps=100000000 run.log_every=1000000 outer.every=20 outer.timeout=1 "
                                        "optimizer.lr=1e-4 outer.rendezvous=http://127.0.0.1:%d",
                                        g.port);
    launch *a = island_jobs_start(top, "lied-to", 0, 1, "%s", words);
    launch *b = island_jobs_start(top, "lied-to", 1, 1, "%s", words);
    expect_merges(a);
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        gate_set(&g, acts[i], NULL);
        clock_nap(0.5);
        int64_t before[2] = {metrics_of(top, 0), metrics_of(top, 1)};
        clock_nap(3);
        for (int slot = 0; slot < 2; slot++)
            if (metrics_of(top, slot) <= before[slot])
                fail_msg("act %d: island %d does no step", (int)acts[i], slot);
        gate_set(&g, GATE_PASSES, NULL);
        expect_merges(a);
    }
    kill(launch_pid(a), SIGTERM);
    kill(launch_pid(b), SIGTERM);
    free(island_jobs_end(a));
    free(island_jobs_end(b));
    gate_end(&g);
}

/* A merge is agreed on, and its only island hears of it seconds later: the steps that it did meanwhile stay. */
TEST(a_merge_that_is_heard_of_late_undoes_no_step)
{
    static const char *const words = "train.steps=2000 run.log_every=1000000 optimizer.lr=1e-4";
    const char *top = *state;
    gate g;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    gate_begin(&g, atoi(strrchr(rendezvous_address(island_jobs_etcd), ':') + 1));
    launch *l = island_jobs_start(top, "late", 0, 1,
                                  "%s outer.slots=1 outer.min_islands=1 outer.optimizer=average outer.every=250 "
                                  "outer.timeout=1 outer.rendezvous=http://127.0.0.1:%d",
                                  words, g.port);
    assert_true(launch_expect(l, "merge number 1,", ISLAND_JOBS_LIMIT));
    gate_set(&g, GATE_LOSES_ANSWER, "/v3/kv/txn");
    for (double until = clock_seconds() + 10; gate_acted(&g) == 0; clock_nap(0.01))
        assert_true(clock_seconds() < until);
    gate_set(&g, GATE_IS_SHUT, NULL);
    clock_nap(2.5);
    gate_set(&g, GATE_PASSES, NULL);
    AUTO_FREE char *said = island_jobs_end(l);
    if (!strstr(said, " is given up: ") || !strstr(said, "merge number 4,"))
        fail_msg("%s", said);
    free(island_jobs_end(island_jobs_start(top, "never", 0, 1, "outer.every=0 %s", words)));
    AUTO_FREE char *a = island_jobs_folder(top, "late", 0), *b = island_jobs_folder(top, "never", 0);
    runs_metrics x = runs_read_metrics(a), y = runs_read_metrics(b);
    assert_int_equal(y.count, 2000);
    double error = runs_loss_error(&x, &y);
    if (!(error < 1e-3))
        fail_msg("losses are %g apart", error);
    gate_end(&g);
}

/* ---- an island with trusted keys that sends what is no number, or far too much
 * ------------------------------------------------------ */

/* What every element of its changes is; of the last kind one element in a slice alone, as a flipped bit makes it. */
static const float wild[] = {NAN, 3e38f, 1e4f, 1e30f};

enum { WILD = sizeof wild / sizeof *wild };

static const void *serve_wild(void *context, const wire_message *m)
{
    static float values[WIRE_SLICE / sizeof(float)];
    int kind = atomic_load((const _Atomic int *)context);
    for (unsigned i = 0; i < sizeof values / sizeof *values; i++)
        values[i] = kind < WILD - 1 || i == 7 ? wild[kind] : 0;
    return m->bytes <= WIRE_SLICE ? values : NULL;
}

/* Offers each kind for the merge after the last, until some merges have gone by. */
static void offer_wild(membership *m, _Atomic int *kind)
{
    double until = clock_seconds() + ISLAND_JOBS_LIMIT;
    int64_t offered = -1;
    for (int merges = 0; merges < 2 * WILD; usleep(20000)) {
        AUTO_FREE char *text = membership_roster(m);
        roster r;
        assert_int_equal(roster_read(&r, text, NULL), STATUS_OK);
        assert_true(clock_seconds() < until);
        if (r.merge >= 0 && offered != r.merge + 1) {
            merges += offered >= 0;
            atomic_store(kind, merges / 2 % WILD);
            offered = r.merge + 1;
            membership_set_state(
                m, &(membership_state){.ready = true, .merge = r.merge, .step = r.step, .updates = r.updates});
            membership_set_offer(m, json_pack("{s:I, s:I, s:I, s:I, s:i, s:b}", "merge", (json_int_t)offered, "offer",
                                              (json_int_t)(1 + merges), "tokens", (json_int_t)1, "updates",
                                              (json_int_t)1, "fragment", 0, "parting", 0));
        }
        roster_free(&r);
    }
}

TEST(changes_that_no_honest_island_makes_are_refused)
{
    static const char *const words = "outer.min_islands=1 train.steps=100000000 run.log_every=1000000 outer.every=50 "
                                     "outer.timeout=60";
    membership *m = NULL;
    transport *t = NULL;
    keys k;
    _Atomic int kind = 0;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    launch *a = island_jobs_start(*state, "hostile", 0, 1, "%s", words);
    assert_true(launch_expect(a, "merge number 1, of the changes of 1 island:", ISLAND_JOBS_LIMIT));
    AUTO_FREE char *folder_of_keys = must_format("%s/keys", (char *)*state);
    assert_int_equal(keys_open(&k, folder_of_keys), STATUS_OK);
    const transport_options door = {.keys = &k,
                                    .address = "127.0.0.1",
                                    .fingerprint = island_jobs_fingerprint("hostile"),
                                    .fetches = 1,
                                    .serve = serve_wild,
                                    .context = &kind};
    assert_int_equal(transport_open(&t, &door), STATUS_OK);
    const char *endpoint = transport_endpoint(t);
    const membership_options who = {.addresses = rendezvous_address(island_jobs_etcd),
                                    .run = "hostile",
                                    .name = "liar",
                                    .fingerprint = door.fingerprint,
                                    .key = k.mine,
                                    .endpoints = &endpoint,
                                    .ranks = 1,
                                    .slots = 2,
                                    .slot = 1,
                                    .hint = -1,
                                    .patience = ISLAND_JOBS_LIMIT,
                                    .lease = 20};
    assert_int_equal(membership_open(&m, &who), STATUS_OK);
    offer_wild(m, &kind);
    assert_true(launch_expect(a, "refused the change of island liar (slot 1) for merge ", ISLAND_JOBS_LIMIT));
    assert_true(launch_expect(a, ": it is not finite; refused of this slot: 1", ISLAND_JOBS_LIMIT));
    assert_true(launch_expect(a, ": its norm is ", ISLAND_JOBS_LIMIT));
    membership_close(m);
    transport_close(t);
    keys_close(&k);
    kill(launch_pid(a), SIGTERM);
    AUTO_FREE char *said = island_jobs_end(a), *run = island_jobs_folder(*state, "hostile", 0);
    assert_null(strstr(said, "of 2 islands: "));
    json_t *summary = runs_read_summary(run);
    assert_true(json_integer_value(json_object_get(json_object_get(summary, "islands"), "refused")) >= WILD);
    json_decref(summary);
    launch_result incidents = launch_run(ISLAND_JOBS_LIMIT, "cat %s/incidents.jsonl", run);
    assert_non_null(strstr(incidents.out, "refused the change of island liar (slot 1) for merge "));
    assert_non_null(strstr(incidents.out, " is taken; refused of this slot: "));
    launch_free(&incidents);
    AUTO_FREE char *path = must_format("%s/metrics.jsonl", run);
    json_t *last = runs_last_line(path);
    assert_true(json_is_number(json_object_get(last, "loss"))); /* not null: it is finite */
    json_decref(last);
}

TEST_MAIN(island_jobs_prepare, island_jobs_finish)
