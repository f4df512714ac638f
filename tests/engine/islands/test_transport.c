/* The door to other islands: what is trusted comes through whole, and strangers, other runs, other versions, flipped
 * bits, replays and messages of any length are refused. outer.bandwidth is kept. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>
#include <zmq.h>

#include "engine/islands/roster.h"
#include "engine/islands/transport.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "tests/jobs/workfolder.h"

enum { UNITS = 3, BYTES = 5 * WIRE_SLICE + 123, FINGERPRINT = 77, SECONDS = 60 };

static uint8_t served[UNITS][BYTES];

static const void *serve(void *context, const wire_message *m)
{
    (void)context;
    bool there = m->kind == WIRE_CHANGE && m->merge == 5 && m->offer == 9 && m->unit < UNITS && m->first <= BYTES &&
                 m->bytes <= BYTES - m->first;
    return there ? served[m->unit] + m->first : NULL;
}

typedef struct doors {
    keys own, stranger;
    transport *server;
} doors;

static transport *open_door(const keys *k, uint64_t fingerprint, double bandwidth)
{
    transport *t = NULL;
    const transport_options o = {.keys = k,
                                 .address = "127.0.0.1",
                                 .fingerprint = fingerprint,
                                 .bandwidth = bandwidth,
                                 .fetches = 2,
                                 .serve = serve};
    assert_int_equal(transport_open(&t, &o), STATUS_OK);
    return t;
}

static void open_keys(keys *out, const char *top, const char *name)
{
    char *folder = workfolder_path(top, name);
    assert_int_equal(keys_make(folder), STATUS_OK);
    assert_int_equal(keys_make(folder), STATUS_FAILED); /* never overwritten */
    assert_int_equal(keys_open(out, folder), STATUS_OK);
    free(folder);
}

static void set_up(doors *d, const char *top, double bandwidth)
{
    static int count;
    char *own = must_format("own%d", count), *stranger = must_format("stranger%d", count++);
    open_keys(&d->own, top, own);
    open_keys(&d->stranger, top, stranger);
    for (int u = 0; u < UNITS; u++)
        for (int i = 0; i < BYTES; i++)
            served[u][i] = (uint8_t)(i * 31 + u * 7 + i / 251);
    d->server = open_door(&d->own, FINGERPRINT, bandwidth);
    free(own);
    free(stranger);
}

static void tear_down(doors *d)
{
    transport_close(d->server);
    keys_close(&d->own);
    keys_close(&d->stranger);
}

static transport_state wait_for(transport *t, int which, double seconds)
{
    double until = clock_seconds() + seconds;
    while (transport_state_of(t, which) == TRANSPORT_WORKING && clock_seconds() < until)
        usleep(2000);
    return transport_state_of(t, which);
}

/* Fetches all units from the server with these keys: what came of it. */
static transport_state fetch(const doors *d, const keys *k, uint64_t fingerprint, int64_t merge, double seconds)
{
    static uint8_t got[UNITS][BYTES];
    transport_part parts[UNITS];
    transport *t = open_door(k, fingerprint, 0);
    memset(got, 0, sizeof got);
    for (int u = 0; u < UNITS; u++)
        parts[u] = (transport_part){u, got[u], BYTES};
    transport_fetch(t, 1, transport_endpoint(d->server), d->own.mine,
                    &(transport_wanted){WIRE_CHANGE, merge, 9, parts, UNITS});
    transport_state s = wait_for(t, 1, seconds);
    if (s == TRANSPORT_DONE)
        assert_memory_equal(got, served, sizeof got);
    transport_close(t);
    return s;
}

/* Until the server has refused that many. */
static bool refused(const doors *d, int64_t count)
{
    double until = clock_seconds() + SECONDS;
    while (transport_counted(d->server).refused < count && clock_seconds() < until)
        usleep(2000);
    return transport_counted(d->server).refused >= count;
}

