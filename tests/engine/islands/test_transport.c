/* The door to other islands: what is trusted comes through whole, and strangers, other runs, other versions, flipped
 * bits, replays and messages of any length are refused. outer.bandwidth is kept. */
#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "engine/islands/islands.h"
#include "engine/islands/wire/gate.h"
#include "engine/islands/meet/roster.h"
#include "engine/islands/wire/transport.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

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
    if (transport_open(&t, &o) != STATUS_OK)
        fail_msg("%s", status_message());
    return t;
}

static void open_keys(keys *out, const char *top, const char *name)
{
    AUTO_FREE char *folder = workfolder_path(top, name);
    assert_int_equal(islands_make_keys(folder), STATUS_OK);
    assert_int_equal(islands_make_keys(folder), STATUS_FAILED); /* never overwritten */
    assert_int_equal(keys_open(out, folder), STATUS_OK);
}

static void set_up(doors *d, const char *top, double bandwidth)
{
    static int count;
    AUTO_FREE char *own = must_format("own%d", count), *stranger = must_format("stranger%d", count++);
    open_keys(&d->own, top, own);
    open_keys(&d->stranger, top, stranger);
    for (int u = 0; u < UNITS; u++)
        for (int i = 0; i < BYTES; i++)
            served[u][i] = (uint8_t)(i * 31 + u * 7 + i / 251);
    d->server = open_door(&d->own, FINGERPRINT, bandwidth);
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

TEST(what_is_asked_for_comes_whole)
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

TEST(strangers_and_other_runs_get_nothing)
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

TEST(bandwidth_is_kept)
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

static uint64_t draw(uint64_t *random)
{
    *random = *random * 6364136223846793005ull + 1442695040888963407ull;
    return *random >> 33;
}

/* A trusted peer's socket, for messages that no phalanx sends. `keeps`: messages that it takes before it is read; 0:
 * as usual. */
static void *connect_raw(void *zmq, const doors *d, const keys *k, int linger, int keeps)
{
    void *socket = zmq_socket(zmq, ZMQ_DEALER);
    int small = 2048, all = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &all, sizeof all);
    if (keeps) {
        zmq_setsockopt(socket, ZMQ_RCVHWM, &keeps, sizeof keeps);
        zmq_setsockopt(socket, ZMQ_RCVBUF, &small, sizeof small);
    }
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, d->own.mine, KEYS_TEXT - 1);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, k->mine, KEYS_TEXT - 1);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, k->secret, KEYS_TEXT - 1);
    assert_int_equal(zmq_connect(socket, transport_endpoint(d->server)), 0);
    return socket;
}

static void send_raw(const doors *d, const void *data, size_t bytes)
{
    void *zmq = zmq_ctx_new(), *socket = connect_raw(zmq, d, &d->own, 2000, 0);
    zmq_send(socket, data, bytes, 0);
    zmq_close(socket);
    zmq_ctx_term(zmq);
}

TEST(hostile_messages_do_no_harm)
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

/* A trusted peer's 1,000 messages, each a good request but for some bytes, of any length: refused, or answered as what
 * they ask for. */
TEST(damaged_messages_do_no_harm)
{
    enum { MESSAGES = 1000 };
    doors d;
    set_up(&d, *state, 0);
    const wire_message request = {.kind = WIRE_CHANGE, .merge = 5, .offer = 9, .bytes = 100};
    void *zmq = zmq_ctx_new(), *socket = connect_raw(zmq, &d, &d.own, 1000, 0);
    uint64_t random = 7;
    for (int i = 0; i < MESSAGES; i++) {
        uint8_t message[2 * WIRE_HEADER] = {0};
        wire_write(message, &request, FINGERPRINT);
        for (uint64_t n = 1 + draw(&random) % 4; n > 0; n--)
            message[draw(&random) % WIRE_HEADER] = (uint8_t)draw(&random);
        size_t bytes = draw(&random) % 4 ? WIRE_HEADER : draw(&random) % sizeof message;
        assert_int_equal(zmq_send(socket, message, bytes, 0), (int)bytes);
    }
    assert_true(refused(&d, MESSAGES * 6 / 10)); /* magic, version, kind, fingerprint: 16 of 64 bytes */
    zmq_close(socket);
    zmq_ctx_term(zmq);
    assert_int_equal(fetch(&d, &d.own, FINGERPRINT, 5, SECONDS), TRANSPORT_DONE);
    tear_down(&d);
}

