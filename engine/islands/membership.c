#include "engine/islands/membership.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/files/manifest.h"
#include "engine/islands/etcd.h"
#include "engine/islands/news.h"
#include "engine/islands/nodes.h"
#include "memory/clock.h"
#include "memory/log.h"

static const double TURN = 0.1; /* seconds between readings */

typedef enum own_key { OWN_MEMBER, OWN_OFFER, OWN_HAVE, OWN_KEYS } own_key;
static const char *const own_name[OWN_KEYS] = {"member", "offer", "have"};

typedef struct decision {
    json_t *head; /* NULL: none */
    int64_t revision;
    uint64_t slots;
    int64_t offer_revision[ROSTER_SLOTS];
} decision;

struct membership {
    membership_options options;
    etcd *etcd;
    char *prefix, *key, *name; /* prefix: "phalanx/RUN/" */
    char id[MANIFEST_RUN];
    json_t *endpoints;
    int slot;
    int64_t lease;
    double kept_alive;
    news *news;
    nodes *nodes;
    char *written[OWN_KEYS]; /* under the present lease */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool ends, reached, evicted;
    bool said_away;
    char *wanted[OWN_KEYS];
    int64_t number, settled;
    json_t *pairs; /* as last read */
    decision decision;
};

static char *path_of(const membership *m, const char *what, int slot)
{
    return slot < 0 ? must_format("%slive/%s", m->prefix, what) : must_format("%slive/%s/%d", m->prefix, what, slot);
}

/* A server has a record, and neither offers nor holds. */
static char *own_path(const membership *m, own_key k)
{
    return m->slot == ROSTER_SERVER ? path_of(m, "server", -1) : path_of(m, own_name[k], m->slot);
}

static char *member_text(const membership *m, const membership_state *s)
{
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:i, s:O, s:b, s:b, s:I, s:I, s:I}", "id", m->id, "name", m->name, "key", m->key,
                  "ranks", m->options.ranks, "endpoints", m->endpoints, "ready", s->ready, "taking", s->taking, "merge",
                  (json_int_t)s->merge, "step", (json_int_t)s->step, "updates", (json_int_t)s->updates);
    MUST(o, "outer.island is not UTF-8");
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

/* ---- claiming a slot --------------------------------------------------------------------------------------------- */

/* What is at PREFIX/live/: pairs whose keys have lost the prefix, and whose values are JSON or, like names, text. */
static status read_live(json_t **out, membership *m)
{
    json_t *raw, *pair;
    size_t i;
    char *prefix = path_of(m, "", -1);
    size_t length = strlen(prefix);
    status s = etcd_read(&raw, m->etcd, prefix);
    free(prefix);
    TRY(s);
    *out = json_array();
    json_array_foreach(raw, i, pair)
    {
        const char *key = json_string_value(json_object_get(pair, "key"));
        const char *value = json_string_value(json_object_get(pair, "value"));
        json_t *parsed = json_loads(value, 0, NULL);
        json_array_append_new(*out, json_pack("{s:s, s:o, s:O}", "key", key + length, "value",
                                              parsed ? parsed : json_string(value), "revision",
                                              json_object_get(pair, "revision")));
    }
    json_decref(raw);
    return STATUS_OK;
}

static const json_t *find_pair(const json_t *pairs, const char *what, int slot)
{
    size_t i;
    const json_t *pair, *found = NULL;
    char *key = slot < 0 ? must_strdup(what) : must_format("%s/%d", what, slot);
    json_array_foreach(pairs, i, pair) if (!strcmp(json_string_value(json_object_get(pair, "key")), key)) found = pair;
    free(key);
    return found;
}

static int64_t revision_of(const json_t *pair)
{
    return pair ? (int64_t)json_integer_value(json_object_get(pair, "revision")) : 0;
}

static const char *text_of(const json_t *pair)
{
    const char *words = json_string_value(json_object_get(pair, "value"));
    return words ? words : "";
}

