/* A server for islands (outer.topology server): they push when they like and wait for nobody; it is killed and comes back; what is
 * old, strange or no number is refused; and its model is a function of the changes alone, not of its ranks or its restarts.
 *
 * The keys whose effect is seen here: outer.topology, outer.staleness. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/files/checkpoint.h"
#include "engine/islands/membership.h"
#include "engine/islands/transport.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/seal.h"
#include "tests/jobs/island_jobs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

enum { SECONDS = ISLAND_JOBS_LIMIT };

#define TOPOLOGY "outer.topology=server outer.min_islands=1 outer.timeout=20"

/* In top/RUN-server; `words`: keys of its own. */
static launch *start_server(const char *top, const char *run, int ranks, const char *environment, const char *words)
{
    char *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup(""), *program = launch_beside("../phalanx");
    launch *l = launch_start(SECONDS, "exec %s %s %s server %s/run.yaml run.folder=%s/%s-server outer.run=%s %s %s",
                             mpirun, environment, program, top, top, run, run, TOPOLOGY, words);
    free(program);
    free(mpirun);
    return l;
}

/* One of its ranks is told, and all end. */
static void stop(const char *top, const char *run, launch *l)
{
    char *folder = must_format("%s/%s-server", top, run);
    int process = runs_process(folder, 0);
    assert_true(process > 0);
    kill(process, SIGTERM);
    free(island_jobs_end(l));
    free(folder);
}

static int64_t summary_of(const char *top, const char *run, const char *key)
{
    char *folder = must_format("%s/%s-server", top, run);
    json_t *summary = runs_read_summary(folder);
    int64_t value = json_integer_value(json_object_get(summary, key));
    json_decref(summary);
    free(folder);
    return value;
}

/* ---- islands of the engine ------------------------------------------------------------------------------------------ */

static void three_islands_of_different_layouts_learn_and_end(void **state)
{
    static const char *const words = TOPOLOGY " outer.slots=3 train.steps=60 outer.every=5 outer.compress=int8";
    launch *all[3];
    if (!island_jobs_etcd)
        skip();
    launch *server =
        start_server(*state, "three", 1, "", "outer.slots=3 train.steps=60 outer.every=5 outer.compress=int8");
    assert_true(launch_expect(server, "holds the model", SECONDS));
    launch_result refused = launch_finish(island_jobs_start(*state, "three", 2, 1, "outer.slots=3 outer.timeout=1"));
    assert_int_equal(refused.status, 1); /* without the topology: of another kind */
    launch_free(&refused);
    all[0] = island_jobs_start(*state, "three", 0, 2, "parallel.tensor=2 %s", words);
    all[1] = island_jobs_start(*state, "three", 1, 2, "parallel.pipeline=2 parallel.zero=1 %s", words);
    all[2] = island_jobs_start(*state, "three", 2, 1, "%s", words);
    for (int i = 0; i < 3; i++) {
        free(island_jobs_end(all[i]));
        char *run = island_jobs_folder(*state, "three", i);
        runs_metrics m = runs_read_metrics(run);
        double last = m.count > 0 ? m.step[m.count - 1].loss : 0;
        printf("island %d: loss %.3f after %d steps of its own\n", i, last, m.count);
        assert_true(last > 0 && last < 0.6 * log(131)); /* of an untrained model: the log of the vocabulary */
        free(run);
    }
    stop(*state, "three", server);
    int64_t merges = summary_of(*state, "three", "merges");
    printf("%lld merges\n", (long long)merges);
    assert_true(merges > 12); /* an island that comes late begins where the others are */
}

/* Islands train on without it, say so, and push when it is back. */
static void a_server_dies_and_comes_back(void **state)
{
    static const char *const words = "outer.every=200 train.steps=100000000";
    if (!island_jobs_etcd)
        skip();
    launch *server = start_server(*state, "dies", 1, "", "outer.every=200 train.steps=100000000 checkpoint.every=2");
    launch *a = island_jobs_start(*state, "dies", 0, 1, TOPOLOGY " run.log_every=1000000 %s", words);
    launch *b = island_jobs_start(*state, "dies", 1, 2, TOPOLOGY " run.log_every=1000000 parallel.tensor=2 %s", words);
    assert_true(launch_expect(server, "saved", SECONDS));
    kill(launch_pid(server), SIGKILL);
    launch_result r = launch_finish(server);
    launch_free(&r);
    assert_true(launch_expect(a, "the server is away; training goes on", SECONDS));
    assert_true(launch_expect(b, "the server is away; training goes on", SECONDS));
    server = start_server(*state, "dies", 1, "", "outer.every=200 train.steps=100000000 checkpoint.every=2");
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
    char *folder = island_jobs_folder(*state, "dies", 1);
    kill(runs_process(folder, 0), SIGTERM);
    free(folder);
    free(island_jobs_end(b));
    stop(*state, "dies", server);
}

