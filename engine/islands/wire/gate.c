#include "engine/islands/wire/gate.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "memory/clock.h"
#include "memory/log.h"

enum { MOST = 1024, LEAST = 8, ADDRESS = 64 };
static const double SWEEP = 1; /* seconds between searches for connections with a missed end event */

typedef struct origin {
    char from[ADDRESS];
    int count; /* connections; 0: the entry is free */
} origin;

typedef struct connection {
    int fd;
    origin *origin;
} connection;

struct gate {
    void *socket, *events;
    int count, most;
    connection *list; /* ordered by arrival */
    origin *origins;  /* [most]: one for each possible connection */
    double swept;
    int nothing, held; /* /dev/null, and the descriptor that becomes a connection's while it is looked at */
};

int gate_most(int64_t descriptors)
{
    int64_t half = descriptors / 2;
    return half > MOST ? MOST : half < LEAST ? LEAST : (int)half;
}

status gate_open(gate **out, void *zmq, void *socket)
{
    static const char name[] = "inproc://phalanx.gate";
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    AUTO(gate) *g = must_calloc(1, sizeof *g);
    g->socket = socket;
    g->most = gate_most(limit.rlim_cur > INT32_MAX ? INT32_MAX : (int64_t)limit.rlim_cur);
    g->list = must_calloc((unsigned long)g->most, sizeof *g->list);
    g->origins = must_calloc((unsigned long)g->most, sizeof *g->origins);
    g->nothing = open("/dev/null", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    g->held = dup(g->nothing);
    g->events = zmq_socket(zmq, ZMQ_PAIR);
    int all = 0;
    bool works = g->held >= 0 && zmq_socket_monitor(socket, name, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) == 0 &&
                 g->events &&
                 zmq_setsockopt(g->events, ZMQ_RCVHWM, &all, sizeof all) == 0 && /* so that no event is lost */
                 zmq_setsockopt(g->events, ZMQ_LINGER, &all, sizeof all) == 0 && zmq_connect(g->events, name) == 0;
    if (!works)
        return status_fail(STATUS_FAILED, "connections cannot be watched: %s", zmq_strerror(zmq_errno()));
    *out = TAKE(g);
    return STATUS_OK;
}

void gate_close(gate *g)
{
    if (!g)
        return;
    zmq_socket_monitor(g->socket, NULL, 0);
    if (g->events)
        zmq_close(g->events);
    close(g->held);
    close(g->nothing);
    free(g->origins);
    free(g->list);
    free(g);
}

void *gate_socket(const gate *g)
{
    return g->events;
}

/* ---- one connection ---- */

static bool split_ip(char host[ADDRESS], int *port, const struct sockaddr_storage *at)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)at;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)at;
    *port = ntohs(at->ss_family == AF_INET ? four->sin_port : six->sin6_port);
    const void *bytes = at->ss_family == AF_INET ? (const void *)&four->sin_addr : (const void *)&six->sin6_addr;
    return (at->ss_family == AF_INET || at->ss_family == AF_INET6) && inet_ntop(at->ss_family, bytes, host, ADDRESS);
}

/* True if `fd` is a connection to the port now, from that address; `cut`: then it is shut down, and ZeroMQ sees its end
 * and closes it. ZeroMQ may have closed it, and its number may have been reused: what is looked at is a duplicate, on a
 * descriptor that the gate has, since there may be no other left. */
static bool look_at_connection(const gate *g, char from[ADDRESS], int fd, int port, bool cut)
{
    struct sockaddr_storage own, peer;
    socklen_t a = sizeof own, b = sizeof peer;
    char host[ADDRESS];
    int here = -1, there;
    bool ours = dup3(fd, g->held, O_CLOEXEC) >= 0 && getsockname(g->held, (struct sockaddr *)&own, &a) == 0 &&
                split_ip(host, &here, &own) && here == port &&
                getpeername(g->held, (struct sockaddr *)&peer, &b) == 0 && split_ip(from, &there, &peer);
    if (ours && cut)
        shutdown(g->held, SHUT_RDWR);
    (void)dup3(g->nothing, g->held, O_CLOEXEC);
    return ours;
}