/* Islands that train something else are no islands of this run. */
static status check_fingerprint(membership *m, const json_t *pairs)
{
    char text[24];
    snprintf(text, sizeof text, "x%016llx", (unsigned long long)m->options.fingerprint);
    const json_t *there = find_pair(pairs, "fingerprint", -1);
    if (there && strcmp(text_of(there), text) != 0)
        return status_fail(STATUS_FAILED,
                           "outer.run %s is a run of islands with another model, data order, seed or outer.* settings: "
                           "give this one another name, or configure it alike",
                           m->options.run);
    if (there)
        return STATUS_OK;
    char *key = path_of(m, "fingerprint", -1);
    const etcd_condition absent = {key, 0};
    const etcd_change put = {key, text, 0};
    bool done;
    status s = etcd_transact(&done, m->etcd, &absent, 1, &put, 1);
    free(key);
    TRY(s);
    return done ? STATUS_OK : status_fail(STATUS_FAILED, "another island begins at this moment");
}

static status try_slot(bool *done, membership *m, const json_t *pairs, int slot)
{
    char *member = path_of(m, "member", slot), *name = path_of(m, "name", slot);
    char *record = member_text(m, &(membership_state){.merge = m->options.merge});
    const etcd_condition free_still[] = {{member, 0}, {name, revision_of(find_pair(pairs, "name", slot))}};
    const etcd_change take[] = {{member, record, m->lease}, {name, m->name, 0}};
    status s = etcd_transact(done, m->etcd, free_still, 2, take, 2);
    if (s == STATUS_OK && *done)
        m->slot = slot;
    free(record);
    free(name);
    free(member);
    return s;
}

/* How much the slot is ours to take: the one that we had, then one that nobody had, then one whose island is gone. */
static int fitness(const membership *m, const json_t *pairs, int slot)
{
    const json_t *name = find_pair(pairs, "name", slot);
    if (find_pair(pairs, "member", slot) || (m->options.slot >= 0 && m->options.slot != slot))
        return 0;
    if (!name)
        return slot == m->options.hint ? 3 : 2;
    return !strcmp(text_of(name), m->name) ? 4 : 1;
}

static status refuse_slot(const membership *m, const json_t *pairs)
{
    int slot = m->options.slot;
    const json_t *member = slot >= 0 ? find_pair(pairs, "member", slot) : NULL;
    const char *name = json_string_value(json_object_get(json_object_get(member, "value"), "name"));
    if (slot >= 0)
        return status_fail(STATUS_FAILED,
                           "slot %d belongs to island %s, which is at work: every island needs a slot of its own", slot,
                           name ? name : "?");
    return status_fail(STATUS_FAILED, "all %d slots (outer.slots) have islands at work", m->options.slots);
}

static status try_server(bool *done, membership *m, const json_t *pairs)
{
    const json_t *there = find_pair(pairs, "server", -1);
    const char *name = json_string_value(json_object_get(json_object_get(there, "value"), "name"));
    if (there)
        return status_fail(STATUS_FAILED, "outer.run %s has a server at work, %s: give this one another outer.run",
                           m->options.run, name ? name : "?");
    m->slot = ROSTER_SERVER;
    char *key = own_path(m, OWN_MEMBER), *record = member_text(m, &(membership_state){.merge = m->options.merge});
    const etcd_condition free_still = {key, 0};
    const etcd_change take = {key, record, m->lease};
    status s = etcd_transact(done, m->etcd, &free_still, 1, &take, 1);
    free(record);
    free(key);
    return s;
}