static void without_a_server_an_island_does_not_begin(void **state)
{
    if (!island_jobs_etcd)
        skip();
    launch_result r = launch_finish(island_jobs_start(*state, "nobody", 0, 1, "outer.topology=server outer.timeout=2"));
    assert_int_equal(r.status, 1);
    if (!strstr(r.err, "no server holds the model of outer.run nobody"))
        fail_msg("%s", r.err);
    launch_free(&r);
}

/* ---- an island made up ------------------------------------------------------------------------------------------------- */

typedef struct fake {
    membership *membership;
    transport *transport;
    keys keys;
    int64_t number; /* of the change that it offers: its values are drawn from it */
    bool nonsense;
} fake;

static const void *serve(void *context, const wire_message *m)
{
    static float slice[WIRE_SLICE / sizeof(float)];
    const fake *f = context;
    if (m->kind != WIRE_CHANGE)
        return NULL;
    for (int32_t i = 0; i < m->bytes / 4; i++) {
        uint64_t x = (uint64_t)(f->number * 1000003 + m->unit * 7919 + m->first / 4 + i) * 6364136223846793005u;
        slice[i] = (float)((double)(x >> 40) / 16777216.0 - 0.5) * 1e-3f;
    }
    if (f->nonsense)
        memset(slice, 0xFF, sizeof slice); /* NaN */
    return slice;
}

static fake *open_fake(const char *top, const char *run, int slot, const char *folder_of_keys)
{
    fake *f = must_calloc(1, sizeof *f);
    char *folder = must_format("%s/%s", top, folder_of_keys);
    assert_int_equal(keys_open(&f->keys, folder), STATUS_OK);
    const transport_options door = {.keys = &f->keys,
                                    .address = "127.0.0.1",
                                    .fingerprint = island_jobs_fingerprint(run),
                                    .fetches = 1,
                                    .serve = serve,
                                    .context = f};
    assert_int_equal(transport_open(&f->transport, &door), STATUS_OK);
    const char *endpoint = transport_endpoint(f->transport);
    const membership_options who = {.addresses = rendezvous_address(island_jobs_etcd),
                                    .run = run,
                                    .name = folder_of_keys,
                                    .fingerprint = door.fingerprint,
                                    .key = f->keys.mine,
                                    .endpoints = &endpoint,
                                    .ranks = 1,
                                    .slots = 2,
                                    .slot = slot,
                                    .hint = -1,
                                    .patience = SECONDS,
                                    .lease = 20};
    assert_int_equal(membership_open(&f->membership, &who), STATUS_OK);
    membership_set_state(f->membership, &(membership_state){.ready = true});
    free(folder);
    return f;
}

static void close_fake(fake *f)
{
    membership_close(f->membership);
    transport_close(f->transport);
    keys_close(&f->keys);
    free(f);
}

/* Offers a change of so many tokens since merge `base`; the answer, or -1 if there is none in time. */
static int push(fake *f, int64_t number, int64_t base, int64_t tokens, double seconds)
{
    double until = clock_seconds() + seconds;
    int answer = -1;
    transport_lock(f->transport);
    f->number = number;
    transport_unlock(f->transport);
    membership_set_offer(f->membership,
                         json_pack("{s:I, s:I, s:I, s:I, s:I, s:i, s:b}", "merge", (json_int_t)(base + 1), "offer",
                                   (json_int_t)number, "id", (json_int_t)(number + 12345), "tokens", (json_int_t)tokens,
                                   "updates", (json_int_t)number, "fragment", 0, "parting", 0));
    for (; answer < 0 && clock_seconds() < until; usleep(10000)) {
        char *text = membership_roster(f->membership);
        roster r;
        assert_int_equal(roster_read(&r, text, NULL), STATUS_OK);
        for (int i = 0; i < r.parts; i++)
            if (r.part[i].id == number + 12345)
                answer = (int)r.part[i].refusal;
        roster_free(&r);
        free(text);
    }
    membership_set_offer(f->membership, NULL);
    return answer;
}

/* The server resumes, so that `head` may be of its former process: its record is that of the one that is there. */
static launch *start_and_wait(const char *top, const char *run, int ranks, const char *environment, const char *words)
{
    launch *l = start_server(top, run, ranks, environment, words);
    assert_true(launch_expect(l, "holds the model", SECONDS));
    return l;
}

#define SEQUENCE "outer.every=5 outer.staleness=2"

