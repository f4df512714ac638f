#include "engine/islands/meet/membership.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/checkpoint/manifest.h"
#include "engine/islands/meet/etcd.h"
#include "engine/islands/meet/roster.h"
#include "engine/system/worker.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

typedef enum own_key { OWN_MEMBER, OWN_OFFER, OWN_HAVE, OWN_KEYS } own_key;

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
    bool lost;             /* the lease had run out, and our record is not back yet */
    bool doubt;            /* a decision had no answer: it may still be carried out */
    int64_t turn_revision; /* revision of our turn key, as last read */
    news *news;
    char *written[OWN_KEYS]; /* values written under the present lease */
    worker worker;           /* guards the members below */
    bool reached, evicted;
    bool reported_away;
    char *wanted[OWN_KEYS];
    int64_t number, settled;
    json_t *pairs; /* pairs as last read */
    decision decision;
};

/* ---- our keys, and the pairs in etcd ----------------------------------------------------------------------------- */

static const char *const own_name[OWN_KEYS] = {"member", "offer", "have"};

/* Makes PREFIX/live/WHAT/SLOT; slot -1: without it. The caller frees it. */
static char *path_of(const membership *m, const char *what, int slot)
{
    return slot < 0 ? must_format("%slive/%s", m->prefix, what) : must_format("%slive/%s/%d", m->prefix, what, slot);
}

/* Returns the path of an own key. A server has a record, and neither offers nor holds. */
static char *own_path(const membership *m, own_key k)
{
    return m->slot == ROSTER_SERVER ? path_of(m, "server", -1) : path_of(m, own_name[k], m->slot);
}

static char *record_text(const membership *m, const membership_state *s)
{
    json_auto_t *o = json_pack("{s:s, s:s, s:s, s:i, s:O, s:b, s:b, s:I, s:I, s:I, s:I}", "id", m->id, "name", m->name,
                               "key", m->key, "ranks", m->options.ranks, "endpoints", m->endpoints, "ready", s->ready,
                               "taking", s->taking, "merge", (json_int_t)s->merge, "history", (json_int_t)s->history,
                               "step", (json_int_t)s->step, "updates", (json_int_t)s->updates);
    MUST(o, "outer.island is not UTF-8");
    return json_dumps(o, JSON_COMPACT);
}

/* Reads the pairs at PREFIX/live/: keys without the prefix; values are JSON or, like names, text. */
static status read_pairs(json_t **out, membership *m)
{
    json_auto_t *raw = NULL;
    AUTO_FREE char *prefix = path_of(m, "", -1);
    TRY(etcd_read(&raw, m->etcd, prefix));
    *out = roster_pairs(raw, strlen(prefix));
    return STATUS_OK;
}

/* Returns the pair, or NULL. */
static const json_t *find_pair(const json_t *pairs, const char *what, int slot)
{
    size_t i;
    const json_t *pair, *found = NULL;
    AUTO_FREE char *key = slot < 0 ? must_strdup(what) : must_format("%s/%d", what, slot);
    json_array_foreach(pairs, i, pair) if (!strcmp(json_string_value(json_object_get(pair, "key")), key)) found = pair;
    return found;
}

/* Copies a record's island name, for people. */
static void copy_name(char out[ROSTER_NAME], const json_t *member)
{
    const char *name = json_string_value(json_object_get(json_object_get(member, "value"), "name"));
    snprintf(out, ROSTER_NAME, "%s", name ? name : "?");
    log_make_printable(out);
}

static int64_t revision_of(const json_t *pair)
{
    return pair ? (int64_t)json_integer_value(json_object_get(pair, "revision")) : 0;
}

static const json_t *own_pair(const membership *m, const json_t *pairs, own_key k)
{
    return m->slot == ROSTER_SERVER ? find_pair(pairs, "server", -1) : find_pair(pairs, own_name[k], m->slot);
}

/* True if a member's record is this process's. */
static bool is_ours(const membership *m, const json_t *member)
{
    const char *id = json_string_value(json_object_get(json_object_get(member, "value"), "id"));
    return id && !strcmp(id, m->id);
}

