/* Islands: jobs of different layouts that merge over a real etcd and real sockets. They agree to the last bit, go on bit for
 * bit when all are stopped, and come, go, die and come back.
 *
 * The keys whose effect is seen here: outer.rendezvous, outer.keys, outer.address, outer.island, outer.run, outer.timeout,
 * outer.slots, outer.min_islands, outer.slot. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/islands/keys.h"
#include "memory/log.h"
#include "tests/jobs/rendezvous.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

enum { LIMIT = 300 }; /* seconds; runs take two */

static rendezvous *etcd;

static int prepare(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    if (rendezvous_is_there())
        etcd = rendezvous_open(top);
    char *more = must_format("optimizer: {lr: 1e-2, warmup: 2, schedule: constant}\n"
                             "checkpoint: {every: 0, keep: 0}\n"
                             "outer: {rendezvous: [%s], keys: %s/keys, every: 2, timeout: 120, min_islands: 2, "
                             "address: 127.0.0.1}\n",
                             etcd ? rendezvous_address(etcd) : "http://127.0.0.1:1", top);
    runs_write_small(top, 40000, 8, "micro_batch: 2, global_batch: 4", more);
    free(more);
    return 0;
}

static int finish(void **state)
{
    if (etcd)
        rendezvous_close(etcd);
    return workfolder_teardown(state);
}

/* An island of a run, in the folder top/RUN-SLOT; `words`: keys of its own. */
__attribute__((format(printf, 5, 6))) static launch *island(const char *top, const char *run, int slot, int ranks,
                                                            const char *format, ...)
{
    char words[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    char *all = must_format("%s/run.yaml run.folder=%s/%s-%d outer.run=%s outer.slot=%d %s", top, top, run, slot, run,
                            slot, words);
    launch *l = runs_start(LIMIT, ranks, all);
    free(all);
    return l;
}

static char *folder(const char *top, const char *run, int slot)
{
    return must_format("%s/%s-%d", top, run, slot);
}

/* Ends well, or stopped by a signal; what it said, the caller's. */
static char *end_well(launch *l)
{
    enum { STOPPED = 75 };
    launch_result r = launch_finish(l);
    bool well = r.status == 0 || r.status == STOPPED;
    if (!well)
        fprintf(stderr, "status %d:\n%s\n%s\n", r.status, r.out, r.err);
    assert_true(well);
    char *out = must_strdup(r.out);
    launch_free(&r);
    return out;
}

static void two_islands(const char *top, const char *run, const char *words)
{
    launch *a = island(top, run, 0, 2, "parallel.tensor=2 %s", words);
    launch *b = island(top, run, 1, 2, "parallel.pipeline=2 %s", words);
    free(end_well(a));
    free(end_well(b));
}

/* How many tensors of the section are the same in the latest checkpoints. */
static int same(const char *top, const char *run, int slot, const char *other_run, int other, const char *section)
{
    char *a = folder(top, run, slot), *b = folder(top, other_run, other), difference[256];
    int count = runs_compare_section(difference, sizeof difference, a, b, section);
    if (*difference)
        printf("%s-%d and %s-%d: %s\n", run, slot, other_run, other, difference);
    free(a);
    free(b);
    return *difference ? 0 : count;
}

static bool same_losses(const char *top, const char *run, const char *other, int slot, int other_slot)
{
    char *a = folder(top, run, slot), *b = folder(top, other, other_slot);
    runs_metrics x = runs_read_metrics(a), y = runs_read_metrics(b);
    free(a);
    free(b);
    return runs_same_metrics(&x, &y);
}

static void islands_of_different_layouts_merge_to_the_same_bits(void **state)
{
    static const struct {
        const char *run, *words, *section;
    } ways[] = {
        {"plain", "outer.optimizer=average", "model"},
        {"int8", "outer.compress=int8", "model"},
        {"topk", "outer.compress=topk outer.density=0.1 outer.optimizer=average parallel.zero=1", "model"},
        {"streams", "outer.every=4 outer.fragments=2 outer.delay=1 outer.mix=0.5 outer.compress=int4",
         "outer_reference"},
    };
    if (!etcd)
        skip();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        two_islands(*state, ways[i].run, ways[i].words);
        int count = same(*state, ways[i].run, 0, ways[i].run, 1, ways[i].section);
        assert_true(count > 20);
        assert_false(same_losses(*state, ways[i].run, ways[i].run, 0, 1)); /* each on samples of its own */
    }
}

