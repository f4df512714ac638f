#include "engine/islands/wire/transport.h"

#include <errno.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "engine/islands/wire/gate.h"
#include "engine/system/worker.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { WINDOW = 64, POLL_MS = 5, REQUESTS_A_TURN = 64, HANDSHAKE_MS = 5000 };
static const int64_t LONGEST = WIRE_MESSAGE + 256; /* limit of a frame, bytes: CURVE adds a little to a message */
static const int64_t LONGEST_REQUEST = 1024;       /* limit of a request, bytes; handshakes are the longest */
static const double PATIENCE = 5;                  /* seconds without a reply until a fetch reconnects */

typedef struct fetch {
    transport_state state;
    bool begins; /* a socket is to be opened */
    void *socket;
    char endpoint[256], key[KEYS_TEXT];
    wire_kind kind;
    int64_t merge, offer;
    uint64_t nonce;
    const transport_part *parts;
    int count;
    /* next slice to request, and next to arrive: replies come in the order of requests */
    uint64_t asked, arrived;
    int ask_part, arrive_part;
    int64_t ask_first, arrive_first;
    double heard;
} fetch;

/* Precedes an answer's bytes until ZeroMQ has sent them. */
typedef struct answer {
    atomic_llong *all, *of_key;
    int64_t bytes;
} answer;

struct transport {
    transport_options options;
    void *zmq, *server, *zap;
    gate *gate;
    atomic_llong queued, *queued_by; /* bytes of waiting answers: in total, and by trusted key */
    char endpoint[256];
    worker worker; /* its lock guards the fetches and the served data */
    fetch *fetches;
    zmq_pollitem_t *polled;
    atomic_llong sent, received, refused;
    double allowance, allowed_at; /* bytes that may be served now */
    int complaints;
};

/* ---- refusing ---------------------------------------------------------------------------------------------------- */

/* Counts every refusal and logs a few: outsiders cannot fill the log. */
static void refuse_message(transport *t, const char *what, const char *why)
{
    enum { SAID = 20 };
    atomic_fetch_add(&t->refused, 1);
    if (t->complaints++ < SAID)
        log_warn("islands: refused %s: %s%s", what, why, t->complaints == SAID ? " (no more will be said)" : "");
}

/* ---- authentication of peers: ZAP (rfc.zeromq.org/spec/27) ------------------------------------------------------- */

enum { ZAP_FRAMES = 7, ZAP_BYTES = 256 };

typedef struct zap_request {
    int frames, length[ZAP_FRAMES];
    uint8_t frame[ZAP_FRAMES][ZAP_BYTES];
} zap_request;

static void receive_zap(zap_request *r, void *socket)
{
    int more = 1;
    size_t size = sizeof more;
    r->frames = 0;
    while (more) {
        uint8_t spare[ZAP_BYTES];
        bool kept = r->frames < ZAP_FRAMES;
        int length = zmq_recv(socket, kept ? r->frame[r->frames] : spare, ZAP_BYTES, 0);
        if (kept)
            r->length[r->frames] = length;
        r->frames++;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0)
            more = 0;
    }
}

