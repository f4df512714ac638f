#include "engine/islands/meet/etcd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/islands/islands.h"
#include "engine/system/http.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_REPLY = 4 << 20, MOST_KEYS = 4096, ETCD_NODES = 16 };
enum { MISSES = 2 }; /* misses in a row until a node counts as away: one may be a hiccup */
static const double CONNECT = 2, ANSWER = 5, SIGN = 1, TURN = 1; /* seconds; TURN: between looks at the nodes */

struct etcd {
    http *http;
    int nodes, at; /* at: the node that answered last */
    char *address[ETCD_NODES];
    char *user, *password, *token;
    int next; /* node to look at next */
    double asked;
    int misses[ETCD_NODES];
    char cluster[24]; /* id of the cluster, which must stay; "": unknown */
    int64_t revision; /* highest revision that was read */
};

/* ---- login ------------------------------------------------------------------------------------------------------- */

void etcd_wipe_login(etcd_login *c)
{
    http_wipe(&c->user);
    http_wipe(&c->password);
}

/* Splits "USER:PASSWORD"; the password may have colons. */
static status split_login(etcd_login *out, const char *text, const char *from)
{
    const char *colon = strchr(text, ':');
    if (!colon || colon == text || !colon[1] || strpbrk(text, "\r\n"))
        return status_fail(STATUS_USAGE, "%s holds no USER:PASSWORD of etcd, one line", from);
    *out = (etcd_login){must_format("%.*s", (int)(colon - text), text), must_strdup(colon + 1)};
    return STATUS_OK;
}

static status read_login(etcd_login *out, const char *path)
{
    char text[1024] = "";
    struct stat s;
    AUTO_CLOSE file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return status_fail(STATUS_USAGE, "outer.credentials: cannot read %s: %s", path, strerror(errno));
    bool known = fstat(file, &s) == 0;
    ssize_t length = read(file, text, sizeof text - 1);
    if (!known || length < 0)
        return status_fail(STATUS_FAILED, "outer.credentials: cannot read %s: %s", path, strerror(errno));
    while (length > 0 && strchr("\r\n", text[length - 1]))
        text[--length] = 0;
    status result = (s.st_mode & 077) != 0 ? status_fail(STATUS_USAGE,
                                                         "outer.credentials: %s can be read by others than its owner: "
                                                         "chmod 600 it",
                                                         path)
                                           : split_login(out, text, path);
    explicit_bzero(text, sizeof text);
    return result;
}

status etcd_take_login(etcd_login *out, const char *file)
{
    char *copy = http_take_variable(ISLANDS_CREDENTIALS, true);
    *out = (etcd_login){0};
    status s = file ? read_login(out, file) : copy ? split_login(out, copy, ISLANDS_CREDENTIALS) : STATUS_OK;
    http_wipe(&copy);
    return s;
}

/* ---- one request ------------------------------------------------------------------------------------------------- */

static json_t *base64(const char *value)
{
    size_t bytes = strlen(value);
    AUTO_FREE char *coded = must_alloc(bytes / 3 * 4 + 5);
    EVP_EncodeBlock((unsigned char *)coded, (const unsigned char *)value, (int)bytes);
    return json_string(coded);
}

/* Decodes a base64 member; "" if it is missing or invalid. */
static char *decode_member(const json_t *entry, const char *member)
{
    const char *text = json_string_value(json_object_get(entry, member));
    text = text ? text : "";
    char *out = must_calloc(strlen(text) / 4 * 3 + 1, 1);
    if (EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)text, (int)strlen(text)) < 0)
        *out = 0;
    return out;
}

/* `most`: limit of an answer's time, seconds. */
static void post_body(http_answer *out, etcd *e, const char *address, const char *path, const char *body, double most)
{
    AUTO_FREE char *url = must_format("%s%s", address, path);
    const http_pair header[] = {{"Content-Type", "application/json"}, {"Authorization", e->token}};
    http_ask(out, e->http,
             &(http_request){.method = "POST",
                             .url = url,
                             .header = header,
                             .headers = e->token ? 2 : 1,
                             .body = body,
                             .body_bytes = (int64_t)strlen(body),
                             .direct = true, /* reach the cluster directly */
                             .connect = most < CONNECT ? most : CONNECT,
                             .answer = most,
                             .most = MOST_REPLY});
}