/* An island that has ended without a word keeps its slot until its lease has run out; so does a server. */
static status claim_once(bool *done, bool *reached, membership *m)
{
    json_t *pairs = NULL;
    TRY(read_live(&pairs, m));
    *reached = true;
    status s = check_fingerprint(m, pairs);
    int best = -1;
    bool mine_is_held = false;
    for (int i = 0; i < m->options.slots && !m->options.server; i++) {
        best = fitness(m, pairs, i) > (best < 0 ? 0 : fitness(m, pairs, best)) ? i : best;
        mine_is_held |= find_pair(pairs, "member", i) && !strcmp(text_of(find_pair(pairs, "name", i)), m->name);
    }
    if (s == STATUS_OK && m->options.server)
        s = try_server(done, m, pairs);
    else if (s == STATUS_OK && (best < 0 || (mine_is_held && m->options.slot < 0)))
        s = refuse_slot(m, pairs);
    else if (s == STATUS_OK)
        s = try_slot(done, m, pairs, best);
    json_decref(pairs);
    return s;
}

static status claim(membership *m)
{
    double until = clock_seconds() + m->options.patience;
    for (bool done = false, there = true;;) {
        bool was_there = there;
        there = false;
        status s = m->lease ? STATUS_OK : etcd_lease(&m->lease, m->etcd, m->options.lease);
        if (s == STATUS_OK)
            s = claim_once(&done, &there, m);
        if (s == STATUS_OK && done)
            return STATUS_OK;
        double now = clock_seconds();
        if (there && !was_there) /* leases begin anew when etcd is back */
            until = now + m->options.patience;
        if (now > until)
            return s != STATUS_OK ? s : status_fail(STATUS_FAILED, "no slot could be claimed");
        bool alive = false;
        if (m->lease && (etcd_keep_alive(&alive, m->etcd, m->lease) != STATUS_OK || !alive))
            m->lease = 0;
        usleep(200000);
    }
}

/* ---- the thread: one turn ------------------------------------------------------------------------------------------ */

/* A lease that has run out took our keys with it: a new one, and the slot again, unless somebody else has it by now. */
static status renew(membership *m, const char *record)
{
    bool done = false;
    int64_t lease;
    TRY(etcd_lease(&lease, m->etcd, m->options.lease));
    m->lease = lease;
    m->kept_alive = clock_seconds();
    for (int i = 0; i < OWN_KEYS; i++) {
        free(m->written[i]);
        m->written[i] = NULL;
    }
    char *key = own_path(m, OWN_MEMBER), *name = path_of(m, "name", m->slot);
    const etcd_condition absent = {key, 0};
    const etcd_change put[] = {{key, record, lease}, {name, m->name, 0}};
    status s = etcd_transact(&done, m->etcd, &absent, 1, put, m->options.server ? 1 : 2);
    free(name);
    free(key);
    TRY(s);
    if (!done) {
        pthread_mutex_lock(&m->lock);
        m->evicted = true;
        pthread_mutex_unlock(&m->lock);
        return m->options.server ? status_fail(STATUS_FAILED, "another server has taken this one's place")
                                 : status_fail(STATUS_FAILED, "another island has taken slot %d", m->slot);
    }
    m->written[OWN_MEMBER] = must_strdup(record);
    return STATUS_OK;
}

static status keep_lease(membership *m, const char *record)
{
    bool alive = true;
    if (clock_seconds() - m->kept_alive < m->options.lease / 3.0)
        return STATUS_OK;
    TRY(etcd_keep_alive(&alive, m->etcd, m->lease));
    m->kept_alive = clock_seconds();
    return alive ? STATUS_OK : renew(m, record);
}

static status write_own(membership *m, char *const wanted[OWN_KEYS])
{
    for (int i = 0; i < OWN_KEYS; i++) {
        bool same = wanted[i] && m->written[i] ? !strcmp(wanted[i], m->written[i]) : wanted[i] == m->written[i];
        if (same)
            continue;
        char *key = own_path(m, (own_key)i);
        status s = etcd_write(m->etcd, key, wanted[i], m->lease);
        free(key);
        TRY(s);
        free(m->written[i]);
        m->written[i] = wanted[i] ? must_strdup(wanted[i]) : NULL;
    }
    return STATUS_OK;
}

