#include "engine/islands/meet/membership.h"

#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/manifest.h"
#include "engine/islands/meet/membership_internal.h"
#include "memory/clock.h"
#include "memory/log.h"

static const double TURN = 0.1; /* seconds between readings */

/* ---- the thread: one turn ---------------------------------------------------------------------------------------- */

static void note_turn(membership *m, const json_t *pairs)
{
    m->turn_revision = membership_revision(membership_pair(pairs, "turn", m->slot));
}

/* A decision had no answer. Every decision holds only as long as our turn key is as it was read: once that is written
 * again, it either has been carried out, which reading shows, or never is. */
static status settle_doubt(membership *m)
{
    json_t *pairs = NULL;
    if (!m->doubt)
        return STATUS_OK;
    char *turn = membership_path(m, "turn", m->slot);
    status s = etcd_write(m->etcd, turn, m->id, 0);
    free(turn);
    TRY(s);
    TRY(membership_read(&pairs, m));
    note_turn(m, pairs);
    json_decref(pairs);
    m->doubt = false;
    return STATUS_OK;
}

static status try_decision(membership *m, const decision *d)
{
    etcd_condition conditions[2 + ROSTER_SLOTS];
    int count = 0;
    bool done;
    char *head = membership_path(m, "head", -1), *text = json_dumps(d->head, JSON_COMPACT);
    char *history =
        must_format("%smerges/%010lld", m->prefix, (long long)json_integer_value(json_object_get(d->head, "merge")));
    conditions[count++] = (etcd_condition){head, d->revision};
    conditions[count++] = (etcd_condition){membership_path(m, "turn", m->slot), m->turn_revision};
    for (int s = 0; s < ROSTER_SLOTS; s++)
        if (d->slots >> s & 1)
            conditions[count++] = (etcd_condition){membership_path(m, "offer", s), d->offer_revision[s]};
    const etcd_change changes[] = {{head, text, 0}, {history, text, 0}};
    status s = etcd_transact(&done, m->etcd, conditions, count, changes, 2);
    m->doubt = s != STATUS_OK;
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
    if (s != STATUS_OK && !m->reported_away)
        log_warn("islands: %s; %s until it is back", status_message(),
                 m->options.server ? "nothing is merged" : "training goes on, unmerged");
    if (s == STATUS_OK && m->reported_away)
        log_warn("islands: etcd is back");
    m->reported_away = s != STATUS_OK;
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
    status s = membership_keep_lease(m, wanted[OWN_MEMBER]);
    if (s == STATUS_OK)
        s = membership_write_own(m, wanted);
    if (s == STATUS_OK)
        s = settle_doubt(m);
    if (s == STATUS_OK && d.head)
        s = try_decision(m, &d);
    if (s == STATUS_OK)
        s = membership_read(&pairs, m);
    if (s == STATUS_OK) {
        look_for_news(m, pairs);
        note_turn(m, pairs);
        number = membership_check_own(m, pairs) ? number : m->settled;
    }
    publish(m, s, pairs, number);
    if (s != STATUS_OK)
        json_decref(pairs);
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
        double next = clock_seconds() + TURN;
        pthread_mutex_lock(&m->lock);
        while (!m->ends && m->number == number && clock_wait(&m->changed, &m->lock, next))
            continue;
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static status open_parts(membership *m)
{
    TRY(manifest_draw_run(m->id));
    TRY(etcd_open(&m->etcd, m->options.addresses));
    TRY(etcd_log_in(m->etcd, &m->options.login));
    m->options.login = (credentials){0};
    TRY(membership_claim(m));
    m->kept_alive = clock_seconds();
    m->wanted[OWN_MEMBER] = membership_text(m, &(membership_state){.merge = m->options.merge});
    m->written[OWN_MEMBER] = must_strdup(m->wanted[OWN_MEMBER]);
    TRY(membership_read(&m->pairs, m));
    note_turn(m, m->pairs);
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
    clock_condition(&m->changed);
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
    char *key = m->slot >= 0 && m->slot != ROSTER_SERVER ? membership_path(m, "left", m->slot) : NULL;
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

/* ---- the main thread's ------------------------------------------------------------------------------------------- */

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
    return want(m, OWN_MEMBER, membership_text(m, state));
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
