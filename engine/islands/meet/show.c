/* phalanx islands: prints the islands of an etcd, for people. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/islands/islands.h"
#include "engine/islands/meet/etcd.h"
#include "engine/islands/meet/roster.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Prints a member's name, which is foreign text. */
static void print_name(const char *name, int width)
{
    AUTO_FREE char *text = must_strdup(name);
    log_make_printable(text);
    printf("%-*s", width, text);
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

/* Splits a key "phalanx/RUN/live/REST" into run and rest; false for another key. */
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

/* Returns {run: [pairs]}, as rosters are read from them; the caller frees it. */
static json_t *group_by_run(const json_t *raw)
{
    json_t *runs = json_object(), *pair;
    size_t i;
    json_array_foreach(raw, i, pair)
    {
        AUTO_FREE char *run = NULL;
        const char *rest, *value = json_string_value(json_object_get(pair, "value"));
        if (!split_key(&run, &rest, json_string_value(json_object_get(pair, "key"))))
            continue;
        if (!json_object_get(runs, run))
            json_object_set_new(runs, run, json_array());
        json_t *parsed = value ? json_loads(value, 0, NULL) : NULL;
        json_array_append_new(json_object_get(runs, run),
                              json_pack("{s:s, s:o, s:O}", "key", rest, "value", parsed ? parsed : json_null(),
                                        "revision", json_object_get(pair, "revision")));
    }
    return runs;
}

status islands_show(const char *addresses, const char *file)
{
    AUTO(etcd) *e = NULL;
    RELEASED_BY(etcd_wipe_login) etcd_login login = {0};
    json_auto_t *raw = NULL, *runs = NULL;
    json_t *pairs;
    const char *run;
    TRY(etcd_take_login(&login, file));
    TRY(etcd_open(&e, addresses));
    TRY(etcd_log_in(e, &login));
    TRY(etcd_read(&raw, e, "phalanx/"));
    runs = group_by_run(raw);
    json_object_foreach(runs, run, pairs) print_run(run, pairs);
    if (json_object_size(runs) == 0)
        printf("no islands have met here\n");
    return STATUS_OK;
}