/* Answers frames of version, request, domain, address, identity, mechanism and the client's key. */
static void answer_zap(transport *t)
{
    zap_request r;
    receive_zap(&r, t->zap);
    bool whole = r.frames == ZAP_FRAMES && r.length[6] == 32 && r.length[1] >= 0 && r.length[1] <= ZAP_BYTES;
    char text[KEYS_TEXT];
    int key = whole && zmq_z85_encode(text, r.frame[6], 32) ? keys_find(t->options.keys, text) : -1;
    bool trusted = key >= 0;
    char user[16] = "";
    if (!trusted) {
        char from[ZAP_BYTES + 32];
        int length = whole && r.length[3] > 0 && r.length[3] < ZAP_BYTES ? r.length[3] : 0;
        snprintf(from, sizeof from, "a connection from %.*s", length, (const char *)r.frame[3]);
        refuse_message(t, from, "its key is not among the trusted ones (outer.keys)");
    }
    const char *code = trusted ? "200" : "400";
    if (trusted)
        snprintf(user, sizeof user, "%d", key);
    zmq_send(t->zap, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(t->zap, r.frame[1], whole ? (size_t)r.length[1] : 0, ZMQ_SNDMORE);
    zmq_send(t->zap, code, 3, ZMQ_SNDMORE);
    zmq_send(t->zap, "", 0, ZMQ_SNDMORE);
    zmq_send(t->zap, user, strlen(user), ZMQ_SNDMORE); /* returned with every message: key_of */
    zmq_send(t->zap, "", 0, 0);
}

/* ---- serving ----------------------------------------------------------------------------------------------------- */

/* True if a slice may be sent now. Keeps at most a tenth of a second's allowance. */
static bool may_send(transport *t)
{
    double rate = t->options.bandwidth, now = clock_seconds();
    if (rate <= 0)
        return true;
    double most = rate / 10 > WIRE_MESSAGE ? rate / 10 : WIRE_MESSAGE;
    t->allowance += (now - t->allowed_at) * rate;
    t->allowance = t->allowance < most ? t->allowance : most;
    t->allowed_at = now;
    return t->allowance >= WIRE_MESSAGE;
}

/* Runs on a thread of ZeroMQ. */
static void end_answer(void *data, void *hint)
{
    AUTO_FREE answer *a = hint;
    (void)data;
    atomic_fetch_sub(a->all, a->bytes);
    atomic_fetch_sub(a->of_key, a->bytes);
}

/* Makes a message of `bytes` bytes, which counts as queued until it is sent or dropped. */
static bool make_answer(zmq_msg_t *out, transport *t, size_t bytes, int key)
{
    answer *a = malloc(sizeof *a + bytes);
    if (!a)
        return false;
    *a = (answer){&t->queued, &t->queued_by[key], (int64_t)bytes};
    if (zmq_msg_init_data(out, a + 1, bytes, end_answer, a) != 0) {
        free(a);
        return false;
    }
    atomic_fetch_add(a->all, a->bytes);
    atomic_fetch_add(a->of_key, a->bytes);
    return true;
}

/* True if another answer may wait for the key's islands. */
static bool has_room(transport *t, int key)
{
    int64_t most = TRANSPORT_QUEUED, of_key = t->options.keys->count > 1 ? most / 2 : most;
    return atomic_load(&t->queued) + WIRE_MESSAGE <= most && atomic_load(&t->queued_by[key]) + WIRE_MESSAGE <= of_key;
}

static void send_reply(transport *t, zmq_msg_t *from, wire_message *m, int key)
{
    static const char nothing[1];
    zmq_msg_t out;
    m->reply = true;
    worker_lock(&t->worker);
    const void *data = t->options.serve(t->options.context, m);
    m->there = data != NULL;
    size_t bytes = data ? (size_t)m->bytes : 0;
    bool made = make_answer(&out, t, WIRE_HEADER + bytes, key);
    if (made) {
        wire_write(zmq_msg_data(&out), m, t->options.fingerprint);
        memcpy((char *)zmq_msg_data(&out) + WIRE_HEADER, data ? data : nothing, bytes);
    }
    worker_unlock(&t->worker);
    if (!made)
        return;
    size_t length = zmq_msg_size(&out);
    if (zmq_msg_send(from, t->server, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_msg_send(&out, t->server, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&out); /* the asker is gone, or asks again */
        return;
    }
    t->allowance -= (double)length;
    atomic_fetch_add(&t->sent, (long long)length);
}

/* Serves one message of the server's socket: the sender's identity, then the request. False: there is none. */
static bool serve_one(transport *t)
{
    zmq_msg_t from, message;
    wire_message m;
    zmq_msg_init(&from);
    zmq_msg_init(&message);
    bool there = zmq_msg_recv(&from, t->server, ZMQ_DONTWAIT) >= 0;
    if (there && zmq_msg_more(&from) && zmq_msg_recv(&message, t->server, ZMQ_DONTWAIT) >= 0) {
        atomic_fetch_add(&t->received, (long long)zmq_msg_size(&message));
        status s = wire_read(&m, zmq_msg_data(&message), (int64_t)zmq_msg_size(&message), t->options.fingerprint);
        bool more = zmq_msg_more(&message);
        const char *user = zmq_msg_gets(&message, "User-Id"); /* number of the trusted key that the sender has shown */
        int key = user ? atoi(user) : 0;
        key = key >= 0 && key < t->options.keys->count ? key : 0;
        if (s == STATUS_OK && (m.reply || more))
            s = status_fail(STATUS_FAILED, "no request");
        if (s == STATUS_OK && !has_room(t, key))
            s = status_fail(STATUS_FAILED, "answers to key %.8s... wait, and nobody reads them",
                            t->options.keys->trusted[key]);
        if (s != STATUS_OK)
            refuse_message(t, "a request", status_message());
        else
            send_reply(t, &from, &m, key);
        while (more && zmq_msg_recv(&message, t->server, ZMQ_DONTWAIT) >= 0)
            more = zmq_msg_more(&message);
    }
    zmq_msg_close(&message);
    zmq_msg_close(&from);
    return there;
}

/* ---- fetching ---------------------------------------------------------------------------------------------------- */

static void set_option(void *socket, int option, int value)
{
    MUST(zmq_setsockopt(socket, option, &value, sizeof value) == 0, "ZeroMQ refuses option %d: %s", option,
         zmq_strerror(zmq_errno()));
}

/* `longest`: limit of a frame, bytes. */
static void bound_frames(void *socket, int64_t longest)
{
    set_option(socket, ZMQ_LINGER, 0);
    set_option(socket, ZMQ_SNDHWM, 2 * WINDOW);
    set_option(socket, ZMQ_RCVHWM, 2 * WINDOW);
    MUST(zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &longest, sizeof longest) == 0, "ZeroMQ knows no ZMQ_MAXMSGSIZE");
}

static void close_fetch(fetch *f)
{
    if (f->socket)
        zmq_close(f->socket);
    f->socket = NULL;
}

static void connect_to(transport *t, fetch *f)
{
    close_fetch(f);
    f->socket = zmq_socket(t->zmq, ZMQ_DEALER);
    MUST(f->socket, "cannot open a socket of ZeroMQ: %s", zmq_strerror(zmq_errno()));
    bound_frames(f->socket, LONGEST);
    zmq_setsockopt(f->socket, ZMQ_CURVE_SERVERKEY, f->key, KEYS_TEXT - 1);
    zmq_setsockopt(f->socket, ZMQ_CURVE_PUBLICKEY, t->options.keys->mine, KEYS_TEXT - 1);
    zmq_setsockopt(f->socket, ZMQ_CURVE_SECRETKEY, t->options.keys->secret, KEYS_TEXT - 1);
    f->asked = f->arrived; /* slices without a reply are requested again */
    f->ask_part = f->arrive_part;
    f->ask_first = f->arrive_first;
    f->heard = clock_seconds();
    f->begins = false;
    if (strncmp(f->endpoint, "tcp://", 6) != 0 || zmq_connect(f->socket, f->endpoint) != 0)
        refuse_message(t, f->endpoint, "no address of a peer");
}

static int32_t slice_at(const transport_part *p, int64_t first)
{
    return (int32_t)(p->bytes - first < WIRE_SLICE ? p->bytes - first : WIRE_SLICE);
}

/* Skips parts without bytes. */
static void advance_part(int *part, int64_t *first, const fetch *f, int64_t by)
{
    *first += by;
    while (*part < f->count && *first >= f->parts[*part].bytes) {
        *first = 0;
        ++*part;
    }
}

static void send_request(transport *t, fetch *f)
{
    while (f->ask_part < f->count && f->asked - f->arrived < WINDOW) {
        uint8_t out[WIRE_HEADER];
        const transport_part *p = &f->parts[f->ask_part];
        wire_message m = {.kind = f->kind,
                          .nonce = f->nonce,
                          .number = f->asked,
                          .merge = f->merge,
                          .offer = f->offer,
                          .unit = p->unit,
                          .first = f->ask_first,
                          .bytes = slice_at(p, f->ask_first)};
        wire_write(out, &m, t->options.fingerprint);
        if (zmq_send(f->socket, out, sizeof out, ZMQ_DONTWAIT) < 0)
            return;
        atomic_fetch_add(&t->sent, (long long)sizeof out);
        f->asked++;
        advance_part(&f->ask_part, &f->ask_first, f, m.bytes);
    }
}

static void accept_reply(transport *t, fetch *f, const uint8_t *data, int64_t length)
{
    wire_message m;
    status s = wire_read(&m, data, length, t->options.fingerprint);
    if (s == STATUS_OK && (!m.reply || m.nonce != f->nonce || m.kind != f->kind || m.merge != f->merge ||
                           m.offer != f->offer || m.number >= f->asked))
        s = status_fail(STATUS_FAILED, "it was not asked for");
    if (s == STATUS_OK && m.number < f->arrived)
        s = status_fail(STATUS_FAILED, "it has been there before");
    const transport_part *p = f->arrive_part < f->count ? &f->parts[f->arrive_part] : NULL;
    if (s == STATUS_OK && m.number == f->arrived &&
        (!p || m.unit != p->unit || m.first != f->arrive_first || m.bytes != slice_at(p, f->arrive_first)))
        s = status_fail(STATUS_FAILED, "it is not what was asked for");
    if (s != STATUS_OK) {
        refuse_message(t, "a reply", status_message());
        return;
    }
    if (m.number > f->arrived) { /* an earlier slice is lost: go back to it */
        f->begins = true;
        return;
    }
    f->heard = clock_seconds();
    if (!m.there) {
        f->state = TRANSPORT_GONE;
        return;
    }
    memcpy((char *)p->to + m.first, data + WIRE_HEADER, (size_t)m.bytes);
    f->arrived++;
    advance_part(&f->arrive_part, &f->arrive_first, f, m.bytes);
    if (f->arrive_part == f->count)
        f->state = TRANSPORT_DONE;
}

static void work_on(transport *t, fetch *f)
{
    if (f->begins || clock_seconds() - f->heard > PATIENCE)
        connect_to(t, f);
    for (int i = 0; i < 2 * WINDOW && f->state == TRANSPORT_WORKING && !f->begins; i++) {
        zmq_msg_t message;
        zmq_msg_init(&message);
        bool there = zmq_msg_recv(&message, f->socket, ZMQ_DONTWAIT) >= 0;
        if (there) {
            atomic_fetch_add(&t->received, (long long)zmq_msg_size(&message));
            accept_reply(t, f, zmq_msg_data(&message), (int64_t)zmq_msg_size(&message));
        }
        zmq_msg_close(&message);
        if (!there)
            break;
    }
    if (f->state == TRANSPORT_WORKING && !f->begins)
        send_request(t, f);
    else if (f->state != TRANSPORT_WORKING)
        close_fetch(f);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Lists the sockets to poll. Without allowance requests wait in their queues. */
static int list_sockets(transport *t)
{
    int n = 0;
    t->polled[n++] = (zmq_pollitem_t){.socket = t->zap, .events = ZMQ_POLLIN};
    t->polled[n++] = (zmq_pollitem_t){.socket = gate_socket(t->gate), .events = ZMQ_POLLIN};
    if (may_send(t))
        t->polled[n++] = (zmq_pollitem_t){.socket = t->server, .events = ZMQ_POLLIN};
    for (int i = 0; i < t->options.fetches; i++)
        if (t->fetches[i].socket)
            t->polled[n++] = (zmq_pollitem_t){.socket = t->fetches[i].socket, .events = ZMQ_POLLIN};
    return n;
}

static void run_thread(void *context)
{
    transport *t = context;
    while (!atomic_load(&t->worker.stop)) {
        int n = list_sockets(t);
        zmq_poll(t->polled, n, POLL_MS);
        if (t->polled[0].revents & ZMQ_POLLIN)
            answer_zap(t);
        char from[64], what[128];
        if (t->polled[1].revents & ZMQ_POLLIN && gate_look(t->gate, from, t->endpoint) > 0) {
            snprintf(what, sizeof what, "connections from %s", from);
            refuse_message(t, what, "one address, or all of them together, would have more than they may");
        }
        for (int i = 0; i < REQUESTS_A_TURN && may_send(t) && serve_one(t); i++)
            continue;
        worker_lock(&t->worker);
        for (int i = 0; i < t->options.fetches; i++) {
            fetch *f = &t->fetches[i];
            if (f->state == TRANSPORT_WORKING)
                work_on(t, f);
            else
                close_fetch(f);
        }
        worker_unlock(&t->worker);
    }
    for (int i = 0; i < t->options.fetches; i++)
        close_fetch(&t->fetches[i]);
}

/* ---- this node's address, as its route to another node shows it -------------------------------------------------- */

/* Splits "http://USER:PASSWORD@HOST:PORT/" into HOST and PORT. */
static void split_address(char *host, char *port, size_t bytes, const char *url)
{
    const char *from = strstr(url, "://");
    from = from ? from + 3 : url;
    size_t length = strcspn(from, ",/ ");
    for (size_t i = 0; i < length; i++)
        if (from[i] == '@') {
            from += i + 1;
            length -= i + 1;
            i = 0;
        }
    size_t colon = length;
    while (colon > 0 && from[colon - 1] != ':')
        colon--;
    size_t name = colon > 0 ? colon - 1 : length;
    snprintf(host, bytes, "%.*s", (int)name, from);
    snprintf(port, bytes, "%.*s", colon > 0 ? (int)(length - colon) : 4, colon > 0 ? from + colon : "2379");
}

/* Returns the local end of a connected datagram socket, which sends no packet. */
static char *own_end(const struct addrinfo *to)
{
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    char name[NI_MAXHOST] = "";
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool known = fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                 getsockname(fd, (struct sockaddr *)&own, &length) == 0 &&
                 getnameinfo((struct sockaddr *)&own, length, name, sizeof name, NULL, 0, NI_NUMERICHOST) == 0;
    if (fd >= 0)
        close(fd);
    return known ? must_strdup(name) : NULL;
}

static status own_address(char **out, const char *url)
{
    char host[256], port[256];
    struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM}, *found = NULL;
    split_address(host, port, sizeof host, url);
    if (getaddrinfo(host, port, &wanted, &found) == 0 && found)
        *out = own_end(found);
    if (found)
        freeaddrinfo(found);
    return *out ? STATUS_OK
                : status_fail(STATUS_FAILED,
                              "outer.rendezvous: %s cannot be found: set outer.address to the address "
                              "that other islands reach this node at",
                              host);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static status open_server(transport *t)
{
    const keys *k = t->options.keys;
    int yes = 1;
    size_t length = sizeof t->endpoint;
    t->zap = zmq_socket(t->zmq, ZMQ_REP);
    t->server = zmq_socket(t->zmq, ZMQ_ROUTER);
    if (!t->zap || !t->server || zmq_bind(t->zap, "inproc://zeromq.zap.01") != 0)
        return status_fail(STATUS_FAILED, "cannot open sockets of ZeroMQ: %s", zmq_strerror(zmq_errno()));
    set_option(t->zap, ZMQ_LINGER, 0);
    bound_frames(t->server, LONGEST_REQUEST);
    set_option(t->server, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
    TRY(gate_open(&t->gate, t->zmq, t->server));
    if (zmq_setsockopt(t->server, ZMQ_CURVE_SERVER, &yes, sizeof yes) != 0 ||
        zmq_setsockopt(t->server, ZMQ_CURVE_SECRETKEY, k->secret, KEYS_TEXT - 1) != 0 ||
        zmq_setsockopt(t->server, ZMQ_ZAP_DOMAIN, "phalanx", 7) != 0)
        return status_fail(STATUS_FAILED, "ZeroMQ was built without CURVE");
    AUTO_FREE char *found = NULL;
    if (!t->options.address)
        TRY(own_address(&found, t->options.towards));
    const char *address = found ? found : t->options.address;
    AUTO_FREE char *wanted = must_format("tcp://%s:*", address);
    if (zmq_bind(t->server, wanted) != 0)
        return status_fail(STATUS_FAILED, "outer.address %s: %s", address, zmq_strerror(zmq_errno()));
    zmq_getsockopt(t->server, ZMQ_LAST_ENDPOINT, t->endpoint, &length);
    return STATUS_OK;
}

status transport_open(transport **out, const transport_options *options)
{
    AUTO(transport) *t = must_calloc(1, sizeof *t);
    t->options = *options;
    t->allowed_at = clock_seconds();
    worker_init(&t->worker);
    t->fetches = must_calloc((unsigned long)options->fetches + 1, sizeof *t->fetches);
    t->polled = must_calloc((unsigned long)options->fetches + 3, sizeof *t->polled);
    t->queued_by = must_calloc((unsigned long)options->keys->count, sizeof *t->queued_by);
    t->zmq = zmq_ctx_new();
    TRY(open_server(t));
    TRY(worker_start(&t->worker, run_thread, t, "talks to other islands"));
    *out = TAKE(t);
    return STATUS_OK;
}

void transport_close(transport *t)
{
    if (!t)
        return;
    worker_close(&t->worker);
    gate_close(t->gate);
    if (t->server)
        zmq_close(t->server);
    if (t->zap)
        zmq_close(t->zap);
    zmq_ctx_term(t->zmq);
    free(t->fetches);
    free(t->polled);
    free(t->queued_by); /* the context has ended: no answer remains */
    free(t);
}

const char *transport_endpoint(const transport *t)
{
    return t->endpoint;
}

/* ---- the main thread's ------------------------------------------------------------------------------------------- */

void transport_lock(transport *t)
{
    worker_lock(&t->worker);
}

void transport_unlock(transport *t)
{
    worker_unlock(&t->worker);
}

void transport_fetch(transport *t, int which, const char *endpoint, const char *key, const transport_wanted *what)
{
    WORKER_HELD(&t->worker);
    fetch *f = &t->fetches[which];
    void *socket = f->socket; /* the thread closes it */
    *f = (fetch){.state = TRANSPORT_WORKING,
                 .begins = true,
                 .socket = socket,
                 .kind = what->kind,
                 .merge = what->merge,
                 .offer = what->offer,
                 .parts = what->parts,
                 .count = what->count};
    snprintf(f->endpoint, sizeof f->endpoint, "%s", endpoint);
    log_make_printable(f->endpoint); /* foreign text */
    snprintf(f->key, sizeof f->key, "%s", key);
    MUST(getrandom(&f->nonce, sizeof f->nonce, 0) == sizeof f->nonce, "the system has no random numbers");
    advance_part(&f->ask_part, &f->ask_first, f, 0);
    f->arrive_part = f->ask_part;
    if (f->ask_part == what->count)
        f->state = TRANSPORT_DONE;
}

transport_state transport_state_of(transport *t, int which)
{
    WORKER_HELD(&t->worker);
    return t->fetches[which].state;
}

void transport_cancel(transport *t, int which)
{
    WORKER_HELD(&t->worker);
    t->fetches[which].state = TRANSPORT_NONE;
}

transport_counts transport_counted(transport *t)
{
    return (transport_counts){atomic_load(&t->sent), atomic_load(&t->received), atomic_load(&t->refused),
                              atomic_load(&t->queued)};
}
