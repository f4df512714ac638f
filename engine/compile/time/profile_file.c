/* Profiles as JSON files: the numbers of the struct by name, tiles and points as lists. A file may name a built-in
 * profile as its "base" and give only the differences. An unknown key is refused: a misspelt number would be the
 * base's. */
#include "engine/compile/time/profile.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/config/nearest.h"
#include "engine/config/scalar.h"
#include "engine/files/output.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Measure of a number. A bare number is in bytes a second, FLOP/s or seconds; a text ends with its unit: "25 GB/s". */
typedef enum measure { MEASURE_NONE, MEASURE_RATE, MEASURE_SECONDS, MEASURE_FLOPS, MEASURES } measure;

/* Range of machines of any year: a number outside it was meant in another unit. */
static const struct {
    double least, most;
    const char *unit, *example;
} measures[MEASURES] = {
    [MEASURE_NONE] = {0, INFINITY, "", ""},
    [MEASURE_RATE] = {1e6, 1e15, "bytes a second", "25 GB/s"},
    [MEASURE_SECONDS] = {0, 1, "seconds", "5 us"},
    [MEASURE_FLOPS] = {1e9, 1e18, "FLOP/s", "989 TFLOP/s"},
};

typedef struct field {
    const char *name;
    size_t at;
    measure of;
    bool network, positive;
    double most; /* shares: more than 1 is a mistake, and 1 of the multiprocessors leaves none to compute */
} field;

#define FIELD(name, of, network, positive, most)                                                                       \
    {                                                                                                                  \
#name, offsetof(profile, name), MEASURE_##of, network, positive, most                                          \
    }
static const field numbers[] = {
#define PEAK(name, key) {key, offsetof(profile, peak[PEAK_##name]), MEASURE_FLOPS, false, true, INFINITY},
#include "kernels/table/devices.def"
    FIELD(depth, NONE, false, false, INFINITY),
    FIELD(product_start, SECONDS, false, false, INFINITY),
    FIELD(attention_pair, NONE, false, false, INFINITY),
    FIELD(attention, NONE, false, false, 1),
    FIELD(attention_gradient, NONE, false, false, 1),
    FIELD(memory, RATE, false, true, INFINITY),
    FIELD(memory_share, NONE, false, true, 1),
    FIELD(start, SECONDS, false, false, INFINITY),
    FIELD(bus, RATE, false, true, INFINITY),
    FIELD(node, RATE, true, true, INFINITY),
    FIELD(network, RATE, true, true, INFINITY),
    FIELD(latency, SECONDS, true, false, INFINITY),
    FIELD(network_latency, SECONDS, true, false, INFINITY),
    FIELD(hop, SECONDS, true, false, INFINITY),
    FIELD(taken, NONE, true, false, 0.9),
};
#undef FIELD

enum { NUMBERS = sizeof numbers / sizeof *numbers };

static double *number_of(profile *p, const field *f)
{
    return (double *)((char *)p + f->at);
}

static const field *field_named(const char *name)
{
    for (int i = 0; i < NUMBERS; i++)
        if (!strcmp(numbers[i].name, name))
            return &numbers[i];
    return NULL;
}

static status check_keys(json_t *root, const char *path)
{
    static const char *const others[] = {"name",
                                         "base",
                                         "device",
                                         "node_ranks",
                                         "oversubscription",
                                         "capacity",
                                         "cores",
                                         "tiles",
                                         "processors",
                                         "points",
                                         "host_moves",
                                         "as_lowered",
                                         "attention_lengths",
                                         "blocks" /* key of older files: not used */};
    enum { OTHERS = sizeof others / sizeof *others };
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        bool known = field_named(key) != NULL;
        nearest near = {.wanted = key};
        for (int i = 0; i < OTHERS; i++) {
            known |= !strcmp(others[i], key);
            nearest_offer(&near, others[i]);
        }
        for (int i = 0; i < NUMBERS; i++)
            nearest_offer(&near, numbers[i].name);
        const char *meant = nearest_word(&near);
        if (!known)
            return status_fail(STATUS_USAGE, "%s: \"%s\" is no key of a profile%s%s%s", path, key,
                               meant ? "; did you mean " : "", meant ? meant : "", meant ? "?" : "");
    }
    return STATUS_OK;
}