/* One island, outer lr 1, no momentum: reference - (reference - weights) is the weights but for a rounding. */
static void one_island_alone_is_plain_training(void **state)
{
    if (!etcd)
        skip();
    const char *top = *state;
    free(end_well(
        island(top, "alone", 0, 1, "outer.slots=1 outer.min_islands=1 outer.optimizer=average outer.every=1")));
    free(end_well(island(top, "without", 0, 1, "outer.every=0")));
    char *a = folder(top, "alone", 0), *b = folder(top, "without", 0);
    runs_metrics x = runs_read_metrics(a), y = runs_read_metrics(b);
    assert_int_equal(y.count, 8);
    assert_true(runs_loss_error(&x, &y) < 1e-5);
    free(a);
    free(b);
}

/* A key that changes what an island alone learns from its merges. */
static void every_key_of_the_outer_step_has_an_effect(void **state)
{
    static const char *const changes[] = {
        "outer.every=4", "outer.optimizer=average", "outer.lr=0.5",      "outer.momentum=0.5",    "outer.compress=bf16",
        "outer.mix=0.5", "outer.density=0.2",       "outer.fragments=2", "outer.error_decay=0.5", "outer.delay=1",
    };
    enum { CHANGES = sizeof changes / sizeof *changes };
    launch *all[CHANGES + 1];
    if (!etcd)
        skip();
    for (int i = 0; i <= CHANGES; i++) {
        char *run = must_format("key%d", i);
        bool compresses = i < CHANGES && strstr(changes[i], "compress");
        all[i] = island(*state, run, 0, 1, "outer.slots=1 outer.min_islands=1 %s %s",
                        compresses ? "" : "outer.compress=topk", i < CHANGES ? changes[i] : "");
        free(end_well(all[i]));
        free(run);
    }
    for (int i = 0; i < CHANGES; i++) {
        char *run = must_format("key%d", i), *base = must_format("key%d", CHANGES);
        if (same_losses(*state, run, base, 0, 0))
            fprintf(stderr, "%s changes nothing\n", changes[i]);
        assert_false(same_losses(*state, run, base, 0, 0));
        free(base);
        free(run);
    }
}

/* An island with twice the tokens counts twice, unless outer.weights is equal; with outer.private_data both read from the
 * beginning of what they have. */
static void weights_and_private_data_are_as_they_are_called(void **state)
{
    static const char *const runs[] = {"tokens", "equal"};
    if (!etcd)
        skip();
    for (int i = 0; i < 2; i++) {
        launch *a = island(*state, runs[i], 0, 1, "outer.weights=%s outer.private_data=true train.steps=2", runs[i]);
        launch *b = island(*state, runs[i], 1, 1,
                           "outer.weights=%s outer.private_data=true train.steps=2 train.global_batch=8", runs[i]);
        free(end_well(a));
        free(end_well(b));
        assert_true(same(*state, runs[i], 0, runs[i], 1, "model") > 20);
    }
    assert_int_equal(same(*state, "tokens", 0, "equal", 0, "model"), 0);
    launch *a = island(*state, "private", 0, 1, "outer.private_data=true train.steps=2");
    launch *b = island(*state, "private", 1, 1, "outer.private_data=true train.steps=2");
    free(end_well(a));
    free(end_well(b));
    assert_true(same_losses(*state, "private", "private", 0, 1));
}

/* Stopped with a merge under way: a fragment's reference is new, its weights are not. */
static void islands_that_are_all_stopped_go_on_bit_for_bit(void **state)
{
    static const char *const words = "outer.every=4 outer.fragments=2 outer.delay=1 outer.mix=0.25 outer.compress=int8";
    if (!etcd)
        skip();
    char *half = must_format("%s train.steps=4", words);
    two_islands(*state, "through", words);
    two_islands(*state, "stopped", half);
    two_islands(*state, "stopped", words);
    for (int slot = 0; slot < 2; slot++) {
        assert_true(same(*state, "through", slot, "stopped", slot, NULL) > 100);
        assert_true(same_losses(*state, "through", "stopped", slot, slot));
    }
    free(half);
}

