#include "tests/jobs/rendezvous.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/islands/islands.h"
#include "engine/islands/meet/etcd.h"
#include "engine/islands/wire/keys.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/launch.h"

struct rendezvous {
    launch *etcd;
    char *top, *address;
    int port;
};

bool rendezvous_is_there(void)
{
    return system("etcd --version 2>/dev/null | grep -qE 'etcd Version: (3\\.([4-9]|[1-9][0-9])|[4-9])'") == 0;
}

/* Is the port of the loopback free? 0: any that is. */
static int bind_port(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    bool bound = bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    getsockname(fd, (struct sockaddr *)&at, &length);
    close(fd);
    return bound ? ntohs(at.sin_port) : -1;
}

static int find_ports(void)
{
    for (int i = 0; i < 100; i++) {
        int port = bind_port(0);
        if (port > 0 && port < 65535 && bind_port(port + 1) > 0)
            return port;
    }
    MUST(false, "no two neighbouring ports of the loopback are free");
    return 0;
}

static bool answers(const rendezvous *r)
{
    etcd *e = NULL;
    json_t *pairs = NULL;
    bool there = etcd_open(&e, r->address) == STATUS_OK && etcd_read(&pairs, e, "phalanx/") == STATUS_OK;
    json_decref(pairs);
    etcd_close(e);
    return there;
}

void rendezvous_start(rendezvous *r)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    r->etcd = launch_start(3600, "exec %s islands --embedded --port %d --folder %s/etcd", program, r->port, r->top);
    double until = clock_seconds() + 60;
    while (!answers(r)) {
        MUST(clock_seconds() < until, "etcd does not answer at %s", r->address);
        usleep(100000);
    }
}

void rendezvous_kill(rendezvous *r)
{
    kill(launch_pid(r->etcd), SIGKILL);
    launch_result result = launch_finish(r->etcd);
    launch_free(&result);
}

rendezvous *rendezvous_open(const char *top)
{
    rendezvous *r = must_calloc(1, sizeof *r);
    AUTO_FREE char *folder = must_format("%s/keys", top);
    r->top = must_strdup(top);
    r->port = find_ports();
    r->address = must_format("http://127.0.0.1:%d", r->port);
    MUST(islands_make_keys(folder) == STATUS_OK, "%s", status_message());
    rendezvous_start(r);
    return r;
}

void rendezvous_close(rendezvous *r)
{
    rendezvous_kill(r);
    free(r->address);
    free(r->top);
    free(r);
}

const char *rendezvous_address(const rendezvous *r)
{
    return r->address;
}