/* Parses "25 GB/s", "200 Gbit/s", "5 us", "989 TFLOP/s" in the measure's own unit. False: no such number. */
static bool read_measure(double *out, const char *text, measure of)
{
    static const struct {
        const char *name;
        double scale;
    } units[MEASURES][18] = {
        [MEASURE_RATE] = {{"B/s", 1},
                          {"kB/s", 1e3},
                          {"KB/s", 1e3},
                          {"MB/s", 1e6},
                          {"GB/s", 1e9},
                          {"TB/s", 1e12},
                          {"KiB/s", 1024.0},
                          {"MiB/s", 1048576.0},
                          {"GiB/s", 1073741824.0},
                          {"TiB/s", 1099511627776.0},
                          {"Mbit/s", 125e3},
                          {"Gbit/s", 125e6},
                          {"Tbit/s", 125e9},
                          {"Mb/s", 125e3},
                          {"Gb/s", 125e6},
                          {"Tb/s", 125e9},
                          {NULL, 0}},
        [MEASURE_SECONDS] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"µs", 1e-6}, {"ns", 1e-9}, {NULL, 0}},
        [MEASURE_FLOPS] = {{"FLOP/s", 1},
                           {"GFLOP/s", 1e9},
                           {"TFLOP/s", 1e12},
                           {"PFLOP/s", 1e15},
                           {"GFLOPS", 1e9},
                           {"TFLOPS", 1e12},
                           {"PFLOPS", 1e15},
                           {NULL, 0}},
    };
    char *unit;
    double number = strtod(text, &unit);
    unit += strspn(unit, " ");
    for (int i = 0; unit > text && units[of][i].name; i++)
        if (!strcmp(unit, units[of][i].name)) {
            *out = number * units[of][i].scale;
            return true;
        }
    return false;
}

static status take_number(profile *p, const json_t *v, const field *f, const char *path)
{
    double number = json_number_value(v);
    bool known = json_is_number(v) || (json_is_string(v) && read_measure(&number, json_string_value(v), f->of));
    if (!known && f->of)
        return status_fail(STATUS_USAGE, "%s: %s is neither a number of %s nor a text such as \"%s\"", path, f->name,
                           measures[f->of].unit, measures[f->of].example);
    if (!known || !isfinite(number) || number < 0 || (f->positive && number <= 0))
        return status_fail(STATUS_USAGE, "%s: %s is no number %s", path, f->name,
                           f->positive ? "above zero" : "of at least zero");
    if (number < measures[f->of].least || number > measures[f->of].most)
        return status_fail(STATUS_USAGE, "%s: %s is %g %s, which no machine has: say the unit, as in \"%s\"", path,
                           f->name, number, measures[f->of].unit, measures[f->of].example);
    if (number > f->most)
        return status_fail(STATUS_USAGE, "%s: %s is a share: at most %g, not %g", path, f->name, f->most, number);
    *number_of(p, f) = number;
    return STATUS_OK;
}

static status take_flag(bool *out, const json_t *root, const char *name, const char *path)
{
    const json_t *v = json_object_get(root, name);
    if (v && !json_is_boolean(v))
        return status_fail(STATUS_USAGE, "%s: %s is true or false", path, name);
    *out = v ? json_is_true(v) : *out;
    return STATUS_OK;
}

/* Reads a whole number of at least `least` that an int holds. */
static status take_count(int *out, const json_t *root, const char *name, int least, const char *path)
{
    const json_t *v = json_object_get(root, name);
    if (v && (!json_is_integer(v) || json_integer_value(v) < least || json_integer_value(v) > INT32_MAX))
        return status_fail(STATUS_USAGE, "%s: %s is no whole number of at least %d", path, name, least);
    *out = v ? (int)json_integer_value(v) : *out;
    return STATUS_OK;
}

static status take_network(profile *p, const json_t *root, const char *path)
{
    const json_t *sharers = json_object_get(root, "oversubscription");
    for (int i = 0; i < NUMBERS; i++) {
        const json_t *v = json_object_get(root, numbers[i].name);
        if (v && numbers[i].network)
            TRY(take_number(p, v, &numbers[i], path));
    }
    if (sharers && (!json_is_number(sharers) || !(json_number_value(sharers) >= 1)))
        return status_fail(STATUS_USAGE, "%s: oversubscription is no number of at least 1", path);
    if (sharers) /* all nodes send at the same time in training, so each has its share of the network between them */
        p->network /= json_number_value(sharers);
    TRY(take_count(&p->node_ranks, root, "node_ranks", 1, path));
    return take_flag(&p->host_moves, root, "host_moves", path);
}

