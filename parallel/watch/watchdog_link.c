#include "parallel/watch/watchdog_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "memory/machine.h"
#include "memory/clock.h"
#include "memory/log.h"

enum { ADDRESSES = 16, HOST_BYTES = 64, CONNECT_MS = 4000, STAR_SECONDS = 60 };

/* Rank 0's message to the others: its addresses. */
typedef struct invitation {
    uint64_t token;
    char host[HOST_BYTES]; /* the boot's identity: a rank with the same one is on this machine */
    int32_t ok, count;
    struct sockaddr_storage addresses[ADDRESSES];
} invitation;

/* ---- frames ---- */

void watchdog_link_close(watchdog_link *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

static bool flush_owed(watchdog_link *l)
{
    while (l->owed) {
        const char *at = (const char *)&l->out + sizeof l->out - l->owed;
        ssize_t sent = send(l->fd, at, l->owed, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        l->owed -= (unsigned)sent;
    }
    return true;
}

bool watchdog_link_send(watchdog_link *l, const watchdog_frame *f)
{
    if (l->fd < 0)
        return false;
    if (!flush_owed(l))
        return false;
    if (l->owed)
        return true; /* the other side does not read: a newer frame will do */
    l->out = *f;
    l->owed = sizeof l->out;
    return flush_owed(l);
}

/* Ends a received frame's texts, and checks that its indices are within their tables. */
static bool check_frame(watchdog_frame *f)
{
    char *ends[] = {f->action + sizeof f->action, f->op + sizeof f->op, f->host + sizeof f->host,
                    f->device + sizeof f->device, f->words + sizeof f->words};
    for (unsigned i = 0; i < sizeof ends / sizeof *ends; i++)
        ends[i][-1] = 0;
    return f->phase >= 0 && f->phase < INCIDENT_PHASES && f->verdict >= 0 && f->verdict < INCIDENT_VERDICTS;
}

int watchdog_link_receive(watchdog_link *l, watchdog_frame *out)
{
    if (l->fd < 0)
        return -1;
    for (;;) {
        ssize_t got = recv(l->fd, (char *)&l->in + l->got, sizeof l->in - l->got, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        if (got <= 0)
            return -1;
        l->got += (unsigned)got;
        if (l->got == sizeof l->in) {
            l->got = 0;
            *out = l->in;
            return check_frame(out) ? 1 : -1;
        }
    }
}

/* Waits for one frame of this kind that knows the token. */
static bool await_frame(watchdog_link *l, watchdog_frame *f, watchdog_frame_kind kind, uint64_t token, double seconds)
{
    for (double until = clock_seconds() + seconds, left; (left = until - clock_seconds()) > 0;) {
        int got = watchdog_link_receive(l, f);
        if (got)
            return got > 0 && f->kind == (int32_t)kind && f->token == token;
        poll(&(struct pollfd){.fd = l->fd, .events = POLLIN}, 1, (int)(left * 1000) + 1);
    }
    return false;
}

/* ---- the star ---- */

static void identify_host(char out[HOST_BYTES])
{
    memset(out, 0, HOST_BYTES);
    if (!machine_boot(out))
        gethostname(out, HOST_BYTES - 1);
}

static void add_address(invitation *all, const struct sockaddr *address, uint16_t port)
{
    if (all->count == ADDRESSES)
        return;
    struct sockaddr_storage *to = &all->addresses[all->count];
    if (address->sa_family == AF_INET) {
        memcpy(to, address, sizeof(struct sockaddr_in));
        ((struct sockaddr_in *)to)->sin_port = port;
    } else {
        memcpy(to, address, sizeof(struct sockaddr_in6));
        ((struct sockaddr_in6 *)to)->sin6_port = port;
    }
    all->count++;
}

/* The loopback address comes first: only ranks on this machine try it. Then the interfaces' addresses, IPv4 before
 * IPv6. */
static void list_addresses(invitation *all, uint16_t port, bool one_machine)
{
    struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    add_address(all, (const struct sockaddr *)&loopback, port);
    struct ifaddrs *list = NULL;
    if (one_machine || getifaddrs(&list))
        return;
    for (int family = 0; family < 2; family++)
        for (const struct ifaddrs *a = list; a; a = a->ifa_next) {
            bool wanted = a->ifa_addr && a->ifa_addr->sa_family == (family ? AF_INET6 : AF_INET) &&
                          (a->ifa_flags & IFF_UP) && !(a->ifa_flags & IFF_LOOPBACK);
            if (wanted && family && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)a->ifa_addr)->sin6_addr))
                wanted = false;
            if (wanted)
                add_address(all, a->ifa_addr, port);
        }
    freeifaddrs(list);
}