/* Eight changes, between the fourth and the fifth of which the server may be stopped. */
static void push_sequence(const char *top, const char *run, int ranks, bool restarts)
{
    static const int64_t base[] = {0, 0, 1, 3, 3, 3, 6, 7}, tokens[] = {100, 300, 100, 50, 800, 100, 100, 70};
    launch *server = start_and_wait(top, run, ranks, "", SEQUENCE);
    fake *f[] = {open_fake(top, run, 0, "keys"), open_fake(top, run, 1, "keys")};
    for (int i = 0; i < 8; i++) {
        if (i == 4 && restarts) {
            stop(top, run, server);
            server = start_and_wait(top, run, ranks, "", SEQUENCE);
        }
        assert_int_equal(push(f[i % 2], 10 + i, base[i], tokens[i], SECONDS), ROSTER_TAKEN);
    }
    close_fake(f[0]);
    close_fake(f[1]);
    stop(top, run, server);
}

static int same_servers(const char *top, const char *run, const char *other, const char *section)
{
    char *a = must_format("%s/%s-server", top, run), *b = must_format("%s/%s-server", top, other), difference[256];
    int count = runs_compare_section(difference, sizeof difference, a, b, section);
    free(b);
    free(a);
    if (*difference)
        printf("%s and %s: %s\n", run, other, difference);
    return *difference ? 0 : count;
}

static void ranks_and_restarts_of_a_server_do_not_change_a_bit(void **state)
{
    static const char *const sections[] = {"model", "outer_momentum"};
    if (!island_jobs_etcd)
        skip();
    push_sequence(*state, "one", 1, false);
    push_sequence(*state, "two", 2, false);
    push_sequence(*state, "resumed", 1, true);
    for (int i = 0; i < 2; i++) {
        assert_true(same_servers(*state, "one", "two", sections[i]) > 20);
        assert_true(same_servers(*state, "one", "resumed", sections[i]) > 20);
    }
    assert_int_equal(summary_of(*state, "two", "refused"), 0);
}

/* How many tensors of the models of two checkpoints are the same bits. */
static int same_model(const char *folder, const char *other)
{
    checkpoint *a = NULL, *b = NULL;
    int same = 0;
    assert_int_equal(checkpoint_open(&a, folder), STATUS_OK);
    assert_int_equal(checkpoint_open(&b, other), STATUS_OK);
    for (int i = 0; i < checkpoint_tensors(a); i++) {
        const manifest_tensor *t = checkpoint_at(a, i);
        const int64_t start[BOX_DIMS] = {0}, columns = t->dims > 1 ? t->global[1] : 1, stride[] = {columns, 1};
        size_t bytes = (size_t)(t->global[0] * columns) * sizeof(float);
        if (strcmp(t->section, "model") != 0)
            continue;
        float *x = must_alloc(bytes), *y = must_alloc(bytes);
        const int64_t one[] = {1}, *step = t->dims > 1 ? stride : one;
        assert_int_equal(
            checkpoint_read(a, "model", t->name, DTYPE_FP32, x, step, t->dims, t->global, start, t->global), STATUS_OK);
        assert_int_equal(
            checkpoint_read(b, "model", t->name, DTYPE_FP32, y, step, t->dims, t->global, start, t->global), STATUS_OK);
        assert_memory_equal(x, y, bytes);
        same++;
        free(x);
        free(y);
    }
    checkpoint_close(a);
    checkpoint_close(b);
    return same;
}

/* Before anything is merged, a server holds what training would begin with. */
static void a_server_begins_with_the_weights_that_training_draws(void **state)
{
    static const char *const gpt = "model.architecture=gpt2 model.kv_heads=4"; /* stored the other way round */
    if (!island_jobs_etcd)
        skip();
    for (int i = 0; i < 2; i++) {
        const char *run = i ? "begin-gpt2" : "begin", *words = i ? gpt : "";
        char *trained = must_format("%s/%s-trained", *(char **)state, run);
        char *server_folder = must_format("%s/%s-server", *(char **)state, run);
        launch *server = start_and_wait(*state, run, 1, "", words);
        stop(*state, run, server);
        free(runs_train_well(SECONDS, 1,
                             "%s/run.yaml run.folder=%s outer.every=0 train.steps=1 optimizer.lr=0 "
                             "optimizer.min_lr=0 optimizer.weight_decay=0 %s",
                             *(char **)state, trained, words));
        assert_true(same_model(server_folder, trained) > 20);
        free(server_folder);
        free(trained);
    }
}

