/* phalanx islands: the etcd that islands meet at, for a try-out; or who is there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/islands/islands.h"
#include "memory/log.h"
#include "tools/options.h"
#include "tools/tools.h"

typedef struct wishes {
    bool embedded;
    const char *listen, *folder, *credentials;
    int64_t port;
} wishes;

/* This process becomes etcd: of one node, bound to the loopback unless told. */
static status become_etcd(const wishes *w)
{
    char *clients = must_format("http://%s:%lld", w->listen, (long long)w->port);
    char *peers = must_format("http://127.0.0.1:%lld", (long long)w->port + 1);
    char *cluster = must_format("phalanx=%s", peers);
    TRY(atomic_make_folders(w->folder));
    log_info("etcd at %s, data in %s: outer.rendezvous=%s", clients, w->folder, clients);
    if (strncmp(w->listen, "127.", 4) != 0)
        log_warn("this etcd has no password and no TLS, and listens on %s: whoever reaches port %lld can end, rename "
                 "and invent islands; 127.0.0.1 is for a try-out, and for real run etcd with certificates",
                 w->listen, (long long)w->port);
    fflush(stdout);
    execlp("etcd", "etcd", "--name", "phalanx", "--data-dir", w->folder, "--listen-client-urls", clients,
           "--advertise-client-urls", clients, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
           "--initial-cluster", cluster, "--auto-compaction-retention", "1", (char *)NULL);
    return status_fail(STATUS_FAILED, "etcd cannot be started: %s (Debian's package is etcd-server)", strerror(errno));
}

int islands_main(int argc, char **argv)
{
    wishes w = {.listen = "127.0.0.1", .folder = "runs/etcd", .port = 2379};
    const options_row rows[] = {
        {"--embedded", OPTIONS_FLAG, NULL, "be an etcd of one node, for a try-out", &w.embedded, 0, 0, NULL},
        {"--listen", OPTIONS_TEXT, "ADDRESS", "of this machine, for its clients (127.0.0.1)", &w.listen, 0, 0, NULL},
        {"--port", OPTIONS_INTEGER, "N", "of its clients (2379); the next one is its own", &w.port, 1, 65534, NULL},
        {"--credentials", OPTIONS_TEXT, "FILE", "with etcd's USER:PASSWORD (else " ISLANDS_CREDENTIALS ")",
         &w.credentials, 0, 0, NULL},
        {"--folder", OPTIONS_TEXT, "FOLDER", "of its data (runs/etcd)", &w.folder, 0, 0, NULL},
    };
    const options_command command = {
        .name = "islands",
        .operands = "[http://HOST:2379[,...]]",
        .summary =
            "Where islands (outer.*) meet. With --embedded, starts etcd for a try-out: for real, run three nodes of\n"
            "it with TLS and passwords. With an address, shows the islands, their offers and their merges.",
        .least = 0,
        .most = 1,
        .row = rows,
        .rows = sizeof rows / sizeof *rows,
    };
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    status s = w.embedded      ? become_etcd(&w)
               : operands == 1 ? islands_show(argv[1], w.credentials)
                               : status_fail(STATUS_USAGE, "give --embedded, or the address of an etcd to look at");
    if (s != STATUS_OK)
        log_error("%s", status_message());
    return (int)s;
}
