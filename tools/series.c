#include "tools/series.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/mapping.h"
#include "memory/log.h"
#include "memory/scope.h"

json_t *series_lines(const char *path, const char *key)
{
    json_t *all = json_array();
    mapping file = {0};
    if (mapping_open(&file, path) != STATUS_OK)
        return all;
    const char *at = (const char *)file.data, *end = at + file.bytes;
    for (const char *next; at < end && (next = memchr(at, '\n', (size_t)(end - at))); at = next + 1) {
        json_auto_t *line = json_loadb(at, (size_t)(next - at), 0, NULL);
        if (json_object_get(line, key))
            json_array_append(all, line);
    }
    mapping_close(&file);
    return all;
}

static double value_of(const json_t *lines, size_t index, const char *key)
{
    const json_t *value = json_object_get(json_array_get(lines, index), key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Chooses of lines [first, end) the ones with the least and the largest `by`; without numbers, the first line. */
static void choose(bool *chosen, const json_t *lines, const char *by, size_t first, size_t end)
{
    size_t least = first, most = first;
    for (size_t i = first; i < end; i++) {
        double v = value_of(lines, i, by);
        if (v < value_of(lines, least, by) || isnan(value_of(lines, least, by)))
            least = i;
        if (v > value_of(lines, most, by) || isnan(value_of(lines, most, by)))
            most = i;
    }
    chosen[least] = chosen[most] = true;
}

static bool occurs(const json_t *lines, const char *key)
{
    for (size_t i = 0; i < json_array_size(lines); i++)
        if (json_object_get(json_array_get(lines, i), key))
            return true;
    return false;
}

json_t *series_columns(const json_t *lines, const char *const *keys, const char *by, int points)
{
    size_t count = json_array_size(lines), pairs = (size_t)(points / 2 > 1 ? points / 2 : 1);
    AUTO_FREE bool *chosen = must_calloc(count + 1, sizeof *chosen);
    for (size_t p = 0; p < pairs; p++)
        if (count * p / pairs < count * (p + 1) / pairs)
            choose(chosen, lines, by, count * p / pairs, count * (p + 1) / pairs);
    for (size_t i = 0; i < count; i++)
        chosen[i] |= i == 0 || i + 1 == count || count <= (size_t)points;
    json_t *columns = json_object();
    for (; *keys; keys++) {
        if (!occurs(lines, *keys))
            continue;
        json_t *column = json_array();
        for (size_t i = 0; i < count; i++) {
            json_t *value = json_object_get(json_array_get(lines, i), *keys);
            if (chosen[i] && value)
                json_array_append(column, value);
            else if (chosen[i])
                json_array_append_new(column, json_null());
        }
        json_object_set_new(columns, *keys, column);
    }
    return columns;
}