static void what_is_asked_for_comes_whole(void **state)
{
    doors d;
    set_up(&d, *state, 0);
    assert_int_equal(fetch(&d, &d.own, FINGERPRINT, 5, SECONDS), TRANSPORT_DONE);
    assert_true(transport_counted(d.server).sent >= (int64_t)sizeof served);
    assert_true(transport_counted(d.server).sent < (int64_t)sizeof served * 11 / 10); /* little more than the data */
    assert_int_equal(fetch(&d, &d.own, FINGERPRINT, 6, SECONDS), TRANSPORT_GONE);
    assert_int_equal(transport_counted(d.server).refused, 0);
    tear_down(&d);
}

static void strangers_and_other_runs_get_nothing(void **state)
{
    doors d;
    set_up(&d, *state, 0);
    assert_int_equal(fetch(&d, &d.stranger, FINGERPRINT, 5, 2), TRANSPORT_WORKING);
    assert_true(refused(&d, 1));
    int64_t before = transport_counted(d.server).refused;
    assert_int_equal(fetch(&d, &d.own, FINGERPRINT + 1, 5, 2), TRANSPORT_WORKING);
    assert_true(refused(&d, before + 1));
    assert_int_equal(transport_counted(d.server).sent, 0);
    assert_int_equal(fetch(&d, &d.own, FINGERPRINT, 5, SECONDS), TRANSPORT_DONE);
    tear_down(&d);
}

static void bandwidth_is_kept(void **state)
{
    const double rate = 400000;
    doors d;
    set_up(&d, *state, rate);
    double began = clock_seconds();
    assert_int_equal(fetch(&d, &d.own, FINGERPRINT, 5, SECONDS), TRANSPORT_DONE);
    double least = ((double)sizeof served - rate / 10 - WIRE_MESSAGE) / rate; /* less what it may send at once */
    assert_true(clock_seconds() - began >= least);
    tear_down(&d);
}

/* A trusted peer's socket, for messages that no phalanx sends. */
static void send_raw(const doors *d, const void *data, size_t bytes)
{
    void *zmq = zmq_ctx_new(), *socket = zmq_socket(zmq, ZMQ_DEALER);
    int linger = 2000;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, d->own.mine, KEYS_TEXT - 1);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, d->own.mine, KEYS_TEXT - 1);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, d->own.secret, KEYS_TEXT - 1);
    assert_int_equal(zmq_connect(socket, transport_endpoint(d->server)), 0);
    zmq_send(socket, data, bytes, 0);
    zmq_close(socket);
    zmq_ctx_term(zmq);
}

static void hostile_messages_do_no_harm(void **state)
{
    static uint8_t large[4 << 20];
    uint8_t good[WIRE_HEADER], bad[WIRE_HEADER];
    doors d;
    set_up(&d, *state, 0);
    const wire_message request = {.kind = WIRE_CHANGE, .merge = 5, .offer = 9, .bytes = 100};
    wire_write(good, &request, FINGERPRINT);
    send_raw(&d, good, 10); /* truncated */
    assert_true(refused(&d, 1));
    memcpy(bad, good, sizeof bad);
    bad[4]++; /* another version */
    send_raw(&d, bad, sizeof bad);
    assert_true(refused(&d, 2));
    memcpy(bad, good, sizeof bad);
    memset(bad + 60, 0xFF, 4); /* claims more bytes than any */
    send_raw(&d, bad, sizeof bad);
    assert_true(refused(&d, 3));
    memcpy(bad, good, sizeof bad);
    memset(bad + 48, 0x0F, 8); /* from byte 2^60 of a unit */
    send_raw(&d, bad, sizeof bad);
    send_raw(&d, large, sizeof large); /* cut off by ZeroMQ */
    /* no ZeroMQ at all: a frame that claims 2^60 bytes */
    struct sockaddr_in at = {.sin_family = AF_INET};
    const char *port = strrchr(transport_endpoint(d.server), ':') + 1;
    at.sin_port = htons((uint16_t)atoi(port));
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    const uint8_t claim[] = {0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 0, 'N', 0x02, 0x10, 0, 0, 0, 0, 0, 0, 0};
    assert_int_equal(send(fd, claim, sizeof claim, MSG_NOSIGNAL), (ssize_t)sizeof claim);
    close(fd);
    assert_int_equal(fetch(&d, &d.own, FINGERPRINT, 5, SECONDS), TRANSPORT_DONE); /* it serves on */
    tear_down(&d);
}