/* Returns a bound socket, or -1. */
static int bind_socket(const struct sockaddr *to, socklen_t bytes)
{
    int off = 0, fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool six = to->sa_family == AF_INET6;
    if (fd >= 0 && ((six && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off)) || bind(fd, to, bytes))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Listens on the loopback interface if all ranks are on this machine; else on all, for both families if there is IPv6,
 * until every rank has joined. Returns the descriptor or -1, and the port in network order. */
static int open_listener(uint16_t *port, bool one_machine)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(one_machine ? INADDR_LOOPBACK : INADDR_ANY)};
    socklen_t bytes = sizeof six;
    int fd = one_machine ? -1 : bind_socket((const struct sockaddr *)&six, sizeof six);
    if (fd < 0)
        fd = bind_socket((const struct sockaddr *)&four, sizeof four);
    if (fd < 0)
        return -1;
    if (listen(fd, SOMAXCONN) || getsockname(fd, (struct sockaddr *)&six, &bytes)) {
        close(fd);
        return -1;
    }
    *port = six.sin6_port; /* both families' addresses have it at the same offset */
    return fd;
}

/* Each rank needs a descriptor. */
static void allow_descriptors(int count)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)count + 256;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int accept_ranks(watchdog_link *links, int listener, int ranks, uint64_t token)
{
    int present = 1;
    for (double until = clock_seconds() + STAR_SECONDS, left;
         present < ranks && (left = until - clock_seconds()) > 0;) {
        if (poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, (int)(left * 1000) + 1) <= 0)
            continue;
        watchdog_link l = {.fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)};
        watchdog_frame hello, welcome = {.kind = WATCHDOG_WELCOME, .token = token};
        gethostname(welcome.host, sizeof welcome.host - 1);
        if (l.fd < 0)
            continue;
        if (!await_frame(&l, &hello, WATCHDOG_HELLO, token, 2) || hello.rank < 1 || hello.rank >= ranks ||
            links[hello.rank].fd >= 0 || !watchdog_link_send(&l, &welcome)) {
            close(l.fd);
            continue;
        }
        memcpy(l.host, hello.host, sizeof l.host);
        links[hello.rank] = l;
        present++;
    }
    return present;
}

static int connect_within(const struct sockaddr_storage *address, int milliseconds)
{
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t bytes = address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)address, bytes) && errno != EINPROGRESS)
        error = errno;
    else if (poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, milliseconds) != 1)
        error = ETIMEDOUT;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error});
    if (!error)
        return fd;
    close(fd);
    return -1;
}

static status join_launch(watchdog_link *l, const invitation *to, int rank)
{
    char host[HOST_BYTES];
    identify_host(host);
    bool here = memcmp(host, to->host, HOST_BYTES) == 0;
    for (int i = here ? 0 : 1; i < to->count; i++) {
        watchdog_frame hello = {.kind = WATCHDOG_HELLO, .rank = rank, .token = to->token}, welcome;
        gethostname(hello.host, sizeof hello.host - 1);
        *l = (watchdog_link){.fd = connect_within(&to->addresses[i], CONNECT_MS)};
        if (l->fd < 0)
            continue;
        if (watchdog_link_send(l, &hello) &&
            await_frame(l, &welcome, WATCHDOG_WELCOME, to->token, 0.5 * STAR_SECONDS)) {
            memcpy(l->host, welcome.host, sizeof l->host);
            return STATUS_OK;
        }
        watchdog_link_close(l);
    }
    return status_fail(STATUS_FAILED,
                       "the watchdog cannot connect to rank 0 on any of its %d addresses: allow TCP between the nodes",
                       to->count);
}

status watchdog_link_star(watchdog_link *links, comm *c)
{
    comm_group *world = comm_world(c);
    int rank = comm_rank(c), ranks = comm_ranks(c), listener = -1;
    invitation all = {0};
    status s = STATUS_OK;
    for (int i = 0; i < (rank ? 1 : ranks); i++)
        links[i] = (watchdog_link){.fd = -1};
    if (ranks == 1)
        return STATUS_OK;
    if (rank == 0) {
        uint16_t port = 0;
        bool one_machine = comm_local_ranks(c) == ranks;
        allow_descriptors(ranks);
        listener = open_listener(&port, one_machine);
        all.ok = listener >= 0 && getrandom(&all.token, sizeof all.token, 0) == sizeof all.token;
        identify_host(all.host);
        if (all.ok)
            list_addresses(&all, port, one_machine);
    }
    comm_broadcast_bytes(world, &all, sizeof all, 0);
    if (!all.ok)
        s = status_fail(STATUS_FAILED, "the watchdog cannot open a TCP port");
    else if (rank)
        s = join_launch(&links[0], &all, rank);
    else if (accept_ranks(links, listener, ranks, all.token) < ranks)
        s = status_fail(STATUS_FAILED, "the watchdog was not joined by every rank within %d s", (int)STAR_SECONDS);
    if (listener >= 0)
        close(listener);
    s = comm_all_status(world, s);
    for (int i = 0; s != STATUS_OK && i < (rank ? 1 : ranks); i++)
        watchdog_link_close(&links[i]);
    return s;
}