/* ---- claiming a slot --------------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *pair)
{
    const char *words = json_string_value(json_object_get(pair, "value"));
    return words ? words : "";
}

/* Refuses islands that train something else. */
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
    AUTO_FREE char *key = path_of(m, "fingerprint", -1);
    const etcd_condition absent = {key, 0};
    const etcd_change put = {key, text, 0};
    bool done;
    TRY(etcd_transact(&done, m->etcd, &absent, 1, &put, 1));
    return done ? STATUS_OK : status_fail(STATUS_FAILED, "another island begins at this moment");
}

/* Takes the slot, or the server's place, if its record has this revision (0: there is none). Writes the turn key, so
 * that a former process's decision that had no answer is not carried out any more. */
static status take_slot(bool *done, membership *m, const json_t *pairs, int slot, int64_t revision)
{
    m->slot = slot;
    AUTO_FREE char *member = own_path(m, OWN_MEMBER), *name = path_of(m, "name", slot);
    AUTO_FREE char *turn = path_of(m, "turn", slot);
    AUTO_FREE char *record = record_text(m, &(membership_state){.merge = m->options.merge});
    const etcd_condition as_read[] = {{member, revision}, {name, revision_of(find_pair(pairs, "name", slot))}};
    const etcd_change changes[] = {{member, record, m->lease}, {turn, m->id, 0}, {name, m->name, 0}};
    bool server = slot == ROSTER_SERVER; /* a server has no name to keep */
    status s = etcd_transact(done, m->etcd, as_read, server ? 1 : 2, changes, server ? 2 : 3);
    if (s != STATUS_OK || !*done)
        m->slot = -1;
    return s;
}

/* Rates a slot: 4: our former one; 3: unused, the hint; 2: unused; 1: left by another island; 0: not ours to take. */
static int rate_slot(const membership *m, const json_t *pairs, int slot)
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
    char name[ROSTER_NAME];
    copy_name(name, member);
    if (slot >= 0)
        return status_fail(STATUS_FAILED,
                           "slot %d belongs to island %s, which is at work: every island needs a slot of its own", slot,
                           name);
    return status_fail(STATUS_FAILED, "all %d slots (outer.slots) have islands at work", m->options.slots);
}

static status try_server(bool *done, membership *m, const json_t *pairs)
{
    const json_t *there = find_pair(pairs, "server", -1);
    char name[ROSTER_NAME];
    copy_name(name, there);
    if (there && !is_ours(m, there))
        return status_fail(STATUS_FAILED, "outer.run %s has a server at work, %s: give this one another outer.run",
                           m->options.run, name);
    return take_slot(done, m, pairs, ROSTER_SERVER, revision_of(there));
}

/* Tries to claim a slot. An island or server that was killed keeps its place until its lease has run out. */
static status claim_once(bool *done, bool *reached, membership *m)
{
    json_auto_t *pairs = NULL;
    TRY(read_pairs(&pairs, m));
    *reached = true;
    TRY(check_fingerprint(m, pairs));
    if (m->options.server)
        return try_server(done, m, pairs);
    int best = -1, ours = -1; /* ours: slot of an earlier claim without an answer */
    bool mine_is_held = false;
    for (int i = 0; i < m->options.slots; i++) {
        ours = ours < 0 && is_ours(m, find_pair(pairs, "member", i)) ? i : ours;
        best = rate_slot(m, pairs, i) > (best < 0 ? 0 : rate_slot(m, pairs, best)) ? i : best;
        mine_is_held |= find_pair(pairs, "member", i) && !strcmp(text_of(find_pair(pairs, "name", i)), m->name);
    }
    if (ours >= 0)
        return take_slot(done, m, pairs, ours, revision_of(find_pair(pairs, "member", ours)));
    if (best < 0 || (mine_is_held && m->options.slot < 0))
        return refuse_slot(m, pairs);
    return take_slot(done, m, pairs, best, 0);
}

/* Claims a slot, or the server's place. A request without an answer may have been carried out, or be so later: the slot
 * is read again before each attempt. */
