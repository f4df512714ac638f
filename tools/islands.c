/* phalanx islands: the etcd that islands meet at, for a try-out; or who is there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/system/atomic.h"
#include "engine/islands/etcd.h"
#include "engine/islands/roster.h"
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

/* ---- who is there ----------------------------------------------------------------------------------------------- */

/* What any member has written is foreign text. */
static void print_name(const char *name, int width)
{
    char *text = must_strdup(name);
    log_make_printable(text);
    printf("%-*s", width, text);
    free(text);
}

static void print_member(const roster_member *m, int slot)
{
    if (slot == ROSTER_SERVER)
        printf("  %6s ", "server");
    else
        printf("  %6d ", slot);
    print_name(m->name, 24);
    printf(" %5d  ", m->ranks);
    if (m->taking)
        printf("takes the model");
    else if (m->ready)
        printf("has the model after merge %lld", (long long)m->merge);
    else
        printf("joins");
    if (m->offers)
        printf("; offers its change after step %lld for merge %lld", (long long)m->offer, (long long)m->offer_merge);
    if (m->parting)
        printf(", and leaves then");
    putchar('\n');
}

static void print_run(const char *name, const json_t *pairs)
{
    roster r;
    roster_read_pairs(&r, pairs, NULL);
    fputs("outer.run ", stdout);
    print_name(name, 0);
    if (r.merge < 0)
        printf(": no merge yet\n");
    else
        printf(": merge %lld, after step %lld\n", (long long)r.merge, (long long)r.step);
    printf("  %6s %-24s %5s  state\n", "slot", "island", "ranks");
    for (int s = 0; s < ROSTER_MEMBERS; s++)
        if (r.member[s].here)
            print_member(&r.member[s], s);
}

/* The run that a key "phalanx/RUN/live/REST" is of, and where REST begins; false for another key. */
static bool split_key(char **run, const char **rest, const char *key)
{
    static const char before[] = "phalanx/", between[] = "/live/";
    const char *end = key ? strstr(key, between) : NULL;
    if (!end || strncmp(key, before, strlen(before)) != 0 || end < key + strlen(before))
        return false;
    *run = must_format("%.*s", (int)(end - key - (int)strlen(before)), key + strlen(before));
    *rest = end + strlen(between);
    return true;
}

/* {run: [pairs]}, as a roster is read from them; the caller's. */
static json_t *group_by_run(const json_t *raw)
{
    json_t *runs = json_object(), *pair;
    size_t i;
    json_array_foreach(raw, i, pair)
    {
        char *run;
        const char *rest, *value = json_string_value(json_object_get(pair, "value"));
        if (!split_key(&run, &rest, json_string_value(json_object_get(pair, "key"))))
            continue;
        if (!json_object_get(runs, run))
            json_object_set_new(runs, run, json_array());
        json_t *parsed = value ? json_loads(value, 0, NULL) : NULL;
        json_array_append_new(json_object_get(runs, run),
                              json_pack("{s:s, s:o, s:O}", "key", rest, "value", parsed ? parsed : json_null(),
                                        "revision", json_object_get(pair, "revision")));
        free(run);
    }
    return runs;
}

static status show(const wishes *w, const char *addresses)
{
    etcd *e = NULL;
    json_t *raw = NULL, *pairs;
    const char *run;
    credentials login;
    TRY(credentials_take(&login, w->credentials));
    status opened = etcd_open(&e, addresses);
    if (opened == STATUS_OK)
        opened = etcd_log_in(e, &login);
    credentials_wipe(&login);
    if (opened != STATUS_OK)
        etcd_close(e);
    TRY(opened);
    status s = etcd_read(&raw, e, "phalanx/");
    json_t *runs = group_by_run(raw);
    json_object_foreach(runs, run, pairs) print_run(run, pairs);
    if (s == STATUS_OK && json_object_size(runs) == 0)
        printf("no islands have met here\n");
    json_decref(runs);
    json_decref(raw);
    etcd_close(e);
    return s;
}

int islands_main(int argc, char **argv)
{
    wishes w = {.listen = "127.0.0.1", .folder = "runs/etcd", .port = 2379};
    const options_row rows[] = {
        {"--embedded", OPTIONS_FLAG, NULL, "be an etcd of one node, for a try-out", &w.embedded, 0, 0, NULL},
        {"--listen", OPTIONS_TEXT, "ADDRESS", "of this machine, for its clients (127.0.0.1)", &w.listen, 0, 0, NULL},
        {"--port", OPTIONS_INTEGER, "N", "of its clients (2379); the next one is its own", &w.port, 1, 65534, NULL},
        {"--credentials", OPTIONS_TEXT, "FILE", "with etcd's USER:PASSWORD (else " CREDENTIALS_ENVIRONMENT ")",
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
               : operands == 1 ? show(&w, argv[1])
                               : status_fail(STATUS_USAGE, "give --embedded, or the address of an etcd to look at");
    if (s != STATUS_OK)
        log_error("%s", status_message());
    return (int)s;
}