/* Every bit of a reply flipped: refused, or still in every range. */
static void flipped_bits_are_refused_or_in_range(void **state)
{
    (void)state;
    uint8_t message[WIRE_HEADER + 100] = {0};
    wire_message m = {.kind = WIRE_CHANGE, .reply = true, .there = true, .merge = 5, .offer = 9, .bytes = 100};
    wire_write(message, &m, FINGERPRINT);
    assert_int_equal(wire_read(&m, message, sizeof message, FINGERPRINT), STATUS_OK);
    int refusals = 0;
    for (int bit = 0; bit < 8 * WIRE_HEADER; bit++) {
        message[bit / 8] ^= (uint8_t)(1 << bit % 8);
        status s = wire_read(&m, message, sizeof message, FINGERPRINT);
        refusals += s != STATUS_OK;
        if (s == STATUS_OK)
            assert_true(m.bytes == 100 && m.first >= 0 && m.unit >= 0 && m.merge >= 0 && m.kind < WIRE_KINDS);
        message[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_true(refusals > 8 * 16); /* magic, version, flags, fingerprint, signs, length */
}

/* Who is merged: those that all who report hold; nobody if only leavers are there, or too few. */
static void a_merge_takes_what_everybody_holds(void **state)
{
    (void)state;
    static const char *const member = "{\"name\":\"x\",\"key\":\"k\",\"ranks\":1,\"endpoints\":[\"e\"],\"ready\":true}";
    static const struct {
        const char *have[3]; /* of slots 0 to 2; NULL: says nothing */
        int least;
        uint64_t takes;
        bool all;
    } cases[] = {
        {{"[0,1,2]", "[0,1,2]", "[0,1,2]"}, 1, 7, true},  {{"[0,1]", "[0,1]", NULL}, 1, 3, false},
        {{"[0,1,2]", "[0,1]", "[0,1,2]"}, 1, 3, true},    {{"[0]", "[1]", NULL}, 1, 0, false},
        {{"[0,1]", "[0,1]", NULL}, 3, 0, false},          {{NULL, NULL, NULL}, 1, 0, false},
        {{"[0,1,2,63]", "[0,1,2]", "[0,2]"}, 2, 5, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *pairs = must_strdup("");
        for (int s = 0; s < 3; s++) {
            char *more = must_format("%s%s{\"key\":\"member/%d\",\"value\":%s,\"revision\":3},"
                                     "{\"key\":\"offer/%d\",\"value\":{\"merge\":4,\"offer\":8},\"revision\":3}",
                                     pairs, s ? "," : "", s, member, s);
            free(pairs);
            pairs = more;
            if (!cases[i].have[s])
                continue;
            more = must_format("%s,{\"key\":\"have/%d\",\"value\":{\"merge\":4,\"slots\":%s},\"revision\":3}", pairs, s,
                               cases[i].have[s]);
            free(pairs);
            pairs = more;
        }
        char *text = must_format("{\"reached\":true,\"pairs\":[%s]}", pairs);
        roster r;
        bool all;
        assert_int_equal(roster_read(&r, text, NULL), STATUS_OK);
        assert_true(roster_takes(&all, &r, 4, cases[i].least, 0) == cases[i].takes);
        assert_int_equal(all, cases[i].all);
        assert_true(roster_takes(&all, &r, 5, 1, 0) == 0);
        roster_free(&r);
        free(text);
        free(pairs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_asked_for_comes_whole),
        cmocka_unit_test(strangers_and_other_runs_get_nothing),
        cmocka_unit_test(bandwidth_is_kept),
        cmocka_unit_test(hostile_messages_do_no_harm),
        cmocka_unit_test(flipped_bits_are_refused_or_in_range),
        cmocka_unit_test(a_merge_takes_what_everybody_holds),
    };
    return cmocka_run_group_tests(tests, workfolder_setup, workfolder_teardown);
}
