#include "engine/islands/meet/roster.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

/* Reads an id or a revision. */
static int64_t number_of(const json_t *o, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(o, key));
    return n < 0 ? 0 : (int64_t)n;
}

/* Reads a count of merges, steps or tokens, bounded so that no written value makes sums or successors overflow. */
static int64_t count_of(const json_t *o, const char *key)
{
    static const int64_t MOST = (int64_t)1 << 56;
    int64_t n = number_of(o, key);
    return n > MOST ? MOST : n;
}

static int small_of(const json_t *o, const char *key)
{
    int64_t n = count_of(o, key);
    return n > INT_MAX ? 0 : (int)n;
}

static void copy_text(char *out, size_t bytes, const json_t *o, const char *key)
{
    const char *words = json_string_value(json_object_get(o, key));
    snprintf(out, bytes, "%s", words ? words : "");
    log_make_printable(out); /* foreign text must not write lines of our log */
}

static void read_member(roster_member *m, json_t *value, const keys *trusted)
{
    copy_text(m->name, sizeof m->name, value, "name");
    copy_text(m->key, sizeof m->key, value, "key");
    copy_text(m->id, sizeof m->id, value, "id");
    m->ranks = small_of(value, "ranks");
    m->merge = count_of(value, "merge");
    m->history = number_of(value, "history");
    m->state_step = count_of(value, "step");
    m->state_updates = count_of(value, "updates");
    m->ready = json_is_true(json_object_get(value, "ready"));
    m->endpoints = json_object_get(value, "endpoints");
    m->here =
        m->ranks > 0 && (int)json_array_size(m->endpoints) == m->ranks && (!trusted || keys_find(trusted, m->key) >= 0);
    m->ready &= m->here;
    m->taking = m->here && !m->ready && json_is_true(json_object_get(value, "taking"));
}

static void read_offer(roster_member *m, json_t *value, int64_t revision)
{
    m->offers = true;
    m->offer_merge = count_of(value, "merge");
    m->offer_history = number_of(value, "history");
    m->offer = count_of(value, "offer");
    m->tokens = count_of(value, "tokens");
    m->updates = count_of(value, "updates");
    m->fragment = small_of(value, "fragment");
    m->offer_id = number_of(value, "id");
    m->parting = json_is_true(json_object_get(value, "parting"));
    m->undo = json_is_true(json_object_get(value, "undo"));
    m->offer_revision = revision;
}

static void read_have(roster_member *m, json_t *value)
{
    const json_t *slots = json_object_get(value, "slots");
    m->have_merge = count_of(value, "merge");
    for (size_t i = 0; i < json_array_size(slots); i++) {
        json_int_t s = json_integer_value(json_array_get(slots, i));
        if (s >= 0 && s < ROSTER_SLOTS)
            m->have |= 1ull << s;
    }
}

void roster_read_head(roster *r, const json_t *value, int64_t revision)
{
    const json_t *parts = json_object_get(value, "parts");
    r->merge = count_of(value, "merge");
    r->history = number_of(value, "history");
    r->from = number_of(value, "from");
    r->base = count_of(value, "base");
    r->step = count_of(value, "step");
    r->updates = count_of(value, "updates");
    r->undoes = count_of(value, "undoes");
    r->revision = revision;
    r->parts = 0;
    for (size_t i = 0; i < json_array_size(parts) && r->parts < ROSTER_SLOTS; i++) {
        const json_t *p = json_array_get(parts, i);
        int64_t slot = count_of(p, "slot"), refusal = count_of(p, "refused");
        if (slot >= ROSTER_SLOTS || (r->parts > 0 && slot <= r->part[r->parts - 1].slot))
            continue;
        roster_part *part = &r->part[r->parts++];
        *part = (roster_part){
            .slot = (int)slot,
            .offer = count_of(p, "offer"),
            .tokens = count_of(p, "tokens"),
            .merge = count_of(p, "merge"),
            .id = number_of(p, "id"),
            .refusal = refusal < ROSTER_REFUSALS ? (roster_refusal)refusal : ROSTER_UNSOUND,
        };
        copy_text(part->name, sizeof part->name, p, "name");
    }
}