static status try_decision(membership *m, const decision *d)
{
    etcd_condition conditions[1 + ROSTER_SLOTS];
    int count = 0;
    bool done;
    char *head = path_of(m, "head", -1), *text = json_dumps(d->head, JSON_COMPACT);
    char *history =
        must_format("%smerges/%010lld", m->prefix, (long long)json_integer_value(json_object_get(d->head, "merge")));
    conditions[count++] = (etcd_condition){head, d->revision};
    for (int s = 0; s < ROSTER_SLOTS; s++)
        if (d->slots >> s & 1)
            conditions[count++] = (etcd_condition){path_of(m, "offer", s), d->offer_revision[s]};
    const etcd_change changes[] = {{head, text, 0}, {history, text, 0}};
    status s = etcd_transact(&done, m->etcd, conditions, count, changes, 2);
    for (int i = 1; i < count; i++)
        free((char *)conditions[i].key);
    free(history);
    free(text);
    free(head);
    return s;
}

/* What is wanted now, as copies; and the decision, which is tried once. */
static int64_t take_wanted(char *wanted[OWN_KEYS], decision *d, membership *m)
{
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < OWN_KEYS; i++)
        wanted[i] = m->wanted[i] ? must_strdup(m->wanted[i]) : NULL;
    *d = m->decision;
    m->decision.head = NULL;
    int64_t number = m->number;
    pthread_mutex_unlock(&m->lock);
    return number;
}

static void publish(membership *m, status s, json_t *pairs, int64_t number)
{
    pthread_mutex_lock(&m->lock);
    m->reached = s == STATUS_OK;
    if (s == STATUS_OK) {
        json_decref(m->pairs);
        m->pairs = pairs;
        m->settled = number;
    }
    pthread_mutex_unlock(&m->lock);
    if (s != STATUS_OK && !m->said_away)
        log_warn("islands: %s; %s until it is back", status_message(),
                 m->options.server ? "nothing is merged" : "training goes on, unmerged");
    if (s == STATUS_OK && m->said_away)
        log_warn("islands: etcd is back");
    m->said_away = s != STATUS_OK;
}

static void say_news(void *context, const char *line)
{
    (void)context;
    log_info("%s", line);
}

static void look_for_news(membership *m, const json_t *pairs)
{
    roster r;
    roster_read_pairs(&r, pairs, m->options.trusted);
    news_look(m->news, &r, clock_seconds(), m->options.lease);
}

static void turn(membership *m)
{
    char *wanted[OWN_KEYS];
    decision d;
    json_t *pairs = NULL;
    int64_t number = take_wanted(wanted, &d, m);
    status s = keep_lease(m, wanted[OWN_MEMBER]);
    if (s == STATUS_OK)
        s = write_own(m, wanted);
    if (s == STATUS_OK && d.head)
        s = try_decision(m, &d);
    if (s == STATUS_OK)
        s = read_live(&pairs, m);
    if (s == STATUS_OK)
        look_for_news(m, pairs);
    publish(m, s, pairs, number);
    nodes_look(m->nodes, clock_seconds());
    json_decref(d.head);
    for (int i = 0; i < OWN_KEYS; i++)
        free(wanted[i]);
}

