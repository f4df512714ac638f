#include "engine/run/choices.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/time/profile.h"
#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

void choices_free(choices *c)
{
    free(c->item);
    free(c->reserve);
    *c = (choices){0};
}

void choices_note_reserve(choices *c, const choices_reserve *r)
{
    int i = 0;
    while (i < c->reserves &&
           (c->reserve[i].communicators != r->communicators || strcmp(c->reserve[i].device, r->device) != 0))
        i++;
    choices_reserve before = {0};
    if (i == c->reserves)
        c->reserve = must_realloc(c->reserve, (unsigned long)++c->reserves * sizeof *c->reserve);
    else
        before = c->reserve[i];
    c->reserve[i] = *r;
    if (r->graph_nodes == 0) {
        c->reserve[i].graph_nodes = before.graph_nodes;
        c->reserve[i].graph_bytes = before.graph_bytes;
    }
}

void choices_take_reserve(reserve *out, const choices *c)
{
    for (int i = 0; i < c->reserves; i++) {
        const choices_reserve *r = &c->reserve[i];
        reserve_note(out, r->communicators, r->bytes, r->graph_nodes, r->graph_bytes);
    }
}

static int index_of(const choices *c, const char *key)
{
    for (int i = 0; i < c->count; i++)
        if (!strcmp(c->item[i].key, key))
            return i;
    return -1;
}

static void add_choice(choices *c, const device_choice *choice)
{
    c->item = must_realloc(c->item, (unsigned long)(c->count + 1) * sizeof *c->item);
    c->item[c->count++] = *choice;
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

/* Returns false if it is empty, too long or not a text. */
static bool take_text(char *out, size_t bytes, const json_t *from)
{
    const char *text = json_string_value(from);
    if (!text || !*text || strlen(text) >= bytes)
        return false;
    memset(out, 0, bytes);
    memcpy(out, text, strlen(text));
    return true;
}

/* Returns the number of valid entries: all of them, or the index of the first invalid one. */
static size_t take_entries(choices *c, const json_t *list)
{
    size_t i;
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *time = json_object_get(entry, "microseconds");
        device_choice one = {.microseconds = json_number_value(time)};
        if (!take_text(one.key, sizeof one.key, json_object_get(entry, "key")) ||
            !take_text(one.value, sizeof one.value, json_object_get(entry, "value")) || !json_is_number(time) ||
            index_of(c, one.key) >= 0)
            break;
        add_choice(c, &one);
    }
    return i;
}

/* Skips invalid entries: they are measured again. */
static void take_reserves(choices *c, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        choices_reserve one = {.communicators = (int)json_integer_value(json_object_get(entry, "communicators")),
                               .bytes = json_integer_value(json_object_get(entry, "bytes")),
                               .graph_nodes = json_integer_value(json_object_get(entry, "graph_nodes")),
                               .graph_bytes = json_integer_value(json_object_get(entry, "graph_bytes"))};
        if (one.graph_nodes <= 0 || one.graph_bytes < 0)
            one.graph_nodes = one.graph_bytes = 0;
        if (take_text(one.device, sizeof one.device, json_object_get(entry, "device")) && one.bytes > 0 &&
            one.communicators >= 0)
            choices_note_reserve(c, &one);
    }
}

static const char ADVICE[] = "delete it to have the choices made again (the last bits of results may then change)";

status choices_read(choices *c, const char *path)
{
    json_error_t error;
    char *text;
    int64_t bytes;
    TRY(reading_file(&text, &bytes, path));
    if (!text)
        return STATUS_OK;
    json_t *root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!root)
        return status_fail(STATUS_FAILED, "%s, line %d: %s; %s", path, error.line, error.text, ADVICE);
    const json_t *list = json_object_get(root, "choices");
    size_t good = take_entries(c, list), all = json_array_size(list);
    status s = STATUS_OK;
    if (!json_is_array(list))
        s = status_fail(STATUS_FAILED, "%s holds no list of choices; %s", path, ADVICE);
    else if (good < all)
        s = status_fail(STATUS_FAILED, "%s: entry %zu of %zu is no key, value and microseconds of its own; %s", path,
                        good + 1, all, ADVICE);
    take_reserves(c, json_object_get(root, "reserve"));
    json_decref(root);
    return s;
}