/* ---- a trusted peer whose replies are hostile ---- */

enum { HOSTILE_BYTE = 0xEE };

/* A reply that is not the one to `asked`, drawn: its length, of at most WIRE_MESSAGE bytes. */
static size_t draw_reply(uint8_t *out, const wire_message *asked, uint64_t *random)
{
    wire_message m = *asked;
    uint8_t good[WIRE_HEADER];
    uint32_t wrong = (uint32_t)draw(random);
    m.reply = m.there = true;
    memset(out, HOSTILE_BYTE, WIRE_MESSAGE);
    wire_write(good, &m, FINGERPRINT);
    switch (draw(random) % 8) {
    case 0:
        m.nonce += 1 + wrong;
        break;
    case 1:
        m.number = wrong % 2 ? m.number - 1 : m.number + wrong;
        break; /* it has been, or was not asked for */
    case 2:
        m.unit = wrong % 2 ? m.unit + 1 : (int32_t)wrong;
        break;
    case 3:
        m.first = wrong % 2 ? m.first + WIRE_SLICE : (int64_t)wrong << 31;
        break;
    case 4:
        m.bytes = (int32_t)(wrong % WIRE_SLICE);
        break;
    case 5:
        m.kind = WIRE_REFERENCE;
        break;
    case 6:
        *(wrong % 2 ? &m.merge : &m.offer) += 1;
        break;
    default:
        m.reply = false;
        break;
    }
    wire_write(out, &m, FINGERPRINT);
    size_t bytes = WIRE_HEADER + (size_t)m.bytes;
    if (draw(random) % 4 == 0 ||
        memcmp(out, good, sizeof good) == 0) /* damaged besides: magic, version, run, lengths */
        out[draw(random) % 24] ^= (uint8_t)(1 + draw(random) % 255);
    if (draw(random) % 4 == 0)
        bytes = draw(random) % WIRE_MESSAGE;
    return bytes;
}

typedef struct hostile_peer {
    void *zmq, *socket;
    char endpoint[128];
    uint64_t random;
    int sent; /* hostile replies */
} hostile_peer;

