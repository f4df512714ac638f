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

const char *inspect_active(char out[64], const json_t *object)
{
    int64_t active = inspect_get(object, "active_parameters");
    out[0] = 0;
    if (active < inspect_get(object, "parameters"))
        snprintf(out, 64, ", of which %s compute a token", COUNT_IN_WORDS(active));
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
