#include "models/huggingface_keys.h"

#include <limits.h>

#include "memory/log.h"
#include "memory/scope.h"

const json_t *huggingface_raw_key(const huggingface_reader *r, const char *key)
{
    if (r->asked)
        json_object_set_new(r->asked, key, json_true());
    return json_object_get(r->root, key);
}

const json_t *huggingface_key(const huggingface_reader *r, const char *key)
{
    const json_t *value = huggingface_raw_key(r, key);
    return json_is_null(value) ? NULL : value;
}

const json_t *huggingface_item(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

char *huggingface_value_text(const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
    return text ? text : must_strdup("?");
}

status huggingface_refuse(const huggingface_reader *r, const char *key, const json_t *value, const char *why)
{
    AUTO_FREE char *text = huggingface_value_text(value);
    return status_fail(STATUS_FAILED, "%s: %s is %.60s: %s", r->path, key, text, why);
}

status huggingface_refuse_missing(const huggingface_reader *r, const model_shape *s, const char *key)
{
    return status_fail(STATUS_FAILED, "%s: %s is missing: a %s model needs it", r->path, key,
                       shape_traits_of(s->architecture)->name);
}

status huggingface_read_count(const huggingface_reader *r, int *out, const char *key, int low, int fallback,
                              const char *why)
{
    const json_t *value = huggingface_key(r, key);
    json_int_t n = !value ? fallback : json_is_integer(value) ? json_integer_value(value) : -1;
    if (n < low || n > INT_MAX)
        return huggingface_refuse(r, key, value, why);
    *out = (int)n;
    return STATUS_OK;
}

status huggingface_read_bool(const huggingface_reader *r, bool *out, const char *key, bool fallback)
{
    const json_t *value = huggingface_key(r, key);
    if (value && !json_is_boolean(value))
        return huggingface_refuse(r, key, value, "it must be true or false");
    *out = value ? json_is_true(value) : fallback;
    return STATUS_OK;
}

status huggingface_read_number(const huggingface_reader *r, double *out, const json_t *object, const char *key,
                               double fallback)
{
    const json_t *value = object == r->root ? huggingface_key(r, key) : huggingface_item(object, key);
    if (value && !json_is_number(value))
        return huggingface_refuse(r, key, value, "it must be a number");
    *out = value ? json_number_value(value) : fallback;
    return STATUS_OK;
}