/* What is older than outer.staleness, has a base that has not been, is no number, or comes from a stranger. */
static void what_cannot_be_merged_is_refused_and_counted(void **state)
{
    if (!island_jobs_etcd)
        skip();
    char *stranger_keys = must_format("%s/stranger", *(char **)state);
    assert_int_equal(keys_make(stranger_keys), STATUS_OK);
    launch *server = start_and_wait(*state, "refuses", 1, "", SEQUENCE);
    fake *f = open_fake(*state, "refuses", 0, "keys"), *stranger = open_fake(*state, "refuses", 1, "stranger");
    for (int64_t base = 0; base < 3; base++)
        assert_int_equal(push(f, 20 + base, base, 1, SECONDS), ROSTER_TAKEN);
    assert_int_equal(push(f, 30, 0, 1, SECONDS), ROSTER_STALE); /* 3 merges old, of 2 */
    assert_int_equal(push(f, 31, 99, 1, SECONDS), ROSTER_IMPOSSIBLE);
    f->nonsense = true;
    assert_int_equal(push(f, 32, 3, 1, SECONDS), ROSTER_UNSOUND);
    f->nonsense = false;
    assert_int_equal(push(stranger, 33, 3, 1, 3), -1);
    assert_int_equal(push(f, 34, 3, 1, SECONDS), ROSTER_TAKEN);
    close_fake(stranger);
    close_fake(f);
    stop(*state, "refuses", server);
    assert_int_equal(summary_of(*state, "refuses", "merge"), 4);
    assert_int_equal(summary_of(*state, "refuses", "refused"), 3);
    free(stranger_keys);
}

/* An island of the engine is told, takes the model anew, and is merged again. */
static void an_island_that_is_too_late_takes_the_model_anew(void **state)
{
    static const char *const words = "outer.staleness=1 outer.every=500 train.steps=100000000 run.log_every=1000000";
    int64_t number = 100;
    if (!island_jobs_etcd)
        skip();
    launch *server = start_and_wait(*state, "late", 1, "", words);
    launch *a = island_jobs_start(*state, "late", 0, 1, TOPOLOGY " %s", words);
    fake *f = open_fake(*state, "late", 1, "keys");
    assert_true(launch_expect(server, ": late-0 after its step", SECONDS));
    for (double until = clock_seconds() + SECONDS; !launch_expect(a, "the server has refused", 0.01);) {
        char *text = membership_roster(f->membership);
        roster r;
        assert_true(clock_seconds() < until);
        assert_int_equal(roster_read(&r, text, NULL), STATUS_OK);
        (void)push(f, number++, r.merge, 1, SECONDS);
        roster_free(&r);
        free(text);
    }
    close_fake(f);
    assert_true(launch_expect(server, "refused the change of island late-0", SECONDS));
    assert_true(launch_expect(a, "taking the model anew", SECONDS));
    char *before = launch_output(server);
    size_t seen = strlen(before);
    bool merged = false;
    for (double until = clock_seconds() + SECONDS; !merged && clock_seconds() < until; usleep(50000)) {
        char *now = launch_output(server);
        merged = strstr(now + seen, ": late-0 after its step") != NULL;
        free(now);
    }
    assert_true(merged);
    free(before);
    kill(launch_pid(a), SIGTERM);
    free(island_jobs_end(a));
    stop(*state, "late", server);
}

/* ---- memory -------------------------------------------------------------------------------------------------------------- */

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

static void a_server_allocates_nothing_while_it_works(void **state)
{
#ifdef __SANITIZE_ADDRESS__
    skip();
#endif
    if (!island_jobs_etcd)
        skip();
    char *spy = launch_beside("allocation_spy.so"), *log = workfolder_path(*state, "server-allocations");
    char *environment = must_format("env LD_PRELOAD=%s %s=%s", spy, SEAL_ENVIRONMENT, log);
    launch *server = start_and_wait(*state, "sealed", 1, environment, SEQUENCE " checkpoint.every=2");
    fake *f = open_fake(*state, "sealed", 0, "keys");
    for (int64_t i = 0; i < 4; i++)
        assert_int_equal(push(f, 50 + i, i, 1, SECONDS), ROSTER_TAKEN);
    close_fake(f);
    stop(*state, "sealed", server);
    assert_int_equal(allocations_in_the_seal(log), 0);
    free(environment);
    free(log);
    free(spy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_islands_of_different_layouts_learn_and_end),
        cmocka_unit_test(a_server_dies_and_comes_back),
        cmocka_unit_test(without_a_server_an_island_does_not_begin),
        cmocka_unit_test(ranks_and_restarts_of_a_server_do_not_change_a_bit),
        cmocka_unit_test(a_server_begins_with_the_weights_that_training_draws),
        cmocka_unit_test(what_cannot_be_merged_is_refused_and_counted),
        cmocka_unit_test(an_island_that_is_too_late_takes_the_model_anew),
        cmocka_unit_test(a_server_allocates_nothing_while_it_works),
    };
    return cmocka_run_group_tests(tests, island_jobs_prepare, island_jobs_finish);
}