static status claim_slot(membership *m)
{
    double until = clock_seconds() + m->options.patience, end = until + m->options.patience;
    for (bool done = false, there = true;;) {
        bool was_there = there;
        there = false;
        status s = m->lease ? STATUS_OK : etcd_lease(&m->lease, m->etcd, m->options.lease);
        if (s == STATUS_OK)
            s = claim_once(&done, &there, m);
        if (s == STATUS_OK && done)
            return STATUS_OK;
        double now = clock_seconds();
        if (there && !was_there) /* leases begin anew once etcd is back */
            until = now + m->options.patience < end ? now + m->options.patience : end;
        if (now > until)
            return s != STATUS_OK ? s : status_fail(STATUS_FAILED, "no slot could be claimed");
        bool alive = false;
        if (m->lease && (etcd_keep_alive(&alive, m->etcd, m->lease) != STATUS_OK || !alive))
            m->lease = 0;
        usleep(200000);
    }
}

/* ---- our lease ---- */

static void forget_written(membership *m, own_key k)
{
    free(m->written[k]);
    m->written[k] = NULL;
}

static status say_evicted(membership *m)
{
    worker_lock(&m->worker);
    m->evicted = true;
    worker_unlock(&m->worker);
    return m->options.server ? status_fail(STATUS_FAILED, "another server has taken this one's place")
                             : status_fail(STATUS_FAILED, "another island has taken slot %d", m->slot);
}

/* Writes our record again, if it is missing, or was left by our own write without an answer. */
static status put_record(membership *m, const char *record)
{
    json_auto_t *pairs = NULL;
    bool done = false;
    TRY(read_pairs(&pairs, m));
    const json_t *there = own_pair(m, pairs, OWN_MEMBER);
    if (there && !is_ours(m, there))
        return say_evicted(m);
    AUTO_FREE char *key = own_path(m, OWN_MEMBER), *name = path_of(m, "name", m->slot);
    const etcd_condition as_read = {key, revision_of(there)};
    const etcd_change put[] = {{key, record, m->lease}, {name, m->name, 0}};
    TRY(etcd_transact(&done, m->etcd, &as_read, 1, put, m->options.server ? 1 : 2));
    if (!done) /* the next turn shows by which island */
        return status_fail(STATUS_FAILED, "the record in etcd was changed while it was renewed");
    m->written[OWN_MEMBER] = must_strdup(record);
    m->lost = false;
    return STATUS_OK;
}

/* Keeps the lease alive. If it has run out, our keys are gone: gets a new one and writes `record` again, unless another
 * island has the slot by now. */
static status keep_lease(membership *m, const char *record)
{
    bool alive = true;
    if (!m->lost && clock_seconds() - m->kept_alive < m->options.lease / 3.0)
        return STATUS_OK;
    TRY(etcd_keep_alive(&alive, m->etcd, m->lease));
    if (!alive) {
        m->lost = true;
        TRY(etcd_lease(&m->lease, m->etcd, m->options.lease));
    }
    m->kept_alive = clock_seconds();
    if (!m->lost)
        return STATUS_OK;
    for (int i = 0; i < OWN_KEYS; i++)
        forget_written(m, (own_key)i);
    return put_record(m, record);
}

/* Writes changed values of `wanted`. Repeats a write without an answer; if one is carried out late, reading the keys
 * shows it, and it is undone. */
static status write_own(membership *m, char *const wanted[OWN_KEYS])
{
    for (int i = 0; i < OWN_KEYS; i++) {
        if (wanted[i] && m->written[i] ? !strcmp(wanted[i], m->written[i]) : wanted[i] == m->written[i])
            continue;
        AUTO_FREE char *key = own_path(m, (own_key)i);
        TRY(etcd_write(m->etcd, key, wanted[i], m->lease));
        forget_written(m, (own_key)i);
        m->written[i] = wanted[i] ? must_strdup(wanted[i]) : NULL;
    }
    return STATUS_OK;
}

static bool is_written(const membership *m, own_key k, const json_t *pair)
{
    if (!pair || !m->written[k])
        return !pair && !m->written[k];
    json_auto_t *written = json_loads(m->written[k], 0, NULL);
    return json_equal(written, json_object_get(pair, "value"));
}

/* Removes our record at another slot: a claim was carried out after we had given it up. */
static void drop_ghosts(membership *m, const json_t *pairs)
{
    for (int i = 0; i < m->options.slots && !m->options.server; i++) {
        const json_t *member = find_pair(pairs, "member", i);
        if (i == m->slot || !is_ours(m, member))
            continue;
        bool done;
        AUTO_FREE char *key = path_of(m, "member", i);
        const etcd_condition still = {key, revision_of(member)};
        const etcd_change drop = {key, NULL, 0};
        (void)etcd_transact(&done, m->etcd, &still, 1, &drop, 1);
    }
}

