/* Commands that islands need beside training. phalanx islands runs the etcd of the islands, for a trial, or lists its
 * members; phalanx keys makes an island's pair of keys; phalanx server holds the model for islands that push and take
 * it at their own pace (outer.topology server). */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/islands/islands.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/job.h"
#include "tools/tools.h"

typedef struct wishes {
    bool embedded;
    const char *listen, *folder, *credentials;
    int64_t port;
} wishes;

/* Fails if the port is taken: etcd's own message has no remedy. */
static status check_port(const char *address, int64_t port, const char *use)
{
    char text[16];
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *at = NULL;
    snprintf(text, sizeof text, "%lld", (long long)port);
    if (getaddrinfo(address, text, &wanted, &at) != 0)
        return STATUS_OK; /* etcd reports it */
    const int yes = 1;
    AUTO_CLOSE fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool taken = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                 bind(fd, at->ai_addr, at->ai_addrlen) != 0 && errno == EADDRINUSE;
    freeaddrinfo(at);
    return !taken ? STATUS_OK
                  : status_fail(STATUS_FAILED,
                                "port %s of %s, for %s, is another program's: end that one, use it if it is the etcd "
                                "of your islands, or name another port by --port N (N and N + 1 are to be free)",
                                text, address, use);
}

/* Replaces this process by etcd: one node, bound to the loopback unless told otherwise. */
static status become_etcd(const wishes *w)
{
    TRY(check_port(w->listen, w->port, "etcd's clients"));
    TRY(check_port("127.0.0.1", w->port + 1, "etcd itself"));
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
        OPTION_FLAG("--embedded", "be an etcd of one node, for a try-out", &w.embedded),
        OPTION_TEXT("--listen", "ADDRESS", "of this machine, for its clients (127.0.0.1)", &w.listen),
        OPTION_INTEGER("--port", "N", "of its clients (2379); the next one is its own", &w.port, 1, 65534),
        OPTION_TEXT("--credentials", "FILE", "with etcd's USER:PASSWORD (else " ISLANDS_CREDENTIALS ")",
                    &w.credentials),
        OPTION_TEXT("--folder", "FOLDER", "of its data (runs/etcd)", &w.folder),
    };
    const options_command command = {
        .name = "islands",
        .operands = "[http://HOST:2379[,...]]",
        .summary =
            "Where islands (outer.*) meet. With --embedded, starts etcd for a try-out: for real, run three nodes of\n"
            "it with TLS and passwords. With an address, shows the islands, their offers and their merges.",
        .least = 0,
        .most = 1,
        OPTION_ROWS(rows),
    };
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    status s = w.embedded      ? become_etcd(&w)
               : operands == 1 ? islands_show(argv[1], w.credentials)
                               : status_fail(STATUS_USAGE, "give --embedded, or the address of an etcd to look at");
    return options_exit(s);
}

/* ---- phalanx keys ----------------------------------------------------------------------------------------------- */

int keys_main(int argc, char **argv)
{
    const options_command command = {
        .name = "keys",
        .operands = "FOLDER",
        .summary =
            "Makes an island's keys in FOLDER: island.secret, which stays there, and island.public, which goes to\n"
            "the other islands, as FOLDER/peers/NAME.public of theirs. outer.keys names the folder.",
        .least = 1,
        .most = 1,
    };
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    status s = islands_make_keys(argv[1]);
    if (s == STATUS_OK)
        log_info("made %s/island.secret and %s/island.public; other islands' public keys go to %s/peers/NAME.public",
                 argv[1], argv[1], argv[1]);
    return options_exit(s);
}

/* ---- phalanx server --------------------------------------------------------------------------------------------- */

static const options_command serving = {
    .name = "server",
    .operands = "CONFIG.yaml [key=value ...]",
    .summary =
        "Holds the model of islands with outer.topology=server: they push their changes and take the model "
        "when they\n"
        "like, and wait for nobody. CONFIG is theirs, but for run.folder; data and parallel.* are not "
        "looked at. Under\n"
        "mpirun each rank holds a part. What it merges is on the disk before the island is told, so a server that "
        "is\n"
        "killed goes on with the same model. It saves every checkpoint.every merges, and ends with 0 when\n"
        "train.steps are done and the islands have left.",
    .least = 1,
    .most = -1,
};

static status check(const config *c)
{
    if (c->outer.every == 0 || c->outer.topology != CONFIG_OUTER_SERVER)
        return status_fail(
            STATUS_USAGE,
            "a server is for islands that have one: set outer.every and outer.topology=server, there as here");
    if (c->checkpoint.export_every > 0)
        return status_fail(
            STATUS_USAGE,
            "checkpoint.export.every %d: islands export, a server does not: say "
            "checkpoint.export.every=0 here; phalanx convert --from its checkpoints makes the same folder",
            c->checkpoint.export_every);
    if (c->checkpoint.mirror)
        return status_fail(
            STATUS_USAGE,
            "checkpoint.mirror %s: islands have mirrors, a server has none: say checkpoint.mirror=null here",
            c->checkpoint.mirror);
    return STATUS_OK;
}

static status serve(bool *stopped, const config *c, comm *world, watchdog *w, double began)
{
    (void)began;
    TRY(comm_all_status(comm_world(world), check(c)));
    return islands_serve(stopped, c, world, w);
}

int server_main(int argc, char **argv)
{
    return job_run(&serving, argc, argv, serve);
}