/* An island that merges alone until it is told to stop. */
#define BY_ITSELF "outer.min_islands=1 train.steps=100000000 run.log_every=1000000 outer.every=200 outer.timeout=1"

static void an_island_of_another_kind_or_a_taken_slot_is_refused(void **state)
{
    if (!etcd)
        skip();
    launch *first = island(*state, "kinds", 0, 1, "%s", BY_ITSELF);
    assert_true(launch_expect(first, "merge 1 of 1", LIMIT));
    char *again = must_format("%s/run.yaml run.folder=%s/kinds-again outer.run=kinds outer.slot=0 %s", (char *)*state,
                              (char *)*state, BY_ITSELF);
    launch_result r = runs_train(LIMIT, 1, again);
    assert_int_equal(r.status, 1);
    if (!strstr(r.err, "slot 0 belongs to island kinds-0"))
        fail_msg("%s", r.err);
    launch_free(&r);
    free(again);
    r = launch_finish(island(*state, "kinds", 1, 1, "outer.compress=bf16 outer.timeout=1"));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "another model"));
    launch_free(&r);
    kill(launch_pid(first), SIGTERM);
    free(end_well(first));
}

/* A second island comes, is killed, comes back; etcd dies and comes back; the last one hands over its change. */
static void islands_come_die_and_come_back(void **state)
{
    static const char *const words = "outer.min_islands=1 train.steps=100000000 run.log_every=1000000 outer.every=200 "
                                     "outer.timeout=10 checkpoint.every=2000 checkpoint.keep=1 outer.compress=int8";
    if (!etcd)
        skip();
    launch *a = island(*state, "events", 0, 1, "%s", words);
    assert_true(launch_expect(a, "merge 2 of 1: events-0", LIMIT));
    launch *b = island(*state, "events", 1, 2, "parallel.tensor=2 %s", words);
    assert_true(launch_expect(b, "took the model after merge", LIMIT));
    assert_true(launch_expect(a, "of 2: events-0, events-1", LIMIT));
    assert_true(launch_expect(b, "saved", LIMIT));
    kill(launch_pid(b), SIGKILL); /* mpirun's; its ranks follow */
    launch_result r = launch_finish(b);
    launch_free(&r);
    b = island(*state, "events", 1, 1, "%s", words); /* of another size */
    assert_true(launch_expect(b, "took the model after merge", LIMIT));
    assert_true(launch_expect(b, "of 2: events-0, events-1", LIMIT));
    rendezvous_kill(etcd);
    assert_true(launch_expect(a, "unmerged until it is back", LIMIT));
    rendezvous_start(etcd);
    assert_true(launch_expect(a, "etcd is back", LIMIT));
    kill(launch_pid(b), SIGTERM);
    char *said = end_well(b);
    assert_non_null(strstr(said, "handing over the change"));
    free(said);
    kill(launch_pid(a), SIGTERM);
    free(end_well(a));
}

/* Every island has a pair of keys; one that the others do not trust merges with nobody. */
static void a_stranger_merges_with_nobody(void **state)
{
    if (!etcd)
        skip();
    char *stranger = must_format("%s/stranger", (char *)*state);
    assert_int_equal(keys_make(stranger), STATUS_OK);
    launch *a = island(*state, "strange", 0, 1, "%s", BY_ITSELF);
    assert_true(launch_expect(a, "merge 1 of 1", LIMIT));
    launch_result r = launch_finish(island(*state, "strange", 1, 1, "%s outer.keys=%s", BY_ITSELF, stranger));
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "no island that has it is at work"));
    launch_free(&r);
    kill(launch_pid(a), SIGTERM);
    char *said = end_well(a);
    assert_null(strstr(said, "of 2: "));
    free(said);
    free(stranger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(islands_of_different_layouts_merge_to_the_same_bits),
        cmocka_unit_test(one_island_alone_is_plain_training),
        cmocka_unit_test(every_key_of_the_outer_step_has_an_effect),
        cmocka_unit_test(weights_and_private_data_are_as_they_are_called),
        cmocka_unit_test(islands_that_are_all_stopped_go_on_bit_for_bit),
        cmocka_unit_test(an_island_of_another_kind_or_a_taken_slot_is_refused),
        cmocka_unit_test(islands_come_die_and_come_back),
        cmocka_unit_test(a_stranger_merges_with_nobody),
    };
    return cmocka_run_group_tests(tests, prepare, finish);
}