/* ---- all connections --------------------------------------------------------------------------------------------- */

static void drop_connection(gate *g, int i)
{
    g->list[i].origin->count--;
    g->count--;
    memmove(&g->list[i], &g->list[i + 1], (size_t)(g->count - i) * sizeof *g->list);
}

static void forget_descriptor(gate *g, int fd)
{
    for (int i = g->count - 1; i >= 0; i--)
        if (g->list[i].fd == fd)
            drop_connection(g, i);
}

static void sweep_connections(gate *g, int port)
{
    double now = clock_seconds();
    if (now < g->swept + SWEEP)
        return;
    g->swept = now;
    for (int i = g->count - 1; i >= 0; i--) {
        char from[ADDRESS];
        if (!look_at_connection(g, from, g->list[i].fd, port, false) || strcmp(from, g->list[i].origin->from) != 0)
            drop_connection(g, i);
    }
}

/* Returns the address's entry, or a free one; one exists below the limit of connections. */
static origin *find_origin(gate *g, const char *from)
{
    origin *found = NULL;
    for (int i = 0; i < g->most; i++) {
        origin *o = &g->origins[i];
        if (o->count > 0 && !strcmp(o->from, from))
            return o;
        if (o->count == 0)
            found = o;
    }
    return found;
}

/* Cuts off the latest connection of the address with the most. */
static void cut_busiest(gate *g, char from[ADDRESS], int port)
{
    const origin *most = g->list[0].origin;
    for (int i = 0; i < g->count; i++)
        if (g->list[i].origin->count > most->count)
            most = g->list[i].origin;
    int last = g->count - 1;
    while (g->list[last].origin != most)
        last--;
    memcpy(from, most->from, ADDRESS);
    look_at_connection(g, (char[ADDRESS]){0}, g->list[last].fd, port, true);
    drop_connection(g, last);
}

/* Admits a new connection. True: it, or another, is cut off for it, with the address in `from`. */
static bool admit_connection(gate *g, char from[ADDRESS], int fd, int port)
{
    char host[ADDRESS];
    bool cut_one = false;
    if (!look_at_connection(g, host, fd, port, false))
        return false;         /* gone already */
    forget_descriptor(g, fd); /* its end event was missed */
    const origin *known = find_origin(g, host);
    if (g->count >= g->most || (known && known->count >= g->most / 2))
        sweep_connections(g, port);
    if (g->count >= g->most) {
        cut_busiest(g, from, port);
        cut_one = true;
    }
    origin *o = find_origin(g, host);
    if (o->count >= g->most / 2) {
        memcpy(from, host, ADDRESS);
        look_at_connection(g, host, fd, port, true);
        return true;
    }
    if (o->count++ == 0)
        memcpy(o->from, host, ADDRESS);
    g->list[g->count++] = (connection){fd, o};
    return cut_one;
}

/* Reads an event of two frames: its number and a value, a descriptor for some events; and the endpoint. */
static bool next_event(int *event, int *fd, gate *g)
{
    uint8_t frame[6], endpoint[256];
    uint16_t number;
    int32_t value;
    if (zmq_recv(g->events, frame, sizeof frame, ZMQ_DONTWAIT) != (int)sizeof frame)
        return false;
    (void)zmq_recv(g->events, endpoint, sizeof endpoint, ZMQ_DONTWAIT);
    memcpy(&number, frame, sizeof number);
    memcpy(&value, frame + sizeof number, sizeof value);
    *event = number;
    *fd = value;
    return true;
}

int gate_look(gate *g, char from[64], const char *endpoint)
{
    enum { EVENTS_A_TURN = 256 };
    const char *colon = strrchr(endpoint, ':');
    int event, fd, refused = 0, port = colon ? atoi(colon + 1) : -1;
    for (int i = 0; i < EVENTS_A_TURN && next_event(&event, &fd, g); i++)
        if (event == ZMQ_EVENT_ACCEPTED)
            refused += admit_connection(g, from, fd, port);
        else
            forget_descriptor(g, fd);
    return refused;
}
