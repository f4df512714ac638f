/* Profiles as JSON files: the numbers of the struct by name, tiles and points as lists. A file may name a built-in profile as its
 * "base" and say only what differs. */
#include "engine/compile/profile.h"

#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/files/atomic.h"
#include "memory/log.h"

typedef struct field {
    const char *name;
    size_t at;
    bool network, positive;
} field;

#define FIELD(name, network, positive)                                                                                 \
    {                                                                                                                  \
#name, offsetof(profile, name), network, positive                                                              \
    }
static const field numbers[] = {
    FIELD(half, false, true),       FIELD(single, false, true),
    FIELD(depth, false, false),     FIELD(product_start, false, false),
    FIELD(attention, false, false), FIELD(attention_gradient, false, false),
    FIELD(memory, false, true),     FIELD(memory_share, false, true),
    FIELD(start, false, false),     FIELD(bus, false, true),
    FIELD(node, true, true),        FIELD(network, true, true),
    FIELD(latency, true, false),    FIELD(network_latency, true, false),
    FIELD(hop, true, false),        FIELD(taken, true, false),
};
#undef FIELD

enum { NUMBERS = sizeof numbers / sizeof *numbers };

static double *number_of(profile *p, const field *f)
{
    return (double *)((char *)p + f->at);
}

static status take_numbers(profile *p, const json_t *root, const char *path, bool only_network)
{
    for (int i = 0; i < NUMBERS; i++) {
        const json_t *v = json_object_get(root, numbers[i].name);
        if (!v || (only_network && !numbers[i].network))
            continue;
        double number = json_number_value(v);
        if (!json_is_number(v) || number < 0 || (numbers[i].positive && number <= 0))
            return status_fail(STATUS_USAGE, "%s: %s is no number above zero", path, numbers[i].name);
        *number_of(p, &numbers[i]) = number;
    }
    const json_t *ranks = json_object_get(root, "node_ranks"), *moves = json_object_get(root, "host_moves");
    const json_t *capacity = json_object_get(root, "capacity"), *cores = json_object_get(root, "cores");
    if (cores && (!json_is_integer(cores) || json_integer_value(cores) < 0))
        return status_fail(STATUS_USAGE, "%s: cores is no number of cores", path);
    if (cores && !only_network)
        p->cores = (int)json_integer_value(cores);
    if (ranks && (!json_is_integer(ranks) || json_integer_value(ranks) < 1))
        return status_fail(STATUS_USAGE, "%s: node_ranks is no number above zero", path);
    if (ranks)
        p->node_ranks = (int)json_integer_value(ranks);
    if (capacity && (!json_is_integer(capacity) || json_integer_value(capacity) < 0))
        return status_fail(STATUS_USAGE, "%s: capacity is no number of bytes", path);
    if (capacity && !only_network)
        p->capacity = json_integer_value(capacity);
    if (moves)
        p->host_moves = json_is_true(moves);
    return STATUS_OK;
}

static status take_tiles(profile *p, const json_t *root, const char *path)
{
    const json_t *processors = json_object_get(root, "processors"), *tiles = json_object_get(root, "tiles");
    if (processors && (!json_is_integer(processors) || json_integer_value(processors) < 0))
        return status_fail(STATUS_USAGE, "%s: processors is no number of multiprocessors", path);
    if (processors)
        p->processors = (int)json_integer_value(processors);
    if (!tiles)
        return STATUS_OK;
    memset(p->tile, 0, sizeof p->tile);
    if (json_array_size(tiles) < 1 || json_array_size(tiles) > PROFILE_TILES)
        return status_fail(STATUS_USAGE, "%s: tiles are 1 to %d lists of rows, columns and share", path, PROFILE_TILES);
    for (size_t i = 0; i < json_array_size(tiles); i++) {
        const json_t *t = json_array_get(tiles, i);
        profile_tile *out = &p->tile[i];
        out->rows = (int)json_integer_value(json_array_get(t, 0));
        out->columns = (int)json_integer_value(json_array_get(t, 1));
        out->share = json_number_value(json_array_get(t, 2));
        if (out->rows < 1 || out->columns < 1 || out->share <= 0)
            return status_fail(STATUS_USAGE, "%s: tile %d: rows, columns and share are above zero", path, (int)i);
    }
    return STATUS_OK;
}

static int kind_of(const char *name)
{
    for (int i = 0; name && i < OP_COUNT; i++)
        if (!strcmp(op_rows[i].name, name))
            return i;
    return -1;
}