/* True if our keys, as just read, have the values written. A value that a late write has overwritten is written again
 * in the next turn. */
static bool check_own(membership *m, const json_t *pairs)
{
    bool all = true;
    drop_ghosts(m, pairs);
    for (int i = 0; i < (m->options.server ? 1 : OWN_KEYS); i++) {
        const json_t *pair = own_pair(m, pairs, (own_key)i);
        if (is_written(m, (own_key)i, pair))
            continue;
        all = false;
        if (i == OWN_MEMBER && (!pair || !is_ours(m, pair)))
            m->lost = true; /* the lease or the slot is lost: keep_lease finds out */
        forget_written(m, (own_key)i);
        if (pair && i != OWN_MEMBER)
            m->written[i] = must_strdup(""); /* never equal to the wanted value */
    }
    return all;
}

static const double TURN = 0.1; /* seconds between readings */

/* ---- the thread: one turn ---------------------------------------------------------------------------------------- */

static void note_turn(membership *m, const json_t *pairs)
{
    m->turn_revision = revision_of(find_pair(pairs, "turn", m->slot));
}

/* Resolves a decision without an answer. A decision holds only while our turn key is unchanged: once that is written
 * again, reading shows whether it was carried out; it never will be later. */
static status resolve_doubt(membership *m)
{
    json_auto_t *pairs = NULL;
    if (!m->doubt)
        return STATUS_OK;
    AUTO_FREE char *path = path_of(m, "turn", m->slot);
    TRY(etcd_write(m->etcd, path, m->id, 0));
    TRY(read_pairs(&pairs, m));
    note_turn(m, pairs);
    m->doubt = false;
    return STATUS_OK;
}

static status try_decision(membership *m, const decision *d)
{
    etcd_condition conditions[2 + ROSTER_SLOTS];
    int count = 0;
    bool done;
    AUTO_FREE char *head = path_of(m, "head", -1), *text = json_dumps(d->head, JSON_COMPACT);
    AUTO_FREE char *history =
        must_format("%smerges/%010lld", m->prefix, (long long)json_integer_value(json_object_get(d->head, "merge")));
    conditions[count++] = (etcd_condition){head, d->revision};
    conditions[count++] = (etcd_condition){path_of(m, "turn", m->slot), m->turn_revision};
    for (int s = 0; s < ROSTER_SLOTS; s++)
        if (d->slots >> s & 1)
            conditions[count++] = (etcd_condition){path_of(m, "offer", s), d->offer_revision[s]};
    const etcd_change changes[] = {{head, text, 0}, {history, text, 0}};
    status s = etcd_transact(&done, m->etcd, conditions, count, changes, 2);
    m->doubt = s != STATUS_OK;
    for (int i = 1; i < count; i++)
        free((char *)conditions[i].key);
    return s;
}

/* Copies the wanted values, and takes the decision, which is tried once. */
static int64_t take_wanted(char *wanted[OWN_KEYS], decision *d, membership *m)
{
    worker_lock(&m->worker);
    for (int i = 0; i < OWN_KEYS; i++)
        wanted[i] = m->wanted[i] ? must_strdup(m->wanted[i]) : NULL;
    *d = m->decision;
    m->decision.head = NULL;
    int64_t number = m->number;
    worker_unlock(&m->worker);
    return number;
}