static void open_hostile_peer(hostile_peer *p, const keys *k)
{
    int yes = 1, none = 0;
    size_t length = sizeof p->endpoint;
    *p = (hostile_peer){.zmq = zmq_ctx_new(), .random = 11};
    p->socket = zmq_socket(p->zmq, ZMQ_ROUTER);
    zmq_setsockopt(p->socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(p->socket, ZMQ_CURVE_SERVER, &yes, sizeof yes);
    zmq_setsockopt(p->socket, ZMQ_CURVE_SECRETKEY, k->secret, KEYS_TEXT - 1);
    assert_int_equal(zmq_bind(p->socket, "tcp://127.0.0.1:*"), 0);
    zmq_getsockopt(p->socket, ZMQ_LAST_ENDPOINT, p->endpoint, &length);
}

/* One request: some hostile replies, and then the right one. False: there is none at the moment. */
static bool answer_with_hostility(hostile_peer *p)
{
    static uint8_t out[WIRE_MESSAGE];
    uint8_t from[256], in[WIRE_HEADER];
    wire_message m;
    int identity = zmq_recv(p->socket, from, sizeof from, ZMQ_DONTWAIT);
    if (identity < 0)
        return false;
    assert_int_equal(zmq_recv(p->socket, in, sizeof in, 0), WIRE_HEADER);
    assert_int_equal(wire_read(&m, in, sizeof in, FINGERPRINT), STATUS_OK);
    for (uint64_t n = draw(&p->random) % 4; n > 0; n--) {
        size_t bytes = draw_reply(out, &m, &p->random);
        zmq_send(p->socket, from, (size_t)identity, ZMQ_SNDMORE);
        zmq_send(p->socket, out, bytes, 0);
        p->sent++;
    }
    m.reply = m.there = true;
    wire_write(out, &m, FINGERPRINT);
    memcpy(out + WIRE_HEADER, served[m.unit] + m.first, (size_t)m.bytes);
    zmq_send(p->socket, from, (size_t)identity, ZMQ_SNDMORE);
    zmq_send(p->socket, out, WIRE_HEADER + (size_t)m.bytes, 0);
    return true;
}

/* 1,000 replies of a trusted peer that are not what was asked for: none gets into what is fetched. */
TEST(hostile_replies_are_not_taken)
{
    enum { REPLIES = 1000 };
    static uint8_t got[UNITS][BYTES];
    transport_part parts[UNITS];
    hostile_peer p;
    doors d;
    set_up(&d, *state, 0);
    open_hostile_peer(&p, &d.own);
    transport *t = open_door(&d.own, FINGERPRINT, 0);
    for (int u = 0; u < UNITS; u++)
        parts[u] = (transport_part){u, got[u], BYTES};
    for (double until = clock_seconds() + SECONDS; p.sent < REPLIES && clock_seconds() < until;) {
        memset(got, 0, sizeof got);
        transport_fetch(t, 1, p.endpoint, d.own.mine, &(transport_wanted){WIRE_CHANGE, 5, 9, parts, UNITS});
        while (transport_state_of(t, 1) == TRANSPORT_WORKING && clock_seconds() < until)
            if (!answer_with_hostility(&p))
                usleep(1000);
        assert_int_equal(transport_state_of(t, 1), TRANSPORT_DONE);
        assert_memory_equal(got, served, sizeof got);
    }
    printf("%d hostile replies: %lld refused, no byte of them taken\n", p.sent,
           (long long)transport_counted(t).refused);
    assert_true(p.sent >= REPLIES);
    assert_true(transport_counted(t).refused >= REPLIES / 2); /* the others came when all was there */
    transport_close(t);
    zmq_close(p.socket);
    zmq_ctx_term(p.zmq);
    tear_down(&d);
}

static int64_t resident_bytes(void)
{
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %lld", &pages), 1);
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* One more key that the door trusts. */
static void trust(keys *k, const keys *other)
{
    k->trusted = must_realloc(k->trusted, (unsigned long)(k->count + 1) * sizeof *k->trusted);
    memcpy(k->trusted[k->count++], other->mine, KEYS_TEXT);
}

/* A trusted peer asks on many connections and reads nothing: half of the room stays for the others. */
TEST(answers_that_nobody_reads_take_a_bounded_memory)
{
    enum { CONNECTIONS = 60, REQUESTS = 200 };
    void *zmq = zmq_ctx_new(), *socket[CONNECTIONS];
    uint8_t out[WIRE_HEADER];
    doors d;
    set_up(&d, *state, 0);
    transport_close(d.server);
    trust(&d.own, &d.stranger);
    d.server = open_door(&d.own, FINGERPRINT, 0);
    const wire_message request = {.kind = WIRE_CHANGE, .merge = 5, .offer = 9, .bytes = WIRE_SLICE};
    wire_write(out, &request, FINGERPRINT);
    int64_t before = resident_bytes(), most = 0;
    for (int i = 0; i < CONNECTIONS; i++)
        socket[i] = connect_raw(zmq, &d, &d.stranger, 0, 1);
    for (int r = 0; r < REQUESTS; r++)
        for (int i = 0; i < CONNECTIONS; i++)
            zmq_send(socket[i], out, sizeof out, ZMQ_DONTWAIT);
    for (int i = 0; i < 150; i++, usleep(20000)) {
        int64_t queued = transport_counted(d.server).queued;
        assert_true(queued <= TRANSPORT_QUEUED / 2);
        most = queued > most ? queued : most;
    }
    assert_true(most > TRANSPORT_QUEUED / 4); /* so it was asked for more than fits */
    assert_true(resident_bytes() - before < 2 * (int64_t)TRANSPORT_QUEUED);
    assert_int_equal(fetch(&d, &d.own, FINGERPRINT, 5, SECONDS), TRANSPORT_DONE);
    for (int i = 0; i < CONNECTIONS; i++)
        zmq_close(socket[i]);
    zmq_ctx_term(zmq);
    for (double until = clock_seconds() + SECONDS; transport_counted(d.server).queued > 0; usleep(20000))
        assert_true(clock_seconds() < until); /* what was theirs is free again */
    tear_down(&d);
}

/* Connects from 127.0.0.2 again and again, without a key or a word, and holds what it gets. */
static _Noreturn void hold_connections(int port, int count)
{
    struct sockaddr_in own = {.sin_family = AF_INET}, at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    inet_pton(AF_INET, "127.0.0.2", &own.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    for (;;) {
        int fd[1024];
        for (int i = 0; i < count; i++) {
            fd[i] = socket(AF_INET, SOCK_STREAM, 0);
            if (bind(fd[i], (struct sockaddr *)&own, sizeof own) == 0)
                (void)connect(fd[i], (struct sockaddr *)&at, sizeof at);
            usleep(i % 8 == 7 ? 4000 : 0); /* a busy machine lets the one that cuts them off run as often */
        }
        sleep(3);
        for (int i = 0; i < count; i++)
            close(fd[i]);
    }
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 1 << 20; /* none is left */
    while (readdir(d))
        count++;
    closedir(d);
    return count;
}

TEST(idle_connections_leave_descriptors)
{
    enum { LIMIT = 256, IDLE = 400 };
    struct rlimit was, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    low = (struct rlimit){LIMIT, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    doors d;
    set_up(&d, *state, 0);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_NOFILE, &was);
        hold_connections(atoi(strrchr(transport_endpoint(d.server), ':') + 1), IDLE);
    }
    int most = 0;
    for (int i = 0; i < 200; i++, usleep(10000)) {
        int count = count_descriptors();
        most = count > most ? count : most;
    }
    int64_t cut = transport_counted(d.server).refused;
    transport_state s = fetch(&d, &d.own, FINGERPRINT, 5, SECONDS); /* from another address, at the same time */
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    setrlimit(RLIMIT_NOFILE, &was);
    assert_true(cut > 0);
    assert_true(most < LIMIT - 32); /* a checkpoint could open its files at every moment */
    assert_int_equal(s, TRANSPORT_DONE);
    tear_down(&d);
}

TEST(connections_have_half_of_the_descriptors)
{
    assert_int_equal(gate_most(1024), 512);
    assert_int_equal(gate_most(1 << 20), 1024);
    assert_int_equal(gate_most(4), 8);
}

/* Every bit of a reply flipped: refused, or still in every range. */
TEST(flipped_bits_are_refused_or_in_range)
{
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
TEST(a_merge_takes_what_everybody_holds)
{
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
        AUTO_FREE char *text = must_format("{\"reached\":true,\"pairs\":[%s]}", pairs);
        roster r;
        bool all;
        assert_int_equal(roster_read(&r, text, NULL), STATUS_OK);
        assert_true(roster_takes(&all, &r, 4, cases[i].least, 0) == cases[i].takes);
        assert_int_equal(all, cases[i].all);
        assert_true(roster_takes(&all, &r, 5, 1, 0) == 0);
        roster_free(&r);
        free(pairs);
    }
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