static void read_pair(roster *r, const json_t *pair, const keys *trusted)
{
    const char *key = json_string_value(json_object_get(pair, "key"));
    json_t *value = json_object_get(pair, "value");
    char what[16];
    int slot = -1;
    if (!key)
        return;
    if (!strcmp(key, "head"))
        roster_read_head(r, value, number_of(pair, "revision"));
    if (!strcmp(key, "server"))
        read_member(&r->member[ROSTER_SERVER], value, trusted);
    if (sscanf(key, "%15[a-z]/%9d", what, &slot) != 2 || slot < 0 || slot >= ROSTER_SLOTS)
        return;
    char own[32]; /* so that "offer/0x" is not taken for slot 0 */
    snprintf(own, sizeof own, "%s/%d", what, slot);
    if (strcmp(own, key) != 0)
        return;
    roster_member *m = &r->member[slot];
    if (!strcmp(what, "member"))
        read_member(m, value, trusted);
    else if (!strcmp(what, "left"))
        copy_text(m->left, sizeof m->left, value, "id");
    else if (!strcmp(what, "offer"))
        read_offer(m, value, number_of(pair, "revision"));
    else if (!strcmp(what, "have"))
        read_have(m, value);
}

/* Parses a value of islands: an object of arrays of objects. Deeper text is foreign and not parsed: nested in other
 * JSON it would exceed jansson's depth. */
static json_t *parse_value(const char *value)
{
    enum { DEEPEST = 8 };
    int depth = 0;
    bool quoted = false;
    for (const char *c = value; *c; c++) {
        if (quoted && *c == '\\' && c[1])
            c++;
        else if (*c == '"')
            quoted = !quoted;
        else if (!quoted && (*c == '[' || *c == '{') && ++depth > DEEPEST)
            return NULL;
        else if (!quoted && (*c == ']' || *c == '}'))
            depth--;
    }
    return json_loads(value, 0, NULL);
}

json_t *roster_pairs(const json_t *raw, size_t prefix)
{
    json_t *out = json_array(), *pair;
    size_t i;
    json_array_foreach(raw, i, pair)
    {
        const char *key = json_string_value(json_object_get(pair, "key"));
        const char *text = json_string_value(json_object_get(pair, "value"));
        json_t *value = parse_value(text);
        json_array_append_new(out, json_pack("{s:s, s:o, s:O}", "key", key + prefix, "value",
                                             value ? value : json_string(text), "revision",
                                             json_object_get(pair, "revision")));
    }
    return out;
}

void roster_read_pairs(roster *out, const json_t *pairs, const keys *trusted)
{
    *out = (roster){.merge = -1};
    for (size_t i = 0; i < json_array_size(pairs); i++)
        read_pair(out, json_array_get(pairs, i), trusted);
}

status roster_read(roster *out, const char *text, const keys *trusted)
{
    json_t *root = json_loads(text, 0, NULL);
    roster_read_pairs(out, json_object_get(root, "pairs"), trusted);
    if (!root)
        return status_fail(STATUS_FAILED, "what etcd holds of this run is no JSON");
    out->root = root;
    out->reached = json_is_true(json_object_get(root, "reached"));
    out->evicted = json_is_true(json_object_get(root, "evicted"));
    out->settled = number_of(root, "settled");
    return STATUS_OK;
}

void roster_free(roster *r)
{
    json_decref(r->root);
    r->root = NULL;
}

const char *roster_endpoint(const roster *r, int slot, int rank)
{
    return json_string_value(json_array_get(r->member[slot].endpoints, (size_t)rank));
}

bool roster_is_in_line(const roster *r, int64_t merge, int64_t history)
{
    if (r->history == 0 || history == 0 || history == r->history)
        return true;
    return history == r->from && (merge <= r->base || r->merge == r->base);
}

uint64_t roster_here(const roster *r)
{
    uint64_t set = 0;
    for (int s = 0; s < ROSTER_SLOTS; s++)
        set |= (uint64_t)r->member[s].here << s;
    return set;
}

uint64_t roster_ready(const roster *r)
{
    uint64_t set = 0;
    for (int s = 0; s < ROSTER_SLOTS; s++)
        set |= (uint64_t)r->member[s].ready << s;
    return set;
}

