/* Answers of etcd that are lost: a request that is carried out without an answer, or much later. In front of an etcd of
 * one node stands a gate that loses an answer, or keeps a request back and sends it on when it is told. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/islands/meet/etcd.h"
#include "engine/islands/meet/membership.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/etcd_gate.h"
#include "tests/jobs/rendezvous.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

enum { SECONDS = 60, LEASE = 2 };

static rendezvous *etcd_node;

static int etcd_port(void)
{
    return atoi(strrchr(rendezvous_address(etcd_node), ':') + 1);
}

static void wait_for_act(gate *g)
{
    for (double until = clock_seconds() + SECONDS; gate_acted(g) == 0; usleep(10000))
        assert_true(clock_seconds() < until);
}

/* ---- members
 * --------------------------------------------------------------------------------------------------------------- */

static status join(membership **out, const gate *g, const char *run, const char *name)
{
    static const char *const endpoints[] = {"tcp://127.0.0.1:1"};
    char *gate_address = must_format("http://127.0.0.1:%d", g ? g->port : 0);
    char *address = !g           ? must_strdup(rendezvous_address(etcd_node))
                    : g->doubled ? must_format("%s,%s", gate_address, gate_address)
                                 : must_strdup(gate_address);
    const membership_options options = {.addresses = address,
                                        .run = run,
                                        .name = name,
                                        .fingerprint = 1,
                                        .key = "key",
                                        .endpoints = endpoints,
                                        .ranks = 1,
                                        .slots = 2,
                                        .slot = -1,
                                        .hint = -1,
                                        .patience = 10,
                                        .lease = LEASE};
    status s = membership_open(out, &options);
    free(address); /* it is not asked for again */
    free(gate_address);
    return s;
}

static roster look(membership *m)
{
    roster r;
    AUTO_FREE char *text = membership_roster(m);
    assert_int_equal(roster_read(&r, text, NULL), STATUS_OK);
    return r;
}

/* Until etcd has carried out what has this number; the roster is the caller's. */
static roster wait_for(membership *m, int64_t number)
{
    for (double until = clock_seconds() + SECONDS;; usleep(10000)) {
        roster r = look(m);
        if (r.reached && r.settled >= number)
            return r;
        roster_free(&r);
        assert_true(clock_seconds() < until);
    }
}

/* What is at a key now, by a client of its own: a fresh string, or NULL. */
static char *value_of(const char *run, const char *key)
{
    etcd *e;
    json_t *pairs, *pair;
    size_t i;
    char *path = must_format("phalanx/%s/live/%s", run, key), *value = NULL;
    assert_int_equal(etcd_open(&e, rendezvous_address(etcd_node)), STATUS_OK);
    assert_int_equal(etcd_read(&pairs, e, path), STATUS_OK);
    json_array_foreach(pairs, i, pair) if (!strcmp(json_string_value(json_object_get(pair, "key")), path)) value =
        must_strdup(json_string_value(json_object_get(pair, "value")));
    json_decref(pairs);
    etcd_close(e);
    free(path);
    return value;
}

static void wait_for_value(const char *run, const char *key, const char *part)
{
    for (double until = clock_seconds() + SECONDS;; usleep(20000)) {
        AUTO_FREE char *value = value_of(run, key);
        bool there = part ? value && strstr(value, part) : !value;
        if (there)
            return;
        assert_true(clock_seconds() < until);
    }
}

static json_t *head_of(int64_t merge)
{
    return json_pack("{s:I, s:I, s:I, s:[]}", "merge", (json_int_t)merge, "step", (json_int_t)merge, "updates",
                     (json_int_t)merge, "parts");
}

/* ---- tests
 * ----------------------------------------------------------------------------------------------------------------- */

TEST(a_claim_without_an_answer_is_found)
{
    gate g;
    membership *first, *m;
    if (!etcd_node)
        skip_because(SKIP_NO_ETCD);
    gate_begin(&g, etcd_port());
    assert_int_equal(join(&first, NULL, "claim", "first"), STATUS_OK); /* who writes the fingerprint */
    gate_set(&g, GATE_LOSES_ANSWER, "/v3/kv/txn");
    assert_int_equal(join(&m, &g, "claim", "second"), STATUS_OK);
    assert_int_equal(g.acted, 1);
    assert_int_equal(membership_slot(m), 1); /* both slots are taken: there was no other */
    roster r = wait_for(m, membership_set_state(m, &(membership_state){.ready = true, .step = 3}));
    assert_true(r.member[1].ready && !r.evicted);
    assert_string_equal(r.member[1].name, "second");
    roster_free(&r);
    membership_close(m);
    membership_close(first);
    gate_end(&g);
}

/* The lease runs out; the record that comes back has no answer, and the next node asked says that there is one
 * already. */