char *choices_text(const choices *c)
{
    json_t *list = json_array();
    for (int i = 0; i < c->count; i++) {
        const device_choice *one = &c->item[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:f}", "key", one->key, "value", one->value, "microseconds",
                                              one->microseconds));
    }
    json_t *reserves = json_array();
    for (int i = 0; i < c->reserves; i++) {
        const choices_reserve *r = &c->reserve[i];
        json_t *entry = json_pack("{s:s, s:i, s:I}", "device", r->device, "communicators", r->communicators, "bytes",
                                  (json_int_t)r->bytes);
        if (r->graph_nodes > 0)
            json_object_update_new(entry, json_pack("{s:I, s:I}", "graph_nodes", (json_int_t)r->graph_nodes,
                                                    "graph_bytes", (json_int_t)r->graph_bytes));
        json_array_append_new(reserves, entry);
    }
    json_t *root = json_pack("{s:o, s:o}", "choices", list, "reserve", reserves);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(root);
    return text;
}

status choices_write(const choices *c, const char *path)
{
    AUTO_FREE char *text = choices_text(c);
    return atomic_replace(path, text, (int64_t)strlen(text));
}

/* ---- agreement of the ranks -------------------------------------------------------------------------------------- */

/* Returns the members' lists as one table, each padded to `*most` entries with empty keys; the caller frees it. */
static device_choice *gather_lists(int *most, comm_group *all, const device_choice *mine, int count)
{
    *most = (int)comm_all_max(all, count > 1 ? count : 1);
    AUTO_FREE device_choice *padded = must_calloc((unsigned long)*most, sizeof *padded);
    for (int i = 0; i < count; i++)
        padded[i] = mine[i];
    device_choice *table = must_alloc((unsigned long)comm_group_ranks(all) * (unsigned long)*most * sizeof *table);
    comm_all_gather_bytes(all, table, padded, (int64_t)*most * (int64_t)sizeof *table);
    return table;
}

/* Lists the keys that this member has to time: absent from the table and not wanted by an earlier member. A key of
 * `wanted` is missing for the first time where it is put into `seen`. */
static int list_missing(device_choice *mine, const choices *c, comm_group *all, const device_choice *wanted, int most)
{
    RELEASED_BY(choices_free) choices seen = {0};
    int count = 0, me = comm_group_me(all);
    for (int i = 0; i < (me + 1) * most; i++) {
        const char *key = wanted[i].key;
        if (!*key || index_of(c, key) >= 0 || index_of(&seen, key) >= 0)
            continue;
        add_choice(&seen, &wanted[i]);
        if (i >= me * most)
            mine[count++] = wanted[i];
    }
    return count;
}

static status go_by(const choices *c, const device_interface *interface, device *d)
{
    const char *key;
    for (int i = 0; (key = interface->choices.wanted(d, i)); i++) {
        int at = index_of(c, key);
        MUST(at >= 0, "no choice for %s", key);
        status s = interface->choices.choose(d, &c->item[at]);
        if (s != STATUS_OK)
            return status_context(s, "%s cannot be followed, %s: %s", CHOICES_FILE, ADVICE, key);
    }
    return STATUS_OK;
}

status choices_agree(choices *c, comm_group *all, const device_interface *interface, device *d, bool timing)
{
    if (!interface->choices.wanted)
        return STATUS_OK;
    double began = clock_seconds();
    RELEASED_BY(choices_free) choices want = {0};
    const char *key;
    for (int i = 0; (key = interface->choices.wanted(d, i)); i++) {
        device_choice one = {0};
        memcpy(one.key, key, strlen(key));
        add_choice(&want, &one);
    }
    int most;
    AUTO_FREE device_choice *wanted = gather_lists(&most, all, want.item, want.count);
    AUTO_FREE device_choice *mine = must_calloc((unsigned long)want.count + 1, sizeof *mine);
    int count = list_missing(mine, c, all, wanted, most), each;
    status s = comm_all_status(all, interface->choices.find(d, mine, count, timing));
    AUTO_FREE device_choice *found = gather_lists(&each, all, mine, s == STATUS_OK ? count : 0);
    for (int i = 0; i < comm_group_ranks(all) * each; i++)
        if (*found[i].key) {
            add_choice(c, &found[i]);
            c->added++;
        }
    if (s == STATUS_OK)
        s = comm_all_status(all, go_by(c, interface, d));
    c->used = want.count;
    c->seconds += clock_seconds() - began;
    return s;
}