/* ["linear", "bf16", false, [rows, columns, depth], seconds, model's seconds, threads] */
static status take_points(profile *p, const json_t *list, const char *path)
{
    size_t count = json_array_size(list);
    p->points = must_calloc(count + 1, sizeof *p->points);
    for (size_t i = 0; i < count; i++) {
        const json_t *from = json_array_get(list, i), *size = json_array_get(from, 3);
        profile_point at = {.adds = json_is_true(json_array_get(from, 2)),
                            .seconds = json_number_value(json_array_get(from, 4)),
                            .model = json_number_value(json_array_get(from, 5)),
                            .threads = (int)json_integer_value(json_array_get(from, 6))};
        int kind = kind_of(json_string_value(json_array_get(from, 0)));
        const char *type = json_string_value(json_array_get(from, 1));
        bool known = type && dtype_find(&at.type, type);
        for (size_t k = 0; k < 3; k++) {
            at.size[k] = json_number_value(json_array_get(size, k));
            known = known && at.size[k] >= 0;
        }
        if (kind < 0 || !known || at.seconds <= 0 || at.model <= 0)
            return status_fail(STATUS_USAGE, "%s: point %d: not an op's kind, type, sizes and seconds", path, (int)i);
        at.kind = (op_kind)kind;
        p->points[p->count++] = at;
    }
    return STATUS_OK;
}

status profile_save(const char *path, const profile *p)
{
    json_t *root = json_object(), *tiles = json_array(), *points = json_array();
    profile copy = *p;
    json_object_set_new(root, "name", json_string(p->name));
    for (int i = 0; i < NUMBERS; i++)
        json_object_set_new(root, numbers[i].name, json_real(*number_of(&copy, &numbers[i])));
    json_object_set_new(root, "node_ranks", json_integer(p->node_ranks));
    json_object_set_new(root, "host_moves", json_boolean(p->host_moves));
    json_object_set_new(root, "capacity", json_integer(p->capacity));
    json_object_set_new(root, "cores", json_integer(p->cores));
    json_object_set_new(root, "processors", json_integer(p->processors));
    for (int i = 0; i < PROFILE_TILES && p->tile[i].rows > 0; i++)
        json_array_append_new(tiles, json_pack("[i, i, f]", p->tile[i].rows, p->tile[i].columns, p->tile[i].share));
    json_object_set_new(root, "tiles", tiles);
    for (int i = 0; i < p->count; i++) {
        const profile_point *at = &p->points[i];
        json_array_append_new(points, json_pack("[s, s, b, [f, f, f], f, f, i]", op_rows[at->kind].name,
                                                dtype_name(at->type), at->adds, at->size[0], at->size[1], at->size[2],
                                                at->seconds, at->model, at->threads));
    }
    json_object_set_new(root, "points", points);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    MUST(text, "out of host memory");
    status s = atomic_replace(path, text, (int64_t)strlen(text));
    free(text);
    json_decref(root);
    return s;
}

static status take(profile *out, const json_t *root, const char *path)
{
    const char *base = json_string_value(json_object_get(root, "base"));
    const profile *known = profile_named(base ? base : "h100");
    if (!known)
        return status_fail(STATUS_USAGE, "%s: base \"%s\" is none of %s", path, base, profile_names());
    *out = *known;
    const char *name = json_string_value(json_object_get(root, "name"));
    snprintf(out->name, sizeof out->name, "%s", name ? name : path);
    TRY(take_numbers(out, root, path, false));
    TRY(take_tiles(out, root, path));
    return take_points(out, json_object_get(root, "points"), path);
}

static status load(json_t **root, const char *path)
{
    json_error_t error;
    *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!*root || !json_is_object(*root)) {
        json_decref(*root);
        return status_fail(STATUS_USAGE, "%s: no profile: %s (line %d)", path, *root ? "not an object" : error.text,
                           error.line);
    }
    return STATUS_OK;
}

status profile_open(profile *out, const char *name)
{
    *out = (profile){0};
    if (profile_named(name)) {
        *out = *profile_named(name);
        return STATUS_OK;
    }
    json_t *root;
    if (access(name, R_OK) != 0)
        return status_fail(STATUS_USAGE, "%s is neither a file nor one of %s", name, profile_names());
    TRY(load(&root, name));
    status s = take(out, root, name);
    json_decref(root);
    if (s != STATUS_OK)
        profile_free(out);
    return s;
}

status profile_take_network(profile *p, const char *path)
{
    json_t *root;
    TRY(load(&root, path));
    status s = take_numbers(p, root, path, true);
    json_decref(root);
    return s;
}
