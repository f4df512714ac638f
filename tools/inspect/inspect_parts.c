#include "tools/inspect/inspect_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "memory/log.h"
#include "memory/scope.h"

int64_t inspect_get(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

const char *inspect_text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* 1234567 -> "1.2 M" with steps of 1000, or "1.2 MiB" with steps of 1024 */
static const char *short_number(char out[32], double value, double step, const char *const *units)
{
    int unit = 0;
    while (value >= step && units[unit + 1]) {
        value /= step;
        unit++;
    }
    snprintf(out, 32, "%.*f%s%s", unit ? 1 : 0, value, *units[unit] ? " " : "", units[unit]);
    return out;
}

const char *inspect_bytes(char out[32], int64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", NULL};
    return short_number(out, (double)bytes, 1024, units);
}

const char *inspect_count(char out[32], int64_t count)
{
    static const char *const units[] = {"", "thousand", "million", "billion", NULL};
    return short_number(out, (double)count, 1000, units);
}

const char *inspect_active(char out[64], const json_t *object)
{
    char count[32];
    int64_t active = inspect_get(object, "active_parameters");
    out[0] = 0;
    if (active < inspect_get(object, "parameters"))
        snprintf(out, 64, ", of which %s compute a token", inspect_count(count, active));
    return out;
}

bool inspect_ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a > b && strcmp(text + a - b, end) == 0;
}

bool inspect_has(const char *folder, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    return atomic_exists(path);
}

json_t *inspect_object(const char *kind, const char *path)
{
    return json_pack("{s:s, s:s}", "kind", kind, "path", path);
}
