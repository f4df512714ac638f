#include "engine/tracking/tracker_lines.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_POINTS = 1 << 20, MOST_NAME = 200 };

static const struct {
    const char *key, *prefix; /* of the line's value; of the kind's names on the server */
} kinds[TRACKER_KINDS] = {[TRACKER_STEP] = {"loss", ""},
                          [TRACKER_EVALUATION] = {"eval_loss", "eval/"},
                          [TRACKER_ISLANDS] = {"islands_disagreement", "islands/"}};

/* ---- what a line is about ---------------------------------------------------------------------------------------- */

bool tracker_lines_point(tracker_point *out, const json_t *line)
{
    const json_t *step = json_object_get(line, "step");
    for (int k = 0; json_is_integer(step) && k < TRACKER_KINDS; k++) {
        const json_t *value = json_object_get(line, kinds[k].key);
        if (!value)
            continue;
        *out = (tracker_point){(tracker_kind)k, json_integer_value(step),
                               json_is_number(value) ? json_number_value(value) : NAN};
        return true;
    }
    return false;
}

static bool read_point(tracker_point *out, const char *text, size_t bytes)
{
    json_auto_t *line = json_loadb(text, bytes, 0, NULL);
    return tracker_lines_point(out, line);
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

static void add_metric(json_t *metrics, const char *name, const json_t *value, int64_t time, int64_t step)
{
    double number = json_is_number(value) ? json_number_value(value) : NAN;
    if (isfinite(number))
        json_array_append_new(metrics, json_pack("{s:s, s:f, s:I, s:I}", "key", name, "value", number, "timestamp",
                                                 (json_int_t)time, "step", (json_int_t)step));
}

/* Letters, digits, and - _ . of a data set's name: what MLflow takes. */
static void add_set(json_t *metrics, const char *set, const json_t *value, int64_t time, int64_t step)
{
    char name[MOST_NAME];
    snprintf(name, sizeof name, "eval/%s", set);
    for (char *c = name + strlen("eval/"); *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '-' && *c != '.')
            *c = '_';
    add_metric(metrics, name, value, time, step);
}

void tracker_lines_add(json_t *metrics, const json_t *line, const tracker_point *at, const tracker_lines_name *names,
                       int count)
{
    const json_t *clock = json_object_get(line, "time");
    int64_t time = (int64_t)(1000 * json_number_value(clock));
    if (at->kind == TRACKER_STEP)
        for (int i = 0; i < count; i++)
            if (names[i].name)
                add_metric(metrics, names[i].name, json_object_get(line, names[i].key), time, at->step);
    if (at->kind == TRACKER_ISLANDS)
        add_metric(metrics, "islands/disagreement", json_object_get(line, kinds[at->kind].key), time, at->step);
    if (at->kind != TRACKER_EVALUATION)
        return;
    const char *set;
    json_t *value;
    add_metric(metrics, "eval/loss", json_object_get(line, kinds[at->kind].key), time, at->step);
    json_object_foreach(json_object_get(line, "eval_losses"), set, value) add_set(metrics, set, value, time, at->step);
}

/* A server may write 64-bit integers as strings. */
static int64_t read_integer(const json_t *value)
{
    return json_is_string(value) ? strtoll(json_string_value(value), NULL, 10) : json_integer_value(value);
}

void tracker_lines_last(int64_t last[TRACKER_KINDS], const json_t *data)
{
    size_t i;
    const json_t *metric;
    for (int k = 0; k < TRACKER_KINDS; k++)
        last[k] = -1;
    json_array_foreach(json_object_get(data, "metrics"), i, metric)
    {
        const char *name = json_string_value(json_object_get(metric, "key"));
        int64_t step = read_integer(json_object_get(metric, "step"));
        int kind = TRACKER_STEP;
        for (int k = TRACKER_STEP + 1; name && k < TRACKER_KINDS; k++)
            if (strncmp(name, kinds[k].prefix, strlen(kinds[k].prefix)) == 0)
                kind = k;
        if (name && step > last[kind])
            last[kind] = step;
    }
}

/* ---- what was dropped -------------------------------------------------------------------------------------------- */

/* What is known of such steps is older than what is read now. */
static void forget_after(tracker_points *all, int64_t step)
{
    int kept = 0;
    for (int i = 0; i < all->count; i++)
        if (all->item[i].step <= step)
            all->item[kept++] = all->item[i];
    all->count = kept;
}

static void add_point(tracker_points *all, const tracker_point *point)
{
    if (all->count == MOST_POINTS)
        return;
    if (all->count == all->room) {
        all->room = all->room ? 2 * all->room : 64;
        all->item = must_realloc(all->item, (unsigned long)all->room * sizeof *all->item);
    }
    all->item[all->count++] = *point;
}

status tracker_points_read(tracker_points *out, const char *path, int64_t step)
{
    AUTO_FREE char *all = NULL;
    int64_t bytes;
    bool forgotten = false;
    tracker_point point;
    TRY(reading_file(&all, &bytes, path));
    for (char *line = all, *end; line && (end = memchr(line, '\n', (size_t)(all + bytes - line))); line = end + 1)
        if (read_point(&point, line, (size_t)(end - line)) && point.step > step) {
            if (!forgotten)
                forget_after(out, step);
            forgotten = true;
            add_point(out, &point);
        }
    return STATUS_OK;
}

bool tracker_points_have(const tracker_points *all, const tracker_point *wanted)
{
    for (int i = all->count; i-- > 0;)
        if (all->item[i].kind == wanted->kind && all->item[i].step == wanted->step)
            return all->item[i].value == wanted->value || (isnan(all->item[i].value) && isnan(wanted->value));
    return false;
}

void tracker_points_free(tracker_points *all)
{
    free(all->item);
    *all = (tracker_points){0};
}