TEST(a_renewal_without_an_answer_is_no_eviction)
{
    gate g;
    membership *m;
    if (!etcd_node)
        skip_because(SKIP_NO_ETCD);
    gate_begin(&g, etcd_port());
    g.doubled = true;
    assert_int_equal(join(&m, &g, "renewal", "one"), STATUS_OK);
    gate_set(&g, GATE_IS_SHUT, NULL);
    wait_for_value("renewal", "member/0", NULL);
    gate_set(&g, GATE_LOSES_ANSWER, "/v3/kv/txn");
    wait_for_act(&g);
    roster r = wait_for(m, membership_set_state(m, &(membership_state){.ready = true, .step = 7}));
    assert_true(r.member[0].ready && !r.evicted);
    assert_int_equal(r.member[0].state_step, 7);
    roster_free(&r);
    membership_close(m);
    gate_end(&g);
}

/* It was carried out: whoever decided sees that when it is settled. */
TEST(a_decision_without_an_answer_is_seen)
{
    gate g;
    membership *m;
    if (!etcd_node)
        skip_because(SKIP_NO_ETCD);
    gate_begin(&g, etcd_port());
    assert_int_equal(join(&m, &g, "lost", "one"), STATUS_OK);
    gate_set(&g, GATE_LOSES_ANSWER, "/v3/kv/txn");
    roster r = wait_for(m, membership_decide(m, head_of(1), 0, 0, NULL));
    assert_int_equal(g.acted, 1);
    assert_int_equal(r.merge, 1);
    int64_t revision = r.revision;
    roster_free(&r);
    r = wait_for(m, membership_decide(m, head_of(2), revision, 0, NULL)); /* and the next one holds */
    assert_int_equal(r.merge, 2);
    roster_free(&r);
    membership_close(m);
    gate_end(&g);
}

/* It was not: once that is settled, it never is. */
TEST(a_decision_that_comes_late_is_not_carried_out)
{
    gate g;
    membership *m;
    if (!etcd_node)
        skip_because(SKIP_NO_ETCD);
    gate_begin(&g, etcd_port());
    assert_int_equal(join(&m, &g, "late", "one"), STATUS_OK);
    gate_set(&g, GATE_KEEPS_BACK, "/v3/kv/txn");
    roster r = wait_for(m, membership_decide(m, head_of(1), 0, 0, NULL));
    assert_int_equal(g.acted, 1);
    assert_int_equal(r.merge, -1);
    roster_free(&r);
    gate_send_on(&g, g.kept, g.kept_bytes, -1);
    char *head = value_of("late", "head");
    assert_null(head);
    r = wait_for(m, membership_decide(m, head_of(5), 0, 0, NULL));
    assert_int_equal(r.merge, 5);
    roster_free(&r);
    membership_close(m);
    gate_end(&g);
}

/* A process that has died had decided: the next one at its slot does not find that done later. */
TEST(what_a_former_process_decided_does_not_come_late)
{
    gate g;
    membership *m, *next;
    if (!etcd_node)
        skip_because(SKIP_NO_ETCD);
    gate_begin(&g, etcd_port());
    assert_int_equal(join(&m, &g, "former", "one"), STATUS_OK);
    gate_set(&g, GATE_KEEPS_BACK, "/v3/kv/txn");
    (void)membership_decide(m, head_of(1), 0, 0, NULL);
    wait_for_act(&g);
    gate_set(&g, GATE_IS_SHUT, NULL); /* it hears nothing any more, and is as good as dead */
    wait_for_value("former", "member/0", NULL);
    assert_int_equal(join(&next, NULL, "former", "one"), STATUS_OK);
    assert_int_equal(membership_slot(next), 0);
    gate_send_on(&g, g.kept, g.kept_bytes, -1);
    char *head = value_of("former", "head");
    assert_null(head);
    membership_close(next);
    membership_close(m);
    gate_end(&g);
}

/* An older offer that is carried out after a newer one: the newer one comes back. */
TEST(a_write_that_comes_late_is_undone)
{
    gate g;
    membership *m;
    if (!etcd_node)
        skip_because(SKIP_NO_ETCD);
    gate_begin(&g, etcd_port());
    assert_int_equal(join(&m, &g, "write", "one"), STATUS_OK);
    gate_set(&g, GATE_KEEPS_BACK, "/v3/kv/put");
    roster r = wait_for(m, membership_set_offer(m, json_pack("{s:i, s:i}", "merge", 1, "offer", 11)));
    roster_free(&r);
    assert_int_equal(g.acted, 1);
    r = wait_for(m, membership_set_offer(m, json_pack("{s:i, s:i}", "merge", 2, "offer", 22)));
    roster_free(&r);
    wait_for_value("write", "offer/0", "22");
    gate_send_on(&g, g.kept, g.kept_bytes, -1);
    usleep(20000);
    wait_for_value("write", "offer/0", "22");
    r = wait_for(m, membership_set_offer(m, NULL));
    roster_free(&r);
    gate_send_on(&g, g.kept, g.kept_bytes, -1);
    wait_for_value("write", "offer/0", NULL);
    membership_close(m);
    gate_end(&g);
}