/* Reads the row of the table of devices that choices go by, unless it is the base's. */
static status take_row(profile *p, const json_t *root, const char *path)
{
    const json_t *word = json_object_get(root, "device");
    if (!word)
        return STATUS_OK;
    p->device = json_is_string(word) ? devices_named(json_string_value(word)) : NULL;
    return p->device ? STATUS_OK : status_fail(STATUS_USAGE, "%s: device is no word of a device", path);
}

static status take_device(profile *p, const json_t *root, const char *path)
{
    const json_t *capacity = json_object_get(root, "capacity");
    const char *size = json_string_value(capacity);
    for (int i = 0; i < NUMBERS; i++) {
        const json_t *v = json_object_get(root, numbers[i].name);
        if (v && !numbers[i].network)
            TRY(take_number(p, v, &numbers[i], path));
    }
    const int64_t least = 1 << 24; /* 80 was meant in GiB */
    int64_t bytes = capacity ? json_integer_value(capacity) : p->capacity;
    if (capacity && (size ? !scalar_size(size, &bytes) : !json_is_integer(capacity) || bytes < 0))
        return status_fail(STATUS_USAGE, "%s: capacity is neither a number of bytes nor a size such as \"80GiB\"",
                           path);
    if (bytes > 0 && bytes < least)
        return status_fail(STATUS_USAGE,
                           "%s: capacity is %lld bytes, which no device has: say the unit, as in \"80GiB\"", path,
                           (long long)bytes);
    p->capacity = bytes;
    if (json_object_get(root, "single") && !json_object_get(root, "tf32")) /* not another device's */
        p->peak[PEAK_TF32] = p->peak[PEAK_FP32];
    TRY(take_row(p, root, path));
    TRY(take_count(&p->cores, root, "cores", 0, path));
    TRY(take_count(&p->processors, root, "processors", 0, path));
    return take_flag(&p->as_lowered, root, "as_lowered", path);
}

static status take_tiles(profile *p, const json_t *root, const char *path)
{
    const json_t *tiles = json_object_get(root, "tiles");
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
        if (out->rows < 1 || out->columns < 1 || out->share <= 0 || out->share > 1)
            return status_fail(STATUS_USAGE, "%s: tile %d: rows and columns are above zero, its share at most 1", path,
                               (int)i);
    }
    return STATUS_OK;
}

/* [sequence, forward's share, the gradient's], ascending. A file with only attention's shares means them for all
 * lengths and, unless it gives attention_pair, for all traffic of the gradient. */