/* Fails if the answer is of another cluster than those before: its keys are not this run's. */
static status check_cluster(etcd *e, const json_t *answer, const char *address)
{
    const char *said = json_string_value(json_object_get(json_object_get(answer, "header"), "cluster_id"));
    if (said && !*e->cluster)
        snprintf(e->cluster, sizeof e->cluster, "%s", said);
    return !said || strncmp(said, e->cluster, sizeof e->cluster - 1) == 0
               ? STATUS_OK
               : status_fail(STATUS_FAILED,
                             "etcd at %s is another cluster than the one that this island began with: if it has "
                             "replaced that one, start the islands again",
                             address);
}

/* Asks the nodes in turn. */
static status post_json(json_t **out, etcd *e, const char *path, const char *body)
{
    status s = STATUS_FAILED;
    for (int i = 0; i < e->nodes; i++) {
        const char *address = e->address[e->at];
        RELEASED_BY(http_answer_free) http_answer reply = {0};
        post_body(&reply, e, address, path, body, ANSWER);
        json_auto_t *answer = reply.failure ? NULL : json_loads(reply.text ? reply.text : "", 0, NULL);
        if (reply.code == 200 && json_is_object(answer)) {
            s = check_cluster(e, answer, address);
            if (s == STATUS_OK) {
                *out = TAKE(answer);
                return STATUS_OK;
            }
            e->at = (e->at + 1) % e->nodes;
            continue;
        }
        const char *said = json_string_value(json_object_get(answer, "message"));
        if (!said)
            said = json_string_value(json_object_get(answer, "error"));
        char words[201];
        snprintf(words, sizeof words, "%s", said ? said : "no JSON");
        log_make_printable(words);
        s = reply.failure ? status_fail(STATUS_FAILED, "etcd at %s: %s", address, reply.failure)
                          : status_fail(STATUS_FAILED, "etcd at %s answers %ld: %s", address, reply.code, words);
        e->at = (e->at + 1) % e->nodes;
    }
    return s;
}