/* This program's clock of the day, for all that is linked with it, may be set back. */
static long set_back;
int clock_gettime(clockid_t clock, struct timespec *out)
{
    int code = (int)syscall(SYS_clock_gettime, clock, out);
    out->tv_sec += clock == CLOCK_REALTIME ? set_back : 0;
    return code;
}

/* A thread that waits until a moment of that clock, as it was an hour ahead, would see nobody for an hour, and lose its
 * lease. */
TEST(a_clock_that_is_set_back_does_not_stop_the_turns)
{
    membership *m, *other;
    if (!etcd_node)
        skip_because(SKIP_NO_ETCD);
    assert_int_equal(join(&m, NULL, "clock", "one"), STATUS_OK);
    set_back = 3600;
    usleep(300000); /* what was waited for before */
    assert_int_equal(join(&other, NULL, "clock", "two"), STATUS_OK);
    bool seen = false;
    for (double until = clock_seconds() + 2 * LEASE; !seen && clock_seconds() < until; usleep(10000)) {
        roster r = look(m);
        seen = r.member[1].here && !r.evicted;
        roster_free(&r);
    }
    sleep(2 * LEASE);
    roster r = look(other);
    bool kept = r.member[0].here && !r.evicted;
    roster_free(&r);
    set_back = 0;
    assert_true(seen && kept);
    membership_close(other);
    membership_close(m);
}

static int prepare(void **state)
{
    if (workfolder_setup(state))
        return -1;
    if (rendezvous_is_there())
        etcd_node = rendezvous_open(*state);
    return 0;
}

static int finish(void **state)
{
    if (etcd_node)
        rendezvous_close(etcd_node);
    return workfolder_teardown(state);
}

/* Who has etcd's password and no island's key writes what no island can have made: it is read as what it is, a number
 * within bounds (whether its merge is believed, the outer loop decides), and what is gone is gone. */
TEST(what_no_island_can_have_written_is_bounded)
{
    static const char head[] = "{\"merge\": 4611686018427387904, \"parts\": []}";
    etcd *e;
    membership *m;
    if (!etcd_node)
        skip_because(SKIP_NO_ETCD);
    assert_int_equal(join(&m, NULL, "hostile", "one"), STATUS_OK);
    assert_int_equal(etcd_open(&e, rendezvous_address(etcd_node)), STATUS_OK);
    char deep[4200];
    memset(deep, '[', 2047);
    memset(deep + 2047, ']', 2047);
    deep[4094] = 0;
    assert_int_equal(etcd_write(e, "phalanx/hostile/live/x", deep, 0), STATUS_OK);
    for (int i = 0; i < 20; i++, usleep(50000)) { /* whatever is read of it, it is JSON */
        roster r = look(m);
        assert_true(r.reached);
        roster_free(&r);
    }
    assert_int_equal(etcd_write(e, "phalanx/hostile/live/head", head, 0), STATUS_OK);
    int64_t merge = -1;
    for (double until = clock_seconds() + SECONDS; merge < 0 && clock_seconds() < until; usleep(20000)) {
        roster r = look(m);
        assert_true(r.reached);
        merge = r.merge;
        roster_free(&r);
    }
    assert_int_equal(merge, (int64_t)1 << 56); /* its successor is no overflow */
    assert_int_equal(etcd_write(e, "phalanx/hostile/live/head", NULL, 0), STATUS_OK);
    for (double until = clock_seconds() + SECONDS; merge >= 0 && clock_seconds() < until; usleep(20000)) {
        roster r = look(m);
        merge = r.merge;
        roster_free(&r);
    }
    assert_int_equal(merge, -1);
    etcd_close(e);
    membership_close(m);
}

/* Merges 3 and 4 of history 7 were given up: history 8 began after merge 2 of it. */
TEST(a_number_is_a_merge_of_its_history)
{
    static const struct {
        int64_t merge, history;
        bool head_at_base, in_line;
    } cases[] = {
        {4, 8, false, true},  {2, 7, false, true},  {1, 7, false, true},  {3, 7, false, false},
        {4, 7, false, false}, {9, 7, false, false}, {4, 6, false, false}, {1, 6, false, false},
        {4, 0, false, true},  {4, 7, true, true},   {2, 7, true, true},   {2, 6, true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        roster r = {.merge = cases[i].head_at_base ? 2 : 4, .history = 8, .from = 7, .base = 2};
        assert_int_equal(roster_is_in_line(&r, cases[i].merge, cases[i].history), cases[i].in_line);
        r.history = r.from = r.base = 0; /* a former version's: numbers are all there is */
        assert_true(roster_is_in_line(&r, cases[i].merge, cases[i].history));
    }
    json_t *head = json_pack("{s:i, s:I, s:i, s:I}", "merge", 5, "history", (json_int_t)INT64_MAX, "from", -3, "base",
                             (json_int_t)INT64_MAX);
    roster r = {0};
    roster_read_head(&r, head, 1);
    assert_true(r.history == INT64_MAX && r.from == 0 && r.base == (int64_t)1 << 56);
    json_decref(head);
}

TEST_MAIN(prepare, finish)