static status take_lengths(profile *p, const json_t *root, const char *path)
{
    const json_t *list = json_object_get(root, "attention_lengths");
    const size_t count = json_array_size(list);
    bool says = list || json_object_get(root, "attention") || json_object_get(root, "attention_gradient");
    if (says && !json_object_get(root, "attention_pair"))
        p->attention_pair = 0;
    if (!list) {
        p->lengths = says ? 0 : p->lengths;
        return STATUS_OK;
    }
    if (!json_is_array(list) || count > PROFILE_LENGTHS)
        return status_fail(STATUS_USAGE, "%s: attention_lengths is a list of at most %d", path, PROFILE_LENGTHS);
    for (size_t i = 0; i < count; i++) {
        const json_t *from = json_array_get(list, i);
        const profile_length at = {json_number_value(json_array_get(from, 0)),
                                   json_number_value(json_array_get(from, 1)),
                                   json_number_value(json_array_get(from, 2))};
        bool grows = at.sequence >= 1 && (i == 0 || at.sequence > p->length[i - 1].sequence);
        if (!grows || at.forward <= 0 || at.forward > 1 || at.gradient <= 0 || at.gradient > 1)
            return status_fail(STATUS_USAGE,
                               "%s: attention_lengths %d: a sequence above the one before, and two shares above zero "
                               "and at most 1",
                               path, (int)i);
        p->length[i] = at;
    }
    p->lengths = (int)count;
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
    if (list && !json_is_array(list))
        return status_fail(STATUS_USAGE, "%s: points is no list", path);
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
    json_t *root = json_object(), *tiles = json_array(), *points = json_array(), *lengths = json_array();
    profile copy = *p;
    json_object_set_new(root, "name", json_string(p->name));
    if (p->device->word)
        json_object_set_new(root, "device", json_string(p->device->word));
    for (int i = 0; i < NUMBERS; i++)
        json_object_set_new(root, numbers[i].name, json_real(*number_of(&copy, &numbers[i])));
    json_object_set_new(root, "node_ranks", json_integer(p->node_ranks));
    json_object_set_new(root, "as_lowered", json_boolean(p->as_lowered));
    json_object_set_new(root, "host_moves", json_boolean(p->host_moves));
    json_object_set_new(root, "capacity", json_integer(p->capacity));
    json_object_set_new(root, "cores", json_integer(p->cores));
    json_object_set_new(root, "processors", json_integer(p->processors));
    for (int i = 0; i < PROFILE_TILES && p->tile[i].rows > 0; i++)
        json_array_append_new(tiles, json_pack("[i, i, f]", p->tile[i].rows, p->tile[i].columns, p->tile[i].share));
    json_object_set_new(root, "tiles", tiles);
    for (int i = 0; i < p->lengths; i++)
        json_array_append_new(
            lengths, json_pack("[f, f, f]", p->length[i].sequence, p->length[i].forward, p->length[i].gradient));
    if (p->lengths > 0)
        json_object_set(root, "attention_lengths", lengths);
    json_decref(lengths);
    for (int i = 0; i < p->count; i++) {
        const profile_point *at = &p->points[i];
        json_array_append_new(points, json_pack("[s, s, b, [f, f, f], f, f, i]", op_rows[at->kind].name,
                                                dtype_name(at->type), at->adds, at->size[0], at->size[1], at->size[2],
                                                at->seconds, at->model, at->threads));
    }
    json_object_set_new(root, "points", points);
    AUTO_FREE char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    status s = output_write(path, text, (int64_t)strlen(text));
    json_decref(root);
    return s;
}

static status read_profile(profile *out, json_t *root, const char *path)
{
    const json_t *base = json_object_get(root, "base"), *name = json_object_get(root, "name");
    if ((base && !json_is_string(base)) || (name && !json_is_string(name)))
        return status_fail(STATUS_USAGE, "%s: base and name are texts", path);
    TRY(check_keys(root, path));
    *out = profile_named(base ? json_string_value(base) : DEVICES_ASSUMED);
    if (!*out->name)
        return status_fail(STATUS_USAGE, "%s: base \"%s\" is none of %s", path, json_string_value(base),
                           profile_names());
    snprintf(out->name, sizeof out->name, "%s", name ? json_string_value(name) : path);
    TRY(take_network(out, root, path));
    TRY(take_device(out, root, path));
    TRY(take_tiles(out, root, path));
    TRY(take_lengths(out, root, path));
    return take_points(out, json_object_get(root, "points"), path);
}

static status load_json(json_t **root, const char *path)
{
    json_error_t error;
    *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!*root && error.line > 0)
        return status_fail(STATUS_USAGE, "%s: no profile: %s (line %d)", path, error.text, error.line);
    if (!*root)
        return status_fail(STATUS_USAGE, "%s: no profile: %s", path, error.text);
    if (json_is_object(*root))
        return STATUS_OK;
    json_decref(*root);
    return status_fail(STATUS_USAGE, "%s: no profile: not an object", path);
}

status profile_open(profile *out, const char *name)
{
    *out = profile_named(name);
    if (*out->name)
        return STATUS_OK;
    json_t *root;
    if (access(name, R_OK) != 0)
        return status_fail(STATUS_USAGE, "%s is neither a file nor one of %s", name, profile_names());
    TRY(load_json(&root, name));
    status s = read_profile(out, root, name);
    json_decref(root);
    if (s != STATUS_OK)
        profile_free(out);
    return s;
}

status profile_take_network(profile *p, const char *path)
{
    json_t *root;
    TRY(load_json(&root, path));
    status s = check_keys(root, path);
    if (s == STATUS_OK)
        s = take_network(p, root, path);
    json_decref(root);
    return s;
}