/* Gets a user's token; an expired one is replaced. */
static status log_in(etcd *e)
{
    json_auto_t *body = json_pack("{s:s, s:s}", "name", e->user, "password", e->password), *answer = NULL;
    AUTO_FREE char *words = json_dumps(body, JSON_COMPACT);
    TRY(post_json(&answer, e, "/v3/auth/authenticate", words));
    static const char sound[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=._-";
    const char *token = json_string_value(json_object_get(answer, "token"));
    free(e->token); /* the token becomes a line of a header */
    e->token = token && *token && !token[strspn(token, sound)] ? must_strdup(token) : NULL;
    return e->token ? STATUS_OK : status_fail(STATUS_FAILED, "etcd answers a login without a token");
}

/* Takes ownership of `body`. */
static status call_v3(json_t **out, etcd *e, const char *path, json_t *body)
{
    AUTO_FREE char *words = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (e->user && !e->token)
        TRY(log_in(e));
    status s = post_json(out, e, path, words);
    if (s == STATUS_OK || !e->user || !strstr(status_message(), "token"))
        return s;
    free(e->token);
    e->token = NULL;
    TRY(log_in(e));
    return post_json(out, e, path, words);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Takes "https://HOST:PORT/" without the slash. */
static status take_address(etcd *e, const char *address, size_t length)
{
    if (e->nodes == ETCD_NODES)
        return status_fail(STATUS_USAGE, "outer.rendezvous: more than %d addresses", ETCD_NODES);
    if (memchr(address, '@', length)) /* never printed */
        return status_fail(STATUS_USAGE,
                           "outer.rendezvous holds a user or a password, which would be in the run's files and in the "
                           "list of processes: put USER:PASSWORD into a file of mode 600 and name it in "
                           "outer.credentials, or into " ISLANDS_CREDENTIALS);
    if (strncmp(address, "http://", 7) != 0 && strncmp(address, "https://", 8) != 0)
        return status_fail(STATUS_USAGE, "outer.rendezvous: %.*s is no address of etcd: http://HOST:2379 is one",
                           (int)length, address);
    char *copy = must_format("%.*s", (int)length, address);
    while (length > 0 && copy[length - 1] == '/')
        copy[--length] = 0;
    e->address[e->nodes++] = copy;
    return STATUS_OK;
}

status etcd_open(etcd **out, const char *addresses)
{
    AUTO(etcd) *e = must_calloc(1, sizeof *e);
    for (const char *at = addresses; *at;) {
        size_t length = strcspn(at, ", ");
        if (length > 0)
            TRY(take_address(e, at, length));
        at += length + (at[length] != 0);
    }
    if (e->nodes == 0)
        return status_fail(STATUS_USAGE, "outer.rendezvous names no address of etcd: http://HOST:2379");
    TRY(http_open(&e->http));
    *out = TAKE(e);
    return STATUS_OK;
}

status etcd_log_in(etcd *e, const etcd_login *who)
{
    for (int i = 0; i < e->nodes; i++) {
        bool plain = strncmp(e->address[i], "http://", 7) == 0 && !http_is_loopback(e->address[i]);
        if (plain && who->user)
            return status_fail(STATUS_USAGE,
                               "outer.rendezvous %s is another machine, and http:// would send it etcd's password in "
                               "the clear: give etcd a certificate, and use https://",
                               e->address[i]);
        if (plain)
            log_warn("islands: etcd at %s is reached in the clear, without TLS or a password: whoever is on this "
                     "network can end, rename and invent islands (phalanx help islands)",
                     e->address[i]);
    }
    if (who->user) {
        e->user = must_strdup(who->user);
        e->password = must_strdup(who->password);
    }
    return STATUS_OK;
}

void etcd_close(etcd *e)
{
    if (!e)
        return;
    http_close(e->http);
    for (int i = 0; i < e->nodes; i++)
        free(e->address[i]);
    etcd_wipe_login(&(etcd_login){e->user, e->password});
    free(e->token);
    free(e);
}

void etcd_look_at_nodes(etcd *e, double now)
{
    if (e->nodes < 2 || now - e->asked < TURN)
        return;
    RELEASED_BY(http_answer_free) http_answer reply = {0};
    int i = e->next, there = 0;
    post_body(&reply, e, e->address[i], "/v3/maintenance/status", "{}", SIGN);
    bool answers = !reply.failure, was_away = e->misses[i] >= MISSES; /* even without a leader */
    e->asked = now;
    e->next = (i + 1) % e->nodes;
    e->misses[i] = answers ? 0 : e->misses[i] + 1 < MISSES ? e->misses[i] + 1 : MISSES;
    for (int k = 0; k < e->nodes; k++)
        there += e->misses[k] < MISSES;
    if (answers && was_away)
        log_info("islands: etcd's node %s is back: %d of %d are there", e->address[i], there, e->nodes);
    else if (!was_away && e->misses[i] >= MISSES)
        log_warn("islands: etcd's node %s is away: %d of %d are there", e->address[i], there, e->nodes);
}

/* ---- leases ------------------------------------------------------------------------------------------------------ */

/* Reads a 64-bit integer, which the gateway writes as a string. */
static int64_t read_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_string(value) ? strtoll(json_string_value(value), NULL, 10) : json_integer_value(value);
}

status etcd_lease(int64_t *lease, etcd *e, int seconds)
{
    json_auto_t *answer = NULL;
    TRY(call_v3(&answer, e, "/v3/lease/grant", json_pack("{s:i}", "TTL", seconds)));
    *lease = read_number(answer, "ID");
    return *lease ? STATUS_OK : status_fail(STATUS_FAILED, "etcd grants no lease");
}

status etcd_keep_alive(bool *alive, etcd *e, int64_t lease)
{
    json_auto_t *answer = NULL;
    TRY(call_v3(&answer, e, "/v3/lease/keepalive", json_pack("{s:I}", "ID", (json_int_t)lease)));
    *alive = read_number(json_object_get(answer, "result"), "TTL") > 0;
    return STATUS_OK;
}

void etcd_revoke(etcd *e, int64_t lease)
{
    json_auto_t *answer = NULL;
    if (lease)
        (void)call_v3(&answer, e, "/v3/lease/revoke", json_pack("{s:I}", "ID", (json_int_t)lease));
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

json_t *etcd_pairs(const json_t *answer, const char *prefix)
{
    json_t *out = json_array(), *entry;
    size_t i;
    json_array_foreach(json_object_get(answer, "kvs"), i, entry)
    {
        if (i == MOST_KEYS)
            break;
        AUTO_FREE char *key = decode_member(entry, "key"), *value = decode_member(entry, "value");
        json_t *pair = json_pack("{s:s, s:s, s:I}", "key", key, "value", value, "revision",
                                 (json_int_t)read_number(entry, "mod_revision"));
        if (pair && strncmp(key, prefix, strlen(prefix)) == 0)
            json_array_append_new(out, pair);
        else
            json_decref(pair); /* not requested, or not UTF-8 */
    }
    return out;
}

status etcd_read(json_t **out, etcd *e, const char *prefix)
{
    json_auto_t *answer = NULL;
    AUTO_FREE char *end = must_strdup(prefix);
    end[strlen(end) - 1]++; /* the first key beyond the prefix */
    TRY(call_v3(&answer, e, "/v3/kv/range", json_pack("{s:o, s:o}", "key", base64(prefix), "range_end", base64(end))));
    int64_t revision = read_number(json_object_get(answer, "header"), "revision");
    if (revision < e->revision) /* a former process's keys would be taken for another island's */
        return status_fail(STATUS_FAILED,
                           "etcd at %s answers as it was before: revision %lld, after %lld; if it was set back, start "
                           "the islands again",
                           e->address[e->at], (long long)revision, (long long)e->revision);
    e->revision = revision;
    *out = etcd_pairs(answer, prefix);
    return STATUS_OK;
}

static json_t *change_of(const etcd_change *c)
{
    if (!c->value)
        return json_pack("{s:o}", "key", base64(c->key));
    return json_pack("{s:o, s:o, s:I}", "key", base64(c->key), "value", base64(c->value), "lease",
                     (json_int_t)c->lease);
}

status etcd_write(etcd *e, const char *key, const char *value, int64_t lease)
{
    json_auto_t *answer = NULL;
    const etcd_change change = {key, value, lease};
    return call_v3(&answer, e, value ? "/v3/kv/put" : "/v3/kv/deleterange", change_of(&change));
}

status etcd_transact(bool *done, etcd *e, const etcd_condition *conditions, int condition_count,
                     const etcd_change *changes, int change_count)
{
    json_t *compare = json_array(), *success = json_array();
    json_auto_t *answer = NULL;
    for (int i = 0; i < condition_count; i++)
        json_array_append_new(compare,
                              json_pack("{s:o, s:s, s:s, s:I}", "key", base64(conditions[i].key), "target", "MOD",
                                        "result", "EQUAL", "mod_revision", (json_int_t)conditions[i].revision));
    for (int i = 0; i < change_count; i++)
        json_array_append_new(success, json_pack("{s:o}", changes[i].value ? "request_put" : "request_delete_range",
                                                 change_of(&changes[i])));
    TRY(call_v3(&answer, e, "/v3/kv/txn", json_pack("{s:o, s:o}", "compare", compare, "success", success)));
    *done = json_is_true(json_object_get(answer, "succeeded"));
    return STATUS_OK;
}
