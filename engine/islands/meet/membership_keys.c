/* An island's keys in etcd: their names, what is at them, and its record. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/islands/meet/membership_internal.h"
#include "memory/log.h"

static const char *const own_name[OWN_KEYS] = {"member", "offer", "have"};

char *membership_path(const membership *m, const char *what, int slot)
{
    return slot < 0 ? must_format("%slive/%s", m->prefix, what) : must_format("%slive/%s/%d", m->prefix, what, slot);
}

char *membership_own_path(const membership *m, own_key k)
{
    return m->slot == ROSTER_SERVER ? membership_path(m, "server", -1) : membership_path(m, own_name[k], m->slot);
}

char *membership_text(const membership *m, const membership_state *s)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:i, s:O, s:b, s:b, s:I, s:I, s:I, s:I}", "id", m->id, "name", m->name,
                          "key", m->key, "ranks", m->options.ranks, "endpoints", m->endpoints, "ready", s->ready,
                          "taking", s->taking, "merge", (json_int_t)s->merge, "history", (json_int_t)s->history, "step",
                          (json_int_t)s->step, "updates", (json_int_t)s->updates);
    MUST(o, "outer.island is not UTF-8");
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

/* ---- what is there ----------------------------------------------------------------------------------------------- */

status membership_read(json_t **out, membership *m)
{
    json_t *raw;
    char *prefix = membership_path(m, "", -1);
    size_t length = strlen(prefix);
    status s = etcd_read(&raw, m->etcd, prefix);
    free(prefix);
    TRY(s);
    *out = roster_pairs(raw, length);
    json_decref(raw);
    return STATUS_OK;
}

const json_t *membership_pair(const json_t *pairs, const char *what, int slot)
{
    size_t i;
    const json_t *pair, *found = NULL;
    char *key = slot < 0 ? must_strdup(what) : must_format("%s/%d", what, slot);
    json_array_foreach(pairs, i, pair) if (!strcmp(json_string_value(json_object_get(pair, "key")), key)) found = pair;
    free(key);
    return found;
}

void membership_name(char out[ROSTER_NAME], const json_t *member)
{
    const char *name = json_string_value(json_object_get(json_object_get(member, "value"), "name"));
    snprintf(out, ROSTER_NAME, "%s", name ? name : "?");
    log_make_printable(out);
}

int64_t membership_revision(const json_t *pair)
{
    return pair ? (int64_t)json_integer_value(json_object_get(pair, "revision")) : 0;
}

const json_t *membership_own_pair(const membership *m, const json_t *pairs, own_key k)
{
    return m->slot == ROSTER_SERVER ? membership_pair(pairs, "server", -1)
                                    : membership_pair(pairs, own_name[k], m->slot);
}

bool membership_is_ours(const membership *m, const json_t *member)
{
    const char *id = json_string_value(json_object_get(json_object_get(member, "value"), "id"));
    return id && !strcmp(id, m->id);
}