static void *run_thread(void *argument)
{
    membership *m = argument;
    pthread_mutex_lock(&m->lock);
    while (!m->ends) {
        int64_t number = m->number;
        pthread_mutex_unlock(&m->lock);
        turn(m);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        int64_t ns = until.tv_nsec + (int64_t)(TURN * 1e9);
        until.tv_sec += ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        pthread_mutex_lock(&m->lock);
        while (!m->ends && m->number == number)
            if (pthread_cond_timedwait(&m->changed, &m->lock, &until) == ETIMEDOUT)
                break;
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- opening -------------------------------------------------------------------------------------------------------- */

static status open_parts(membership *m)
{
    TRY(manifest_draw_run(m->id));
    TRY(etcd_open(&m->etcd, m->options.addresses));
    TRY(claim(m));
    m->kept_alive = clock_seconds();
    m->wanted[OWN_MEMBER] = member_text(m, &(membership_state){.merge = m->options.merge});
    m->written[OWN_MEMBER] = must_strdup(m->wanted[OWN_MEMBER]);
    TRY(read_live(&m->pairs, m));
    m->reached = true;
    m->news = news_open(m->slot, say_news, NULL);
    m->nodes = nodes_open(m->etcd);
    if (pthread_create(&m->thread, NULL, run_thread, m) != 0)
        return status_fail(STATUS_FAILED, "cannot start the thread that talks to etcd");
    m->started = true;
    return STATUS_OK;
}

status membership_open(membership **out, const membership_options *options)
{
    membership *m = must_calloc(1, sizeof *m);
    m->options = *options;
    m->slot = -1;
    m->prefix = must_format("phalanx/%s/", options->run);
    m->key = must_strdup(options->key);
    m->name = must_strdup(options->name);
    m->endpoints = json_array();
    for (int i = 0; i < options->ranks; i++)
        json_array_append_new(m->endpoints, json_string(options->endpoints[i]));
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    status s = open_parts(m);
    if (s == STATUS_OK)
        *out = m;
    else
        membership_close(m);
    return s;
}

/* The others are to know that it was not lost. */
static void leave(membership *m)
{
    char *key = m->slot >= 0 && m->slot != ROSTER_SERVER ? path_of(m, "left", m->slot) : NULL;
    json_t *value = json_pack("{s:s}", "id", m->id);
    char *text = json_dumps(value, JSON_COMPACT);
    if (key)
        (void)etcd_write(m->etcd, key, text, 0);
    etcd_revoke(m->etcd, m->lease);
    free(text);
    json_decref(value);
    free(key);
}

void membership_close(membership *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->ends = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (m->started)
        pthread_join(m->thread, NULL);
    if (m->etcd && m->reached)
        leave(m);
    news_close(m->news);
    nodes_close(m->nodes);
    etcd_close(m->etcd);
    for (int i = 0; i < OWN_KEYS; i++) {
        free(m->wanted[i]);
        free(m->written[i]);
    }
    json_decref(m->decision.head);
    json_decref(m->pairs);
    json_decref(m->endpoints);
    free(m->prefix);
    free(m->key);
    free(m->name);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
    free(m);
}

/* ---- the main thread's ----------------------------------------------------------------------------------------------- */

int membership_slot(const membership *m)
{
    return m->slot;
}

char *membership_roster(membership *m)
{
    pthread_mutex_lock(&m->lock);
    json_t *o = json_pack("{s:b, s:b, s:I, s:O}", "reached", m->reached, "evicted", m->evicted, "settled",
                          (json_int_t)m->settled, "pairs", m->pairs);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    pthread_mutex_unlock(&m->lock);
    MUST(text, "out of host memory");
    return text;
}

static int64_t want(membership *m, own_key k, char *text)
{
    pthread_mutex_lock(&m->lock);
    free(m->wanted[k]);
    m->wanted[k] = text;
    int64_t number = ++m->number;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return number;
}

static int64_t want_json(membership *m, own_key k, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return want(m, k, text);
}

int64_t membership_set_state(membership *m, const membership_state *state)
{
    return want(m, OWN_MEMBER, member_text(m, state));
}

int64_t membership_set_offer(membership *m, json_t *offer)
{
    return want_json(m, OWN_OFFER, offer);
}

int64_t membership_set_have(membership *m, json_t *have)
{
    return want_json(m, OWN_HAVE, have);
}

int64_t membership_decide(membership *m, json_t *head, int64_t revision, uint64_t slots, const int64_t *offer_revision)
{
    pthread_mutex_lock(&m->lock);
    json_decref(m->decision.head);
    m->decision = (decision){.head = head, .revision = revision, .slots = slots};
    if (offer_revision)
        memcpy(m->decision.offer_revision, offer_revision, sizeof m->decision.offer_revision);
    int64_t number = ++m->number;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return number;
}