static void publish_result(membership *m, status s, json_t *pairs, int64_t number)
{
    worker_lock(&m->worker);
    m->reached = s == STATUS_OK;
    if (s == STATUS_OK) {
        json_decref(m->pairs);
        m->pairs = pairs;
        m->settled = number;
    }
    worker_unlock(&m->worker);
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

static status take_turn(json_t **pairs, membership *m, char *const wanted[OWN_KEYS], const decision *d)
{
    TRY(keep_lease(m, wanted[OWN_MEMBER]));
    TRY(write_own(m, wanted));
    TRY(resolve_doubt(m));
    if (d->head)
        TRY(try_decision(m, d));
    return read_pairs(pairs, m);
}

static void run_turn(membership *m)
{
    char *wanted[OWN_KEYS];
    decision d;
    json_t *pairs = NULL;
    int64_t number = take_wanted(wanted, &d, m);
    status s = take_turn(&pairs, m, wanted, &d);
    if (s == STATUS_OK) {
        roster r;
        roster_read_pairs(&r, pairs, m->options.trusted);
        news_look(m->news, &r, clock_seconds(), m->options.lease);
        note_turn(m, pairs);
        number = check_own(m, pairs) ? number : m->settled;
    }
    publish_result(m, s, pairs, number);
    etcd_look_at_nodes(m->etcd, clock_seconds());
    json_decref(d.head);
    for (int i = 0; i < OWN_KEYS; i++)
        free(wanted[i]);
}

static void run_thread(void *context)
{
    membership *m = context;
    WORKER_HELD(&m->worker);
    while (!atomic_load(&m->worker.stop)) {
        int64_t number = m->number;
        worker_unlock(&m->worker);
        run_turn(m);
        double next = clock_seconds() + TURN;
        worker_lock(&m->worker);
        while (m->number == number && worker_wait_until(&m->worker, next))
            continue;
    }
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static status open_parts(membership *m)
{
    TRY(manifest_draw_run_id(m->id));
    TRY(etcd_open(&m->etcd, m->options.addresses));
    TRY(etcd_log_in(m->etcd, &m->options.login));
    m->options.login = (etcd_login){0};
    TRY(claim_slot(m));
    m->kept_alive = clock_seconds();
    m->wanted[OWN_MEMBER] = record_text(m, &(membership_state){.merge = m->options.merge});
    m->written[OWN_MEMBER] = must_strdup(m->wanted[OWN_MEMBER]);
    TRY(read_pairs(&m->pairs, m));
    note_turn(m, m->pairs);
    m->reached = true;
    m->news = news_open(m->slot, say_news, NULL);
    return worker_start(&m->worker, run_thread, m, "talks to etcd");
}

status membership_open(membership **out, const membership_options *options)
{
    AUTO(membership) *m = must_calloc(1, sizeof *m);
    m->options = *options;
    m->slot = -1;
    m->prefix = must_format("phalanx/%s/", options->run);
    m->key = must_strdup(options->key);
    m->name = must_strdup(options->name);
    m->endpoints = json_array();
    for (int i = 0; i < options->ranks; i++)
        json_array_append_new(m->endpoints, json_string(options->endpoints[i]));
    worker_init(&m->worker);
    TRY(open_parts(m));
    *out = TAKE(m);
    return STATUS_OK;
}

/* Shows the others that this island left by itself. */
static void leave_slot(membership *m)
{
    if (m->slot >= 0 && m->slot != ROSTER_SERVER) {
        AUTO_FREE char *key = path_of(m, "left", m->slot), *text = must_format("{\"id\":\"%s\"}", m->id);
        (void)etcd_write(m->etcd, key, text, 0);
    }
    etcd_revoke(m->etcd, m->lease);
}

void membership_close(membership *m)
{
    if (!m)
        return;
    worker_close(&m->worker);
    if (m->etcd && m->reached)
        leave_slot(m);
    news_close(m->news);
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
    free(m);
}

/* ---- the main thread's ------------------------------------------------------------------------------------------- */

int membership_slot(const membership *m)
{
    return m->slot;
}

char *membership_roster(membership *m)
{
    WORKER_HELD(&m->worker);
    json_auto_t *o = json_pack("{s:b, s:b, s:I, s:O}", "reached", m->reached, "evicted", m->evicted, "settled",
                               (json_int_t)m->settled, "pairs", m->pairs);
    return json_dumps(o, JSON_COMPACT);
}

static int64_t want_key(membership *m, own_key k, char *text)
{
    WORKER_HELD(&m->worker);
    free(m->wanted[k]);
    m->wanted[k] = text;
    worker_tell(&m->worker);
    return ++m->number;
}

static int64_t want_json(membership *m, own_key k, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return want_key(m, k, text);
}

int64_t membership_set_state(membership *m, const membership_state *state)
{
    return want_key(m, OWN_MEMBER, record_text(m, state));
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
    WORKER_HELD(&m->worker);
    json_decref(m->decision.head);
    m->decision = (decision){.head = head, .revision = revision, .slots = slots};
    if (offer_revision)
        memcpy(m->decision.offer_revision, offer_revision, sizeof m->decision.offer_revision);
    worker_tell(&m->worker);
    return ++m->number;
}