uint64_t roster_offers(const roster *r, int64_t merge)
{
    uint64_t set = 0;
    for (int s = 0; s < ROSTER_SLOTS; s++)
        if (r->member[s].ready && r->member[s].offers && r->member[s].offer_merge == merge &&
            roster_is_in_line(r, merge - 1, r->member[s].offer_history))
            set |= 1ull << s;
    return set;
}

uint64_t roster_takes(bool *all, const roster *r, int64_t merge, int least, uint64_t refused)
{
    uint64_t offers = roster_offers(r, merge), reporters = 0, held = ~0ull;
    bool some_stays = false;
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        const roster_member *m = &r->member[s];
        if (!(offers >> s & 1) || m->have_merge != merge || !m->have)
            continue;
        reporters |= 1ull << s;
        held &= m->have;
        some_stays |= !m->parting;
    }
    held &= reporters;
    *all = reporters != 0 && (roster_ready(r) & ~(reporters | refused)) == 0;
    return some_stays && __builtin_popcountll(held) >= least ? held : 0;
}

typedef struct known {
    bool ever, here;
    char name[ROSTER_NAME], id[MANIFEST_RUN];
    double gone; /* time since it is not here */
} known;

struct news {
    int own;
    news_say *say;
    void *context;
    bool looked;
    known slot[ROSTER_SLOTS];
};

news *news_open(int own, news_say *say, void *context)
{
    news *n = must_calloc(1, sizeof *n);
    n->own = own;
    n->say = say;
    n->context = context;
    return n;
}

void news_close(news *n)
{
    free(n);
}

__attribute__((format(printf, 2, 3))) static void log_news(const news *n, const char *format, ...)
{
    char line[NEWS_LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    n->say(n->context, line);
}

/* Says the outer step. Islands that gossip have no merge in common. */
static void say_when(char *out, size_t bytes, const roster *r, int slot)
{
    if (r->merge >= 0)
        snprintf(out, bytes, "after merge %lld", (long long)r->merge);
    else
        snprintf(out, bytes, "after its step %lld", (long long)r->member[slot].state_step);
}

static void tell_gone(news *n, const roster *r, int slot, double now, int lease)
{
    known *k = &n->slot[slot];
    char when[48];
    say_when(when, sizeof when, r, slot);
    if (!strcmp(r->member[slot].left, k->id))
        log_news(n, "islands: %s (slot %d) left %s", k->name, slot, when);
    else
        log_news(n, "islands: %s (slot %d) is away %s: it has given no sign of life for %d s", k->name, slot, when,
                 lease);
    k->here = false;
    k->gone = now;
}

static void tell_came(news *n, const roster *r, int slot, double now)
{
    known *k = &n->slot[slot];
    const roster_member *m = &r->member[slot];
    char when[48];
    say_when(when, sizeof when, r, slot);
    if (!k->ever || strcmp(k->name, m->name) != 0)
        log_news(n, "islands: %s (slot %d) joined %s", m->name, slot, when);
    else
        log_news(n, "islands: %s (slot %d) is back %s%s, %.0f s after it had gone", m->name, slot, when,
                 strcmp(k->id, m->id) != 0 ? ", started again" : "", now - k->gone);
}

static void remember_member(known *k, const roster_member *m)
{
    k->ever = k->here = true;
    memcpy(k->name, m->name, sizeof k->name);
    memcpy(k->id, m->id, sizeof k->id);
}

static void tell_first(news *n, const roster *r)
{
    char names[NEWS_LINE / 2] = "";
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        const roster_member *m = &r->member[s];
        size_t used = strlen(names);
        if (s == n->own || !m->here)
            continue;
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", m->name);
        remember_member(&n->slot[s], m);
    }
    log_news(n, "islands: at work beside this one: %s", *names ? names : "none yet");
    n->looked = true;
}

void news_look(news *n, const roster *r, double now, int lease)
{
    if (!n->looked) {
        tell_first(n, r);
        return;
    }
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        const roster_member *m = &r->member[s];
        known *k = &n->slot[s];
        bool other = strcmp(k->id, m->id) != 0; /* another process: one may go and the next come between two looks */
        if (s == n->own)
            continue;
        if (k->here && (!m->here || other))
            tell_gone(n, r, s, now, lease);
        if (m->here && !k->here) {
            tell_came(n, r, s, now);
            remember_member(k, m);
        }
    }
}
